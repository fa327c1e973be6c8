// Errors and the status line.

import { ApiError } from "./api.js";
import { $, element } from "./page.js";

const MAX_ERRORS = 3; // shown at a time

export function showError(error) {
  if (error.name === "AbortError") return;
  if (!(error instanceof ApiError)) console.error(error);
  const close = element("button", { type: "button", className: "plain", "aria-label": "Dismiss" }, "✕");
  const box = element("div", { className: "alert" }, element("span", {}, error.message), close);
  close.addEventListener("click", () => box.remove());
  $("alerts").append(box);
  while ($("alerts").children.length > MAX_ERRORS) $("alerts").firstChild.remove();
}

export const clearErrors = () => $("alerts").replaceChildren();

export function showStatus(text, { busy = false } = {}) {
  $("status").textContent = text;
  $("status").classList.toggle("busy", busy);
}

// What is said to the person: a line that goes away, a banner that stays, a sentence for screen readers alone.

import { $, element, setText } from "./dom.js";
import { fillIcons } from "./icons.js";

const TOAST_MS = 3500;
const banners = new Map(); // key → node

/** Say something to screen readers. */
export function announce(text) {
  const live = $("live");
  setText(live, live.textContent === text ? `${text}\u00a0` : text); // the same sentence twice is read twice
}

/** A short message that goes away by itself. */
export function toast(text) {
  announce(text);
  const node = element("p", { textContent: text });
  $("toasts").replaceChildren(node); // one at a time
  setTimeout(() => node.remove(), TOAST_MS);
}

/** A message that stays until it is closed or taken back; the same key replaces it. action: {label, run}. */
export function showBanner(key, text, { action = null, closable = true, kind = "problem" } = {}) {
  const known = banners.get(key);
  if (known?.dataset.text === text) return;
  const node = element("div", { className: `banner ${kind}`, "data-text": text },
    element("span", { "data-icon": kind === "problem" ? "warning" : "bulb" }), element("p", { textContent: text }));
  if (action) node.append(element("button", { type: "button", textContent: action.label, onclick: action.run }));
  if (closable) {
    node.append(element("button", {
      type: "button", className: "tool", "data-icon": "close", "aria-label": "Close", onclick: () => hideBanner(key),
    }));
  }
  fillIcons(node);
  if (known) known.replaceWith(node);
  else $("alerts").append(node);
  banners.set(key, node);
}

export function hideBanner(key) {
  banners.get(key)?.remove();
  banners.delete(key);
}

/** Show an error of a request, or of the page itself. */
export function showError(error) {
  if (error.name === "AbortError") return;
  if (error.status === undefined) console.error(error);
  showBanner(`error ${error.message}`, error.message);
}

// The help with all keys, and the export.

import { api } from "./api.js";
import { $, element } from "./dom.js";
import { fillIcons, icon } from "./icons.js";
import { flushEdits } from "./edits.js";
import { showError, toast } from "./messages.js";
import { keyTable } from "./keys.js";
import { legend, PHOTO_STATES } from "./shapes.js";
import { badge } from "./cell.js";
import { store } from "./store.js";

/** Open a dialog with a title, content and buttons; it closes by Esc, its cross or a click beside it. */
export function openDialog(id, title, content, buttons = []) {
  const dialog = $(id);
  const heading = element("header", {}, element("h2", { id: `${id}-title`, textContent: title }),
    element("button", { type: "button", className: "tool", "aria-label": "Close", onclick: () => dialog.close() }, icon("close")));
  const parts = [heading, element("div", { className: "dialog-body" }, ...content)];
  if (buttons.length) parts.push(element("footer", {}, ...buttons));
  dialog.replaceChildren(...parts);
  fillIcons(dialog);
  dialog.onpointerdown = (event) => { if (event.target === dialog) dialog.close(); };
  if (!dialog.open) dialog.showModal();
  return dialog;
}

/** All keys and shapes. */
export function openHelp(actions) {
  const groups = keyTable(actions).map(({ title, rows }) => element("section", {},
    element("h3", { textContent: title }),
    element("dl", {}, ...rows.filter((row) => row.shown !== null).flatMap((row) => [
      element("dt", {}, element("kbd", { textContent: row.shown ?? row.keys[0] })), element("dd", { textContent: row.text }),
    ]))));
  const states = element("ul", { className: "legend", "aria-label": "The states of a photo" },
    ...Object.entries(PHOTO_STATES).map(([name, text]) => element("li", {}, badge(name), text)));
  openDialog("help", "Keys and shapes", [
    element("div", { className: "shapes" }, element("h3", { textContent: "Points" }), legend(), element("h3", { textContent: "Photos" }), states),
    element("div", { className: "keys" }, ...groups),
  ]);
}

/** Export into a file. */
export async function openExport() {
  let formats;
  try {
    await flushEdits();
    formats = await api.get("/api/formats");
  } catch (error) {
    showError(error);
    return;
  }
  const choices = formats.map(({ name, title, available, why }, i) => {
    const input = element("input", { type: "radio", name: "format", value: name, disabled: !available, checked: i === 0 && available });
    return element("label", { className: available ? "choice" : "choice off" }, input,
      element("span", {}, title, why ? element("small", { textContent: why }) : null));
  });
  const include = element("input", { type: "checkbox" });
  const { counts } = store.project;
  const run = element("button", { type: "button", className: "primary", onclick: () => download(choices, include, run) }, "Export");
  openDialog("export", "Export", [
    element("div", { className: "choices", role: "radiogroup", "aria-label": "Format" }, ...choices),
    element("label", { className: "choice" }, include, element("span", {}, "Predictions, too",
      element("small", { textContent: "Otherwise only what a person placed, accepted or imported is written." }))),
    element("p", { className: "note", textContent: `${counts.reviewed ?? 0} photos are done, ${counts.marked ?? 0} begun.` }),
  ], [run]);
}

async function download(choices, include, run) {
  const format = choices.map((choice) => choice.querySelector("input")).find((input) => input.checked)?.value;
  if (!format) return;
  run.disabled = true;
  try {
    const [blob, name] = await api.download(`/api/export?format=${format}&predictions=${include.checked ? "include" : "omit"}`);
    const url = URL.createObjectURL(blob);
    element("a", { href: url, download: name ?? `keypoints-${format}` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    $("export").close();
    toast(`Exported ${name ?? format}`);
  } catch (error) {
    $("export").close();
    showError(error);
  } finally {
    run.disabled = false;
  }
}

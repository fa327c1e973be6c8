// The menu: categories, files, display, theme.

import { $, element, setAttribute } from "./dom.js";
import { icon } from "./icons.js";
import { setSetting, settings } from "./settings.js";
import { on, store } from "./store.js";

const THEMES = [["auto", "As the system"], ["light", "Light"], ["dark", "Dark"]];

/** Set the menu up. actions: {editCategories, importFile, exportFile, scan, pause, addPhotos, examples, help}. */
export function startMenu(actions) {
  const menu = $("menu");
  const close = (run) => () => { menu.hidePopover(); run(); };
  const entry = (name, label, run, { keep = false, role = "menuitem" } = {}) => element("button", {
    type: "button", className: "entry", role, onclick: keep ? run : close(run),
  }, icon(name), element("span", { textContent: label }));
  const rule = () => element("hr");
  const toggle = (name, setting, label) => {
    const node = entry(name, label, () => setSetting(setting, !settings[setting]), { keep: true, role: "menuitemcheckbox" });
    node.dataset.setting = setting;
    node.append(element("span", { className: "tick" }, icon("check")));
    return node;
  };
  const themes = element("div", { className: "segments", role: "group", "aria-label": "Theme" }, ...THEMES.map(([name, label]) =>
    element("button", { type: "button", role: "menuitemradio", "data-theme-choice": name, title: label, "aria-label": label,
      onclick: () => setSetting("theme", name) }, icon(name))));
  const add = [entry("images", "Add photos…", actions.addPhotos), entry("bulb", "Example photos", actions.examples)];
  const scan = entry("refresh", "Look for new photos", actions.scan);
  const pause = entry("pause", "Pause the prediction", actions.pause);
  menu.append(
    entry("edit", "Categories and keypoints…", actions.editCategories), rule(),
    ...add, scan, entry("import", "Import a COCO file…", actions.importFile), entry("export", "Export…", actions.exportFile), pause, rule(),
    toggle("tag", "names", "Names beside the points"), toggle("bones", "skeleton", "Lines of the skeleton"), toggle("heat", "heat", "Heat map of the selected keypoint"), themes, rule(),
    entry("help", "Help and keys", actions.help));

  function update() {
    const { uploads, prediction } = store.project ?? {};
    for (const node of add) node.hidden = !uploads;
    scan.hidden = Boolean(uploads);
    pause.querySelector("span").textContent = prediction?.state === "paused" ? "Go on with the prediction" : "Pause the prediction";
    for (const node of menu.querySelectorAll("[data-setting]")) setAttribute(node, "aria-checked", settings[node.dataset.setting]);
    for (const node of themes.children) setAttribute(node, "aria-checked", node.dataset.themeChoice === settings.theme);
  }
  menu.addEventListener("toggle", (event) => {
    if (event.newState !== "open") return;
    update();
    menu.querySelector("button:not([hidden])").focus();
  });
  menu.addEventListener("keydown", (event) => moveFocus(menu, event));
  on("settings", update);
}

function moveFocus(menu, event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const entries = [...menu.querySelectorAll("button")].filter((node) => !node.hidden);
  const at = entries.indexOf(document.activeElement);
  entries[(at + step + entries.length) % entries.length].focus();
  event.preventDefault();
}

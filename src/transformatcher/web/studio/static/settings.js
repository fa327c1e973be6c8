// What a person has chosen for this browser: theme, names, skeleton, heat maps, size and order of the thumbnails.

import { emit } from "./store.js";

const KEY = "transformatcher-studio";
const DEFAULTS = { theme: "auto", names: true, skeleton: true, heat: false, size: 180, sort: "sureness" };

function stored() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    return {}; // storage is switched off, or holds something else
  }
}

export const settings = { ...DEFAULTS, ...stored() };

/** Change one setting; everybody who shows it hears the event "settings". */
export function setSetting(name, value) {
  settings[name] = value;
  try {
    localStorage.setItem(KEY, JSON.stringify(settings));
  } catch { /* the setting holds until the page is closed */ }
  applyTheme();
  emit("settings", name);
}

/** Dark or light, as chosen; "auto" leaves it to the system. */
export function applyTheme() {
  if (settings.theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = settings.theme;
}

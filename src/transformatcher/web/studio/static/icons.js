// Names → line icons, drawn in the colour of the text.

import { svg } from "./dom.js";

const PATHS = {
  grid: "M4 4h6v6H4zM14 4h6v6h-6zM4 14h6v6H4zM14 14h6v6h-6z",
  photo: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.5 9.5h.01",
  undo: "M9 7 4.5 11.5 9 16M5 11.5h9a5 5 0 0 1 0 10h-2",
  redo: "m15 7 4.5 4.5L15 16M19 11.5h-9a5 5 0 0 0 0 10h2",
  pause: "M8 5v14M16 5v14",
  play: "M8 5v14l11-7z",
  help: "M9.2 9a3 3 0 1 1 4.3 2.7c-.9.5-1.5 1.2-1.5 2.3M12 17.5h.01",
  more: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6 6 18",
  left: "M14.5 6 8.5 12l6 6",
  right: "m9.5 6 6 6-6 6",
  up: "m6 14.5 6-6 6 6",
  down: "m6 9.5 6 6 6-6",
  plus: "M12 5v14M5 12h14",
  minus: "M5 12h14",
  hidden: "M4 4l16 16M9.9 5.8A9 9 0 0 1 12 5.5c6 0 9.5 6.5 9.5 6.5a17 17 0 0 1-3 3.7M6.2 7.6A16 16 0 0 0 2.5 12S6 18.5 12 18.5"
    + "a9 9 0 0 0 4.6-1.3",
  absent: "M12 20a8 8 0 1 0 0-16 8 8 0 0 0 0 16zM6.4 6.4l11.2 11.2",
  back: "M4 12a8 8 0 1 0 2.6-5.9L4 8.5M4 4v4.5h4.5",
  box: "M5 7V5h2M17 5h2v2M19 17v2h-2M7 19H5v-2M10 5h4M10 19h4M5 10v4M19 10v4",
  tag: "M4 4h8l8 8-8 8-8-8zM8 8h.01",
  bulb: "M9 18h6M10 21h4M12 3a6 6 0 0 0-3.5 10.9c.6.5 1 1.2 1 2.1h5c0-.9.4-1.6 1-2.1A6 6 0 0 0 12 3z",
  check: "m5 12.5 5 5L19.5 7",
  bones: "M7 17 17 7M5 19.5a2.2 2.2 0 1 0 0-4.4 2.2 2.2 0 0 0 0 4.4zM19 8.9a2.2 2.2 0 1 0 0-4.4 2.2 2.2 0 0 0 0 4.4z",
  heat: "M12 13.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zM12 17a5 5 0 1 0 0-10 5 5 0 0 0 0 10zM12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17z",
  skip: "M5 5l8 7-8 7zM18 5v14",
  export: "M12 15V4M7.5 8.5 12 4l4.5 4.5M5 15v5h14v-5",
  import: "M12 4v11M7.5 10.5 12 15l4.5-4.5M5 15v5h14v-5",
  images: "M7 4h13v12H7zM4 8v12h13M7 13l4-4 3 3 2-2 4 4",
  edit: "M4 20l1-4.5L16.5 4 20 7.5 8.5 19z",
  refresh: "M19.5 12a7.5 7.5 0 1 1-2.4-5.5L19.5 8.7M19.5 4v4.7h-4.7",
  auto: "M12 20a8 8 0 1 0 0-16zM12 4a8 8 0 0 0 0 16",
  light: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4"
    + "M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
  dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
  trash: "M5 7h14M10 7V4.5h4V7M7 7l1 13h8l1-13",
  twin: "M8 8 4 12l4 4M16 8l4 4-4 4M4 12h16",
  search: "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13zM15.5 15.5 20 20",
  warning: "M12 4 2.5 20h19zM12 10v4.5M12 17.5h.01",
};
const FILLED = { auto: "M12 4a8 8 0 0 1 0 16z", play: "M8 5v14l11-7z" };

/** An icon, hidden from screen readers: the button around it has a label. */
export function icon(name) {
  const node = svg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, svg("path", { d: PATHS[name] }));
  if (FILLED[name]) node.append(svg("path", { d: FILLED[name], class: "filled" }));
  return node;
}

/** Put the icons into the buttons of the page that name one. */
export function fillIcons(root = document) {
  for (const node of root.querySelectorAll("[data-icon]")) setIcon(node, node.dataset.icon);
}

/** Exchange the icon of a button. */
export function setIcon(node, name) {
  if (node.dataset.drawn === name) return;
  node.dataset.drawn = name;
  node.querySelector(":scope > .icon")?.remove();
  node.prepend(icon(name));
}

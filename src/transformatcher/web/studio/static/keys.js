// Key presses → actions; the same table is shown in the help.

import { isTyping } from "./dom.js";

/** Which keys do what. where: "photo", "grid" or "both"; shown: how the help writes the keys. */
export function keyTable(actions) {
  const { photo, page } = actions;
  return [
    { title: "Review", where: "photo", rows: [
      { keys: ["Enter"], shown: "↵", text: "accept all points and go to the next photo", run: photo.accept },
      { keys: ["N", "PageDown"], shown: "N", text: "next photo, without accepting", run: photo.nextPhoto },
      { keys: ["P", "PageUp"], shown: "P", text: "previous photo", run: photo.previousPhoto },
      { keys: ["S"], text: "skip: there is nothing to mark", run: photo.skip },
      { keys: ["R"], text: "review this photo again", run: photo.reopen },
    ] },
    { title: "Keypoints", where: "photo", rows: [
      { keys: [], shown: "click", text: "place the selected keypoint" },
      { keys: [], shown: "drag", text: "move a point" },
      { keys: [], shown: "1 … 9, 0", text: "select a keypoint by its number" },
      { keys: ["Tab"], text: "next keypoint", run: () => photo.selectStep(1) },
      { keys: ["Shift+Tab"], shown: "⇧ Tab", text: "keypoint before", run: () => photo.selectStep(-1) },
      { keys: ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"], shown: "← → ↑ ↓", text: "move it by a pixel; ⇧: ten",
        run: (key) => nudge(photo, key, 1) },
      { keys: ["Shift+ArrowLeft", "Shift+ArrowRight", "Shift+ArrowUp", "Shift+ArrowDown"], shown: null,
        run: (key) => nudge(photo, key.slice(6), 10) },
      { keys: ["V"], text: "it is here: keep an unsure point", run: photo.keepPoint },
      { keys: ["H"], text: "hidden: there, but not visible", run: photo.toggleHidden },
      { keys: ["X", "Delete"], shown: "X", text: "not there", run: photo.markAbsent },
      { keys: ["Backspace"], shown: "⌫", text: "back to the prediction", run: photo.backToPrediction },
    ] },
    { title: "Photo", where: "photo", rows: [
      { keys: [], shown: "wheel, pinch", text: "zoom" },
      { keys: [], shown: "drag, space", text: "move the photo" },
      { keys: ["+", "="], shown: "+", text: "zoom in", run: page.zoomIn },
      { keys: ["-"], shown: "-", text: "zoom out", run: page.zoomOut },
      { keys: ["F"], text: "fit the whole photo", run: page.fit },
      { keys: ["T"], text: "names beside the points", run: page.toggleNames },
      { keys: ["L"], text: "lines of the skeleton", run: page.toggleSkeleton },
      { keys: ["E"], text: "where else the selected keypoint may be: its heat map", run: page.toggleHeat },
    ] },
    { title: "Objects", where: "photo", rows: [
      { keys: ["B"], text: "draw a box: another object", run: () => photo.toggleDrawing() },
      { keys: ["O"], text: "next object on this photo", run: photo.nextObject },
    ] },
    { title: "Everywhere", where: "both", rows: [
      { keys: ["Z", "Ctrl+Z"], shown: "Z", text: "undo", run: page.undo },
      { keys: ["Shift+Z", "Ctrl+Shift+Z", "Ctrl+Y"], shown: "⇧ Z", text: "redo", run: page.redo },
      { keys: ["M"], text: "go to the photo that would teach most", run: photo.openSuggestion },
      { keys: ["G"], text: "all photos", run: page.toGrid },
      { keys: ["Escape"], shown: "Esc", text: "stop drawing or dragging; back to all photos", run: page.escape },
      { keys: ["?"], text: "this help", run: page.help },
    ] },
    { title: "All photos", where: "grid", rows: [
      { keys: [], shown: "← → ↑ ↓", text: "choose a photo" },
      { keys: [], shown: "↵", text: "open it" },
      { keys: ["N"], text: "begin the review", run: page.review },
      { keys: ["/"], text: "search by name", run: page.search },
    ] },
  ];
}

function nudge(photo, key, step) {
  const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  return photo.nudge(dx * step, dy * step);
}

/** "Ctrl+Z", "Shift+Tab", "N", "+": the name of a key press. */
function nameOf(event) {
  const letter = /^[a-z]$/i.test(event.key);
  const key = letter ? event.key.toUpperCase() : event.key;
  const shift = event.shiftKey && (letter || key.length > 1) ? "Shift+" : "";
  return `${event.ctrlKey || event.metaKey ? "Ctrl+" : ""}${shift}${key}`;
}

/** Listen to the keys. view() → "photo" or "grid". */
export function listenToKeys(actions, view) {
  const table = new Map();
  for (const { where, rows } of keyTable(actions)) {
    for (const { keys, run } of rows) for (const key of keys) table.set(`${where} ${key}`, run);
  }
  window.addEventListener("keydown", (event) => {
    if (event.altKey || event.isComposing || isTyping(event.target) || document.querySelector("dialog[open], :popover-open")) return;
    const key = nameOf(event);
    const onButton = event.target.closest?.("button, a, summary") !== null;
    if (onButton && ["Enter", " "].includes(key)) return; // it presses the button
    if (key === "Tab" || key === "Shift+Tab") {
      if (view() !== "photo" || !["stage", "points"].includes(event.target.id)) return; // elsewhere it moves the focus
    }
    const run = table.get(`${view()} ${key}`) ?? table.get(`both ${key}`);
    const digit = /^(?:Digit|Numpad)(\d)$/.exec(event.code);
    if (run) {
      if (run(key) === false) return; // nothing to do: the browser's own action
    } else if (digit && view() === "photo" && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      actions.photo.selectPosition((Number(digit[1]) + 9) % 10);
    } else return;
    event.preventDefault();
  });
}

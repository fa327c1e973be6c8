// The open photo → the panel at its side: state, objects, the list of keypoints, what can be done to them.

import { describe, setBadge } from "./cell.js";
import { $, element, percent, setAttribute, setText, splitPath } from "./dom.js";
import { icon } from "./icons.js";
import { photoState, queue } from "./order.js";
import { kindOf, pointIcon, stateText } from "./shapes.js";
import { store } from "./store.js";

let actions = {};
let rows = []; // {keypoint, node, mark, name, state}
let rowsKey = "";
let objectsKey = "";

/** Set the panel up. actions: {select(keypoint), selectObject(id), chooseCategory(id), draw(), deleteObject()}. */
export function startPanel(given) {
  actions = given;
  $("points").addEventListener("click", (event) => {
    const row = event.target.closest("li");
    if (row) actions.select(Number(row.dataset.id));
  });
}

/** Show a photo: {photo, known, objects, instance, open, category}; known: its detail has been loaded. */
export function showPanel(shown) {
  showHead(shown);
  showObjects(shown);
  showPoints(shown);
  showActions(shown);
}

function showHead({ photo, objects, instance, known }) {
  const state = photoState(photo);
  const [name, folder] = splitPath(photo.path);
  setBadge($("photo-badge").parentNode, state);
  setText($("photo-name"), name);
  $("photo-name").title = folder + name;
  const object = objects.find((one) => one.id === instance);
  const waiting = queue().length;
  const notes = [known || photo.problem ? photo.problem ?? describe(photo, state) : "loading…"];
  if (object?.mirrored) notes.push("seen from the other side");
  if (waiting) notes.push(`${waiting.toLocaleString("en")} to review`);
  setText($("photo-state"), notes.join(" · "));
  $("reopen").hidden = state !== "reviewed";
}

function showObjects({ objects, instance, open, category }) {
  const node = $("objects");
  const { categories } = store.project;
  const key = JSON.stringify([objects.map((one) => [one.id, one.label]), instance, open.drawing, open.category, category?.id, categories]);
  if (key === objectsKey) return;
  objectsKey = key;
  const chips = objects.map((one) => element("button", {
    type: "button", className: "chip", textContent: one.label, "aria-pressed": one.id === instance,
    onclick: () => actions.selectObject(one.id),
  }));
  if (!objects.length && categories.length === 1) chips.push(element("span", { className: "chip-text", textContent: category?.name }));
  const tools = [];
  if (categories.length > 1) {
    const select = element("select", { "aria-label": "Category of a new object", title: "Category of a new object" },
      ...categories.map((one) => element("option", { value: one.id, textContent: one.name })));
    select.value = String(open.category ?? category?.id);
    select.addEventListener("change", () => actions.chooseCategory(Number(select.value)));
    tools.push(select);
  }
  tools.push(tool("box", "Draw a box around an object (B)", actions.draw, open.drawing));
  if (objects.length) tools.push(tool("trash", "Remove the selected object", actions.deleteObject));
  node.replaceChildren(element("div", { className: "chips" }, ...chips), element("div", { className: "tools" }, ...tools));
}

function tool(name, label, onclick, pressed = null) {
  return element("button", { type: "button", className: "tool", title: label, "aria-label": label.replace(/ \(.\)$/, ""),
    "aria-pressed": pressed, onclick }, icon(name));
}

function buildRows(category) {
  const key = JSON.stringify(category?.keypoints ?? []);
  if (key === rowsKey) return;
  rowsKey = key;
  rows = (category?.keypoints ?? []).map((keypoint, i) => {
    const mark = element("span", { className: "row-mark" });
    const state = element("span", { className: "row-state" });
    const node = element("li", { role: "option", id: `point-${keypoint.id}`, "data-id": keypoint.id },
      element("kbd", { textContent: i < 10 ? String((i + 1) % 10) : "", "aria-hidden": "true" }), mark,
      element("span", { className: "row-name", textContent: keypoint.name }), state);
    return { keypoint, node, mark, state, key: "" };
  });
  $("points").replaceChildren(...rows.map((row) => row.node));
}

const UNKNOWN = { source: null, visibility: 0, x: null, y: null, confidence: null, is_match: false };

function rowText(point, kind) {
  if (point.source === "prediction") return kind.unsure ? `${percent(point.confidence ?? 0)} ?` : percent(point.confidence ?? 0);
  if (kind.absent) return "not there";
  return kind.hidden ? "hidden" : "";
}

function showPoints({ objects, instance, open, category }) {
  buildRows(category);
  const object = objects.find((one) => one.id === instance);
  const points = new Map(object?.points.map((point) => [point.keypoint_id, point]));
  for (const row of rows) {
    const point = points.get(row.keypoint.id) ?? UNKNOWN;
    const selected = row.keypoint.id === open.keypoint;
    const key = `${point.source} ${point.visibility} ${point.is_match} ${point.confidence}`;
    if (row.key !== key) {
      row.key = key;
      const kind = kindOf(point);
      row.mark.replaceChildren(pointIcon(kind));
      setText(row.state, rowText(point, kind));
      row.node.classList.toggle("unsure", kind.unsure);
      row.node.classList.toggle("absent", kind.absent);
      row.node.title = stateText(point);
      setAttribute(row.node, "aria-label", `${row.keypoint.name}: ${stateText(point)}`);
    }
    if ((row.node.getAttribute("aria-selected") === "true") !== selected) {
      setAttribute(row.node, "aria-selected", selected);
      if (selected) row.node.scrollIntoView({ block: "nearest" });
    }
  }
  setAttribute($("points"), "aria-activedescendant", open.keypoint === null ? null : `point-${open.keypoint}`);
}

function showActions({ objects, instance, open, category, photo, known }) {
  const object = objects.find((one) => one.id === instance);
  const point = object?.points.find((one) => one.keypoint_id === open.keypoint) ?? UNKNOWN;
  const kind = kindOf(point);
  const selected = open.keypoint !== null;
  $("point-keep").disabled = !selected || !kind.placed || point.source !== "prediction";
  $("point-hidden").disabled = !selected || !kind.placed;
  $("point-absent").disabled = !selected || (kind.absent && point.source !== null);
  $("point-back").disabled = !selected || ["prediction", null].includes(point.source);
  setAttribute($("point-hidden"), "aria-pressed", kind.hidden);
  const onlyNext = photo.state === "reviewed" || Boolean(photo.problem);
  setText($("accept").firstElementChild, onlyNext ? "Next" : "Accept");
  $("accept").disabled = !known || (!onlyNext && !objects.length);
  $("skip").disabled = photo.state === "reviewed";
  showHint({ open, category, kind, objects, photo });
}

/** What a click on the photo does now. */
function showHint({ open, category, kind, objects, photo }) {
  const position = category?.keypoints.findIndex((one) => one.id === open.keypoint) ?? -1;
  const hint = $("hint");
  let parts = null;
  if (photo.problem) parts = null;
  else if (open.drawing) parts = ["Drag a box around the object", "Esc: do not"];
  else if (position >= 0 && kind.absent) parts = [category.keypoints[position].name, "not there; a click places it"];
  else if (position >= 0 && !kind.placed) {
    parts = [`Click: ${category.keypoints[position].name}`, `${position + 1} of ${category.keypoints.length} · X: not there`];
  } else if (photo.state !== "reviewed" && objects.length) {
    const points = objects.flatMap((one) => one.points);
    const unsure = points.filter((point) => kindOf(point).unsure).length;
    if (unsure) parts = [`${unsure} unsure`, kind.unsure ? "Accept: not there · Here: keep" : "Accept: not there · Select one to keep it"];
    else if (photo.state === "marked" && points.every((point) => point.source !== null)) parts = ["All keypoints are placed", "Accept, or Enter"];
  }
  hint.hidden = parts === null;
  if (!parts) return;
  if (hint.dataset.text === parts.join()) return;
  hint.dataset.text = parts.join();
  hint.replaceChildren(element("strong", { textContent: parts[0] }), element("span", { textContent: parts[1] }));
}

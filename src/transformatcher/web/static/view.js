// The session's state → photos, markers, captions and the list of points.

import { $, element, page, photoName, photoOf, pointOf } from "./page.js";
import { makeSource, Stage } from "./stage.js";

const percent = (p) => `${Math.round(100 * p)} %`;

/** The confidence of a prediction as text; a model without calibration has only the sharpness of its heat map. */
function confidenceText(prediction) {
  if (prediction.pinned) return prediction.x === null ? "not visible (set by you)" : "set by you";
  if (!page.server.calibrated) return `sharpness ${prediction.confidence.toFixed(2)}`;
  const confidence = percent(prediction.confidence);
  return prediction.is_match ? `confidence ${confidence}` : `no match (${confidence})`;
}

const kindOf = (prediction) => (prediction.pinned ? "pinned" : prediction.is_match ? "predicted" : "no-match");

// ------------------------------------------------------------------ photos

/** Add and remove photos as the state says. `actions` is what the user can do; see actions.js. */
export function showPhotos(actions) {
  const { photos, points, source } = page.state;
  const present = new Set(photos.map((p) => p.id));
  for (const [id, entry] of page.stages) {
    if (!present.has(id)) {
      entry.stage.showOverlay(null);
      (entry.card ?? entry.stage.node).remove();
      page.stages.delete(id);
    }
  }
  for (const photo of photos) {
    if (!page.stages.has(photo.id)) (photo.id === source ? addSource : addTarget)(photo, actions);
  }
  const targets = photos.length - (source ? 1 : 0);
  $("source-name").textContent = photoName(source);
  $("source-drop").hidden = Boolean(source);
  $("source-hint").hidden = !source;
  $("targets-drop").hidden = targets > 0;
  $("targets-hint").hidden = targets === 0 || points.length === 0;
  $("targets-title").textContent = targets > 1 ? `${targets} targets` : "Targets";
}

function addSource(photo, actions) {
  const stage = new Stage(photo, page.api.imageUrl(photo.id), {
    move: actions.movePoint,
    remove: actions.removePoint,
    select: actions.select,
  });
  makeSource(stage, { hover: actions.hover, leave: actions.leave, click: actions.addPoint });
  page.stages.set(photo.id, { stage });
  $("source-stage").append(stage.node);
}

function addTarget(photo, actions) {
  const stage = new Stage(photo, page.api.imageUrl(photo.id), {
    move: (id, [x, y]) => actions.pin(id, photo.id, { x, y }),
    remove: (id) => actions.undoOrHide(id, photo.id),
    select: actions.select,
  });
  const remove = element("button",
    { type: "button", className: "plain", title: "Remove this photo", "aria-label": `Remove ${photo.name}` }, "✕");
  const title = element("span", { className: "point-name" });
  const confidence = element("span", { className: "confidence" });
  const hide = element("button", { type: "button", className: "small" }, "Not visible");
  const undo = element("button", { type: "button", className: "small" }, "Undo");
  const note = element("p", { className: "blend-note" });
  remove.addEventListener("click", () => actions.removePhoto(photo));
  hide.addEventListener("click", () => actions.pin(page.active, photo.id, {}));
  undo.addEventListener("click", () => actions.undoOrHide(page.active, photo.id));
  const card = element("article", { className: "card", "aria-label": photo.name },
    element("div", { className: "heading" }, element("h3", { className: "name" }, photo.name), remove),
    stage.node,
    element("div", { className: "caption" }, title, confidence, hide, undo),
    note);
  page.stages.set(photo.id, { stage, card, title, confidence, hide, undo, note });
  $("targets").append(card);
}

// ------------------------------------------------------------------ markers and captions

export function showMarkers() {
  const { points, source } = page.state;
  for (const [id, { stage }] of page.stages) {
    const markers = points.map((point, index) => {
      const onSource = id === source;
      const position = onSource ? point : point.predictions[id];
      if (!position || position.x === null) return undefined;
      const text = onSource ? "on the source" : `on ${stage.photo.name}: ${confidenceText(position)}`;
      return {
        id: point.id,
        number: String(index + 1),
        position: [position.x, position.y],
        kind: onSource ? "set" : kindOf(position),
        label: `${point.name} ${text}`,
        active: point.id === page.active,
      };
    });
    stage.showMarkers(markers.filter(Boolean));
  }
  showCaptions();
}

/** Below each target: the prediction for the position under the pointer, or else for the selected point. */
export function showCaptions() {
  const point = pointOf(page.active);
  for (const [id, entry] of page.stages) {
    if (!entry.card) continue;
    const hovered = page.hover?.predictions?.[id];
    const prediction = hovered ?? point?.predictions[id];
    entry.stage.showHover(hovered ? [hovered.x, hovered.y] : null, hovered && !hovered.is_match ? "no-match" : "");
    showCaption(entry, id, prediction, hovered ? undefined : point);
    entry.note.textContent = $("blend").checked ? (page.blendNotes[id] ?? "") : "";
  }
}

/** `point` is undefined while the prediction is for the position under the pointer. */
function showCaption({ stage, title, confidence, hide, undo }, photo, prediction, point) {
  title.replaceChildren();
  confidence.className = "confidence";
  if (prediction) {
    const number = page.state.points.indexOf(point) + 1;
    if (point) title.append(element("b", { className: "number" }, String(number)), ` ${point.name}`);
    else title.append("Under the pointer");
    const fromTarget = !prediction.pinned && prediction.reference !== page.state.source;
    confidence.textContent = confidenceText(prediction) + (fromTarget ? `, from ${photoName(prediction.reference)}` : "");
    confidence.classList.add(kindOf(prediction));
  } else if (!page.state.source) {
    confidence.textContent = "waiting for a source photo";
  } else {
    confidence.textContent = photoOf(photo)?.ready ? "" : "matching…";
  }
  hide.hidden = !prediction || !point || (prediction.pinned && prediction.x === null);
  undo.hidden = !prediction || !point || !prediction.pinned;
  if (point) {
    hide.setAttribute("aria-label", `${point.name} is not visible on ${stage.photo.name}`);
    undo.setAttribute("aria-label", `Undo the correction of ${point.name} on ${stage.photo.name}`);
  }
}

// ------------------------------------------------------------------ the list of points

export function showPoints(actions) {
  const { points } = page.state;
  $("points-panel").hidden = points.length === 0;
  $("points-count").textContent = points.length ? `(${points.length})` : "";
  $("export").disabled = points.length === 0;
  const list = $("points");
  const rows = new Map([...list.children].map((row) => [Number(row.dataset.id), row]));
  points.forEach((point, index) => {
    const row = rows.get(point.id) ?? pointRow(point, actions);
    rows.delete(point.id);
    const [number, input, summary, remove] = row.children;
    number.textContent = String(index + 1);
    if (document.activeElement !== input) input.value = point.name;
    input.setAttribute("aria-label", `Name of point ${index + 1}`);
    remove.setAttribute("aria-label", `Delete ${point.name}`);
    summary.textContent = summaryText(point);
    row.classList.toggle("active", point.id === page.active);
    if (list.children[index] !== row) list.insertBefore(row, list.children[index] ?? null);
  });
  for (const row of rows.values()) row.remove();
}

function summaryText(point) {
  const predictions = Object.values(point.predictions);
  const pinned = predictions.filter((p) => p.pinned).length;
  const unmatched = predictions.filter((p) => !p.is_match && !p.pinned).length;
  return [pinned && `${pinned} set`, unmatched && `${unmatched} no match`].filter(Boolean).join(", ");
}

function pointRow({ id, name }, actions) {
  const input = element("input", { value: name, maxLength: 80, spellcheck: false });
  const remove = element("button", { type: "button", className: "plain", title: "Delete this point" }, "✕");
  const row = element("li", {},
    element("b", { className: "number" }), input, element("span", { className: "summary" }), remove);
  row.dataset.id = String(id);
  const currentName = () => pointOf(id)?.name ?? "";
  input.addEventListener("focus", () => actions.select(id));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") input.blur();
    if (event.key === "Escape") {
      input.value = currentName();
      input.blur();
    }
  });
  input.addEventListener("change", async () => {
    const newName = input.value.trim();
    if (newName === currentName()) return;
    await actions.renamePoint(id, newName);
    input.value = currentName();
  });
  row.addEventListener("click", () => actions.select(id));
  remove.addEventListener("click", (event) => {
    event.stopPropagation();
    actions.removePoint(id);
  });
  return row;
}

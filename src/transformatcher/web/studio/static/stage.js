// The open photo on a canvas: what is shown, zoom and pan, and what the pointer does there.

import { thumbnailUrl } from "./api.js";
import { $, atNextFrame, clamp, setText, unit } from "./dom.js";
import { drawScene } from "./draw.js";
import { photoImage } from "./images.js";
import { listenToPointers } from "./pointer.js";
import { settings } from "./settings.js";
import { kindOf } from "./shapes.js";
import { on } from "./store.js";
import { fitView, panView, toPhoto, toStage, viewOf, zoomView } from "./viewport.js";

const REACH = { mouse: 11, pen: 14, touch: 26 }; // how near to a point a pointer takes hold of it
const ON_POINT = 5; // a click that near to a point means this point
const CORNER_REACH = { mouse: 9, pen: 12, touch: 24 };
export const ZOOM_STEP = 1.35;
const HINT_HEIGHT = 64; // under the pointer, the hint gives way

let host = {};
let canvas, node, pointers;
const stage = { width: 1, height: 1 };
let one = 1; // CSS pixels of a pixel of the design
let photo = null; // {id, width, height}
let view = { scale: 1, x: 0, y: 0 };
let fitted = true;
let picture = null; // of the photo; its thumbnail until it is loaded
let loaded = false;
let model = { objects: [], instance: null, keypoint: null, drawing: false };
let heat = null; // {image, box}: where else the selected keypoint may be
let hover = null;
let drag = null; // {instance, keypoint, dx, dy} or {instance, corner} or {rubber}
let loupe = null;

/** Set the stage up. given: {select(instance, keypoint), click(x, y), move(instance, keypoint, x, y), box(instance, box),
 * newBox(box), drawn()}; positions in pixels of the photo. */
export function startStage(given) {
  host = given;
  node = $("stage");
  canvas = $("canvas");
  new ResizeObserver(resize).observe(node);
  pointers = listenToPointers(node, {
    pick, start, drag: dragTo, drop, cancel: endDrag, click, doubleClick, hover: hoverAt, pan, zoom,
  });
  on("settings", redraw);
}

/** Show a photo; the same photo keeps its view. */
export function showPhoto(summary) {
  const same = photo?.id === summary.id && photo.width === (summary.width ?? photo.width);
  if (same) return;
  endDrag();
  const entry = photoImage(summary, { urgent: true });
  const known = summary.width ? summary : { width: 4, height: 3 };
  photo = { id: summary.id, width: known.width, height: known.height };
  picture = null;
  loaded = false;
  heat = hover = null;
  $("stage-problem").hidden = true;
  const mine = photo;
  const show = () => {
    if (photo !== mine) return;
    picture = entry.image;
    loaded = true;
    if (!summary.width) Object.assign(photo, { width: picture.naturalWidth, height: picture.naturalHeight });
    if (!summary.width) fit();
    redraw();
    host.drawn();
  };
  if (summary.problem) {
    setText($("stage-problem"), summary.problem);
    $("stage-problem").hidden = false;
  } else if (entry.ready) show();
  else {
    showThumbnail(summary, mine);
    entry.promise.then(show, () => {
      if (photo !== mine) return;
      setText($("stage-problem"), "This photo could not be loaded.");
      $("stage-problem").hidden = false;
      photo = null; // the next showPhoto tries again
    });
  }
  fit();
}

function showThumbnail(summary, mine) {
  const small = new Image();
  small.src = thumbnailUrl(summary);
  small.decode().then(() => {
    if (photo !== mine || picture) return;
    picture = small;
    redraw();
  }, () => {});
}

/** Whether the person sees the photo itself. */
export const isShown = (id) => photo?.id === id && loaded;

/** What to draw on the photo: {objects, instance, keypoint, drawing}. */
export function showModel(given) {
  model = given;
  node.classList.toggle("placing", model.keypoint !== null || model.drawing);
  redraw();
}

/** Lay a picture over a part of the photo: {image, box}, or null. */
export function showHeat(given) {
  heat = given;
  redraw();
}

// ---------------------------------------------------------------- drawing

function resize() {
  const before = { ...stage };
  one = unit();
  stage.width = Math.max(node.clientWidth, 1);
  stage.height = Math.max(node.clientHeight, 1);
  const ratio = window.devicePixelRatio;
  canvas.width = Math.round(stage.width * ratio);
  canvas.height = Math.round(stage.height * ratio);
  if (!photo) return;
  if (fitted) view = fitView(photo, stage);
  else view = panView(view, (stage.width - before.width) / 2, (stage.height - before.height) / 2, photo, stage);
  draw(); // at once: the canvas is empty now
}

function draw() {
  if (!photo || stage.width <= 1) return;
  const ctx = canvas.getContext("2d");
  const ratio = (canvas.width / stage.width) * one;
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  const inUnits = (sizes) => Object.fromEntries(Object.entries(sizes).map(([name, value]) => [name, value / one]));
  drawScene(ctx, {
    stage: inUnits(stage), view: inUnits(view), photo, image: picture, heat, objects: shownObjects(), instance: model.instance, keypoint: model.keypoint, hover,
    names: settings.names, skeleton: settings.skeleton, rubber: drag?.rubber ?? null, loupe: loupe && inUnits(loupe),
  });
  setText($("zoom-fit"), `${Math.round(100 * view.scale)} %`);
  node.dataset.transform = [view.scale, view.x, view.y].join(" "); // where a pixel of the photo is, for tests of the page
}

const redraw = atNextFrame(draw);

/** The objects with what is being dragged at its present place. */
function shownObjects() {
  if (!drag || drag.rubber) return model.objects;
  return model.objects.map((object) => {
    if (object.id !== drag.instance) return object;
    if (drag.corner !== undefined) return { ...object, box: drag.box };
    const points = object.points.map((point) => {
      if (point.keypoint_id !== drag.keypoint) return point;
      const visibility = point.visibility || 2;
      return { ...point, x: drag.x, y: drag.y, source: "person", visibility, is_match: true };
    });
    return { ...object, points };
  });
}

// ---------------------------------------------------------------- view

/** Show the whole photo. */
export function fit() {
  fitted = true;
  if (photo) view = fitView(photo, stage);
  redraw();
}

function zoom(factor, x, y) {
  if (!photo) return;
  fitted = false;
  view = zoomView(view, factor, x, y, photo, stage);
  redraw();
}

/** Zoom about the selected point, or the middle. */
export function zoomBy(factor) {
  const object = model.objects.find((one) => one.id === model.instance);
  const point = object?.points.find((one) => one.keypoint_id === model.keypoint);
  const at = point && kindOf(point).placed ? toStage(view, point.x, point.y) : [stage.width / 2, stage.height / 2];
  zoom(factor, clamp(at[0], 0, stage.width), clamp(at[1], 0, stage.height));
}

function pan(dx, dy) {
  if (!photo) return;
  fitted = false;
  view = panView(view, dx, dy, photo, stage);
  redraw();
}

/** Bring a point of the photo into sight. */
export function bringIntoSight(point) {
  if (photo) view = viewOf(view, point, photo, stage);
}

// ---------------------------------------------------------------- pointer

const inPhoto = (x, y) => {
  const [px, py] = toPhoto(view, x, y);
  return [clamp(px, 0, photo.width), clamp(py, 0, photo.height)];
};

function pick(x, y, type) {
  if (!photo) return { kind: "empty" };
  if (model.drawing) return { kind: "box" };
  let best = { kind: "empty" };
  let least = REACH[type] * one;
  for (const object of model.objects) {
    for (const point of object.points) {
      if (!kindOf(point).placed) continue;
      const [px, py] = toStage(view, point.x, point.y);
      const own = object.id === model.instance ? 0 : 2; // of two, the one of the selected object
      const distance = Math.hypot(px - x, py - y) + own;
      if (distance < least) {
        least = distance;
        best = { kind: "point", instance: object.id, keypoint: point.keypoint_id, dx: point.x, dy: point.y };
      }
    }
  }
  if (best.kind === "point") return best;
  const selected = model.objects.find((object) => object.id === model.instance);
  const corner = selected?.box ? cornerAt(selected.box, x, y, type) : -1;
  return corner < 0 ? best : { kind: "corner", instance: selected.id, corner, box: selected.box };
}

function cornerAt([x0, y0, x1, y1], x, y, type) {
  return [[x0, y0], [x1, y0], [x0, y1], [x1, y1]].findIndex(([cx, cy]) => {
    const [sx, sy] = toStage(view, cx, cy);
    return Math.hypot(sx - x, sy - y) < CORNER_REACH[type] * one;
  });
}

function start(what, x, y) {
  const [px, py] = toPhoto(view, x, y);
  if (what.kind === "point") {
    drag = { instance: what.instance, keypoint: what.keypoint, dx: what.dx - px, dy: what.dy - py, x: what.dx, y: what.dy };
    host.select(what.instance, what.keypoint);
  } else if (what.kind === "corner") drag = { instance: what.instance, corner: what.corner, box: what.box };
  else if (what.kind === "box") drag = { from: inPhoto(x, y), rubber: null };
}

function dragTo(what, x, y, type) {
  if (!drag) return;
  const [px, py] = toPhoto(view, x, y);
  if (what.kind === "point") {
    drag.x = clamp(px + drag.dx, 0, photo.width);
    drag.y = clamp(py + drag.dy, 0, photo.height);
    if (type === "touch") {
      const [lx, ly] = toStage(view, drag.x, drag.y);
      loupe = { x: lx, y: ly };
    }
  } else if (what.kind === "corner") {
    const [cx, cy] = inPhoto(x, y);
    const fixed = [[2, 3], [0, 3], [2, 1], [0, 1]][what.corner]; // the opposite corner
    drag.box = boxOf([cx, cy], [what.box[fixed[0]], what.box[fixed[1]]]);
  } else drag.rubber = boxOf(drag.from, inPhoto(x, y));
  redraw();
}

const boxOf = ([ax, ay], [bx, by]) => [Math.min(ax, bx), Math.min(ay, by), Math.max(ax, bx), Math.max(ay, by)];

function drop(what) {
  const done = drag;
  endDrag();
  if (!done) return;
  if (what.kind === "point") host.move(done.instance, done.keypoint, done.x, done.y);
  else if (what.kind === "corner") host.box(done.instance, done.box);
  else if (done.rubber) host.newBox(done.rubber);
}

function endDrag() {
  drag = loupe = null;
  redraw();
}

/** Give up the drag under way; true if there was one. */
export const cancelDrag = () => pointers.cancel();

function click(what, x, y, type) {
  if (what.kind === "point" && !(type !== "touch" && isBeside(what, x, y))) host.select(what.instance, what.keypoint);
  else if (photo && what.kind !== "box") {
    const [px, py] = toPhoto(view, x, y);
    if (px >= 0 && py >= 0 && px <= photo.width && py <= photo.height) host.click(px, py);
  }
}

/** Whether a click near a point places the selected keypoint there: beside its own prediction, or, if nothing is known of
 * it yet, beside another point; a tap is not that exact. */
function isBeside({ instance, keypoint, dx, dy }, x, y) {
  if (model.keypoint === null) return false;
  const object = model.objects.find((one) => one.id === model.instance);
  const source = object?.points.find((point) => point.keypoint_id === model.keypoint)?.source ?? null;
  if (instance === model.instance && keypoint === model.keypoint) return source === "prediction";
  const [px, py] = toStage(view, dx, dy);
  return source === null && Math.hypot(px - x, py - y) > ON_POINT * one;
}

function doubleClick(x, y) {
  if (model.keypoint !== null || model.drawing) return; // it was a click that places a point
  if (fitted) zoom(2.5, x, y);
  else fit();
}

function hoverAt(x, y) {
  const what = x === null ? { kind: "empty" } : pick(x, y, "mouse");
  node.dataset.over = what.kind;
  $("hint").classList.toggle("away", y !== null && y < HINT_HEIGHT * one);
  const next = what.kind === "point" ? { instance: what.instance, keypoint: what.keypoint } : null;
  if (next?.keypoint === hover?.keypoint && next?.instance === hover?.instance) return;
  hover = next;
  redraw();
}

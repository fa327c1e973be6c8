// The open photo: which object and keypoint are selected, and what a person does to them.

import { $, clamp } from "./dom.js";
import * as edits from "./edits.js";
import { followHeat } from "./heat.js";
import { photoImage } from "./images.js";
import { announce, showError, toast } from "./messages.js";
import { isOpen, nextInReview, nextOf, previousOf, queue, visit } from "./order.js";
import { showPanel } from "./panel.js";
import { kindOf, stateText } from "./shapes.js";
import { bringIntoSight, cancelDrag, isShown, showModel, showPhoto, startStage } from "./stage.js";
import { categoryOf, loadDetail, on, store } from "./store.js";
import { setInView } from "./sync.js";

const PRELOAD = 2; // photos of the review that are loaded ahead

/** What is open: the id of the photo, of the selected object (null: none yet) and keypoint (null: none). */
export const open = { id: null, instance: null, keypoint: null, category: null, drawing: false };
let chosen = false; // whether a first keypoint has been selected
let arrived = () => {}; // called with the photo that is shown
let leave = () => {};

/** Set the view up. given: {opened(id), leave()}: tell that a photo is open now; go back to the grid. */
export function startPhoto(given) {
  arrived = given.opened;
  leave = given.leave;
  startStage({
    select: (instance, keypoint) => select(keypoint, instance), click: placeAt, move: movePoint, box: changeBox, newBox,
    drawn: () => { refresh(); preload(); },
  });
  on("detail", (id) => { if (id === open.id) refresh(); });
  on("photos", (changed) => { if (changed.has(open.id)) loadOpen(); });
  on("project", () => { if (open.id !== null) refresh(); });
  on("settings", () => { if (open.id !== null) refresh(); });
}

// ---------------------------------------------------------------- which photo

/** Open a photo. */
export function openPhoto(id) {
  if (id === null || !store.photos.has(id)) return;
  cancelDrag();
  if (id !== open.id) {
    Object.assign(open, { id, instance: null, keypoint: null, drawing: false });
    chosen = false;
  }
  visit(id);
  arrived(id);
  showPhoto(store.photos.get(id));
  loadOpen();
  refresh();
  setInView([id, ...queue(id).slice(0, PRELOAD)]);
  const photo = store.photos.get(id);
  announce(photo.path);
}

/** The grid is shown: nothing is open. */
export function closePhoto() {
  cancelDrag();
  Object.assign(open, { id: null, instance: null, keypoint: null, drawing: false });
}

function loadOpen() {
  const { id } = open;
  if (id === null || !store.photos.has(id)) return;
  showPhoto(store.photos.get(id));
  loadDetail(id, { first: true }).catch((error) => { if (open.id === id && !error.temporary) showError(error); });
}

function preload() {
  for (const id of queue(open.id).slice(0, PRELOAD)) {
    const photo = store.photos.get(id);
    if (!photo.problem) photoImage(photo);
    loadDetail(id).catch(() => {});
  }
}

export const nextPhoto = () => goTo(nextOf(open.id), "This is the last photo.");
export const previousPhoto = () => goTo(previousOf(open.id), "This is the first photo.");

function goTo(id, otherwise) {
  if (id === null) toast(otherwise);
  else openPhoto(id);
}

/** Go to the photo that the server suggests. */
export function openSuggestion() {
  const id = store.project.suggestion;
  if (store.photos.has(id)) openPhoto(id);
  else toast("There is no suggestion yet.");
}

function goOn() {
  const next = nextInReview(open.id);
  if (next !== null) openPhoto(next);
  else {
    toast("All photos are done.");
    leave();
  }
}

// ---------------------------------------------------------------- what is selected

const detail = () => (open.id === null ? undefined : edits.shownDetail(open.id));
const selectedObject = () => detail()?.instances.find((one) => one.id === edits.realId(open.instance)) ?? null;

/** The category of the selected object, or that which a new object gets. */
export function openCategory() {
  const id = selectedObject()?.category_id ?? open.category ?? store.project.categories[0]?.id;
  return categoryOf(id) ?? null;
}

function selectedPoint() {
  return selectedObject()?.points.find((point) => point.keypoint_id === open.keypoint) ?? null;
}

/** Redraw everything that shows the open photo. */
function refresh() {
  const shown = detail();
  const photo = store.photos.get(open.id);
  if (!photo) return;
  if (shown) settleSelection(shown);
  $("photo-view").dataset.ready = String(shown !== undefined && isShown(open.id));
  const objects = (shown?.instances ?? []).map((one) => labelled(one, shown)).filter((one) => one.category);
  const instance = open.instance === null ? null : edits.realId(open.instance);
  showModel({ objects, instance, keypoint: open.keypoint, drawing: open.drawing });
  followHeat(instance, selectedPoint());
  showPanel({ photo: shown?.photo ?? photo, known: shown !== undefined, objects, instance, open, category: openCategory() });
}

/** Objects of one category are numbered. */
function labelled(object, { instances }) {
  const category = categoryOf(object.category_id);
  const same = instances.filter((one) => one.category_id === object.category_id);
  const number = same.length > 1 ? ` ${same.indexOf(object) + 1}` : "";
  return { ...object, category, label: `${category?.name ?? ""}${number}` };
}

/** The selected object and keypoint exist; at first, they are those that need a decision. */
function settleSelection({ instances, photo }) {
  if (!instances.some((one) => one.id === edits.realId(open.instance))) {
    open.instance = (instances.find((one) => !one.reviewed) ?? instances[0])?.id ?? null;
  }
  const category = openCategory();
  if (!category?.keypoints.some((keypoint) => keypoint.id === open.keypoint)) open.keypoint = null;
  if (!chosen && category && photo.state !== "reviewed") open.keypoint = firstUnplaced();
  chosen ||= category !== null;
}

/** The first keypoint of which nothing is known, after a given one; null: there is none. */
function firstUnplaced(after = null) {
  const category = openCategory();
  if (!category) return null;
  const ids = category.keypoints.map((keypoint) => keypoint.id);
  const object = selectedObject();
  const known = new Set(object?.points.filter((point) => point.source !== null).map((point) => point.keypoint_id));
  const at = ids.indexOf(after) + 1;
  return [...ids.slice(at), ...ids.slice(0, at)].find((id) => id !== after && !known.has(id)) ?? null;
}

/** Select a keypoint, and the object that it belongs to. */
export function select(keypoint, instance = open.instance) {
  open.instance = instance;
  open.keypoint = keypoint;
  chosen = true;
  const point = selectedPoint();
  if (point && kindOf(point).placed) bringIntoSight(point);
  refresh();
  const name = openCategory()?.keypoints.find((one) => one.id === keypoint)?.name;
  if (name) announce(`${name}: ${point ? stateText(point) : "not placed"}`);
}

/** Select a keypoint by its position in the list. */
export function selectPosition(position) {
  const keypoint = openCategory()?.keypoints[position];
  if (keypoint) select(keypoint.id);
}

/** Select the keypoint after or before the selected one; false: there is none. */
export function selectStep(step) {
  const ids = openCategory()?.keypoints.map((keypoint) => keypoint.id) ?? [];
  const at = open.keypoint === null ? (step > 0 ? -1 : ids.length) : ids.indexOf(open.keypoint);
  const id = ids[at + step];
  if (id === undefined) return false;
  select(id);
  return true;
}

/** Select the next object. */
export function nextObject() {
  const objects = detail()?.instances ?? [];
  if (objects.length > 1) selectObject(objects[(objects.findIndex((one) => one.id === edits.realId(open.instance)) + 1) % objects.length].id);
}

export function selectObject(id) {
  open.instance = id;
  open.keypoint = firstUnplaced();
  refresh();
}

/** The category that the next object gets. */
export function chooseCategory(id) {
  open.category = id;
  open.keypoint = null;
  chosen = false;
  refresh();
}

// ---------------------------------------------------------------- marks

/** The selected object; a new one of the whole photo where there is none yet. */
function objectForMark() {
  if (selectedObject()) return open.instance;
  const category = openCategory();
  return category ? edits.addObject(open.id, category.id, null) : null;
}

function mark(visibility, position, { nudge = false, stay = false } = {}) {
  if (open.keypoint === null || !detail()) return;
  const wasUnknown = (selectedPoint()?.source ?? null) === null;
  open.instance = objectForMark();
  edits.setPoint(open.id, open.instance, open.keypoint, { visibility, ...position }, { nudge });
  if (!stay) moveOn(wasUnknown);
}

/** After a mark, the next keypoint without one is selected; in a review, where all have one, the same one stays. */
function moveOn(wasUnknown) {
  const next = firstUnplaced(open.keypoint);
  if (next !== null) select(next);
  else if (wasUnknown) {
    open.keypoint = null;
    refresh();
    announce("All keypoints are placed. Enter accepts the photo.");
  }
}

function placeAt(x, y) {
  if (!store.project.categories.length) return;
  if (open.keypoint === null) {
    toast("Pick a keypoint first: by its number, or with Tab.");
    return;
  }
  const { visibility = 2, source = null } = selectedPoint() ?? {};
  mark(source !== null && visibility === 1 ? 1 : 2, { x, y });
}

function movePoint(instance, keypoint, x, y) {
  open.instance = instance;
  open.keypoint = keypoint;
  mark(selectedPoint()?.visibility === 1 ? 1 : 2, { x, y }, { stay: true });
}

/** Move the selected point by pixels of the photo. */
export function nudge(dx, dy) {
  const point = selectedPoint();
  const photo = detail()?.photo;
  if (!point || !kindOf(point).placed || !photo.width) return false;
  const [x, y] = [clamp(point.x + dx, 0, photo.width), clamp(point.y + dy, 0, photo.height)];
  mark(point.visibility, { x, y }, { nudge: true, stay: true });
  const moved = selectedPoint();
  if (moved) bringIntoSight(moved);
  return true;
}

/** Hidden (visibility 1) or, if it is so already, visible. */
export function toggleHidden() {
  const point = selectedPoint();
  if (point && kindOf(point).placed) mark(point.visibility === 1 ? 2 : 1, { x: point.x, y: point.y }, { stay: true });
  else if (open.keypoint !== null) toast("Place the point first, then say that it is hidden.");
}

/** It is where it is shown: a prediction becomes a mark. */
export function keepPoint() {
  const point = selectedPoint();
  if (!point || !kindOf(point).placed) return;
  mark(point.visibility, { x: point.x, y: point.y }, { stay: true });
  const unsure = selectedObject().points.find((one) => kindOf(one).unsure);
  if (unsure) select(unsure.keypoint_id);
}

/** It is not on the photo. */
export function markAbsent() {
  mark(0, {});
}

/** Take back what was said of the selected keypoint. */
export function backToPrediction() {
  const point = selectedPoint();
  if (point && !["prediction", null].includes(point.source)) edits.clearPoint(open.id, open.instance, open.keypoint);
}

// ---------------------------------------------------------------- the photo

/** Accept all points as shown, and go on to the next photo of the review. */
export function accept() {
  const shown = detail();
  if (!shown || !(isShown(open.id) || shown.photo.problem)) {
    toast("The photo is still loading.");
    return;
  }
  if (shown.photo.state !== "reviewed" && !shown.photo.problem) { // what cannot be seen is passed over
    if (!shown.instances.length) {
      toast("Mark a keypoint first; S skips a photo with nothing to mark.");
      return;
    }
    edits.acceptPhoto(open.id);
  }
  goOn();
}

export function skip() {
  if (isOpen(open.id)) edits.skipPhoto(open.id);
  goOn();
}

export function reopen() {
  if (detail()?.photo.state !== "reviewed") return;
  edits.reopenPhoto(open.id);
  chosen = false;
}

// ---------------------------------------------------------------- objects

/** Draw a box for a new object, or stop doing so. */
export function toggleDrawing(drawing = !open.drawing) {
  open.drawing = drawing && openCategory() !== null && detail() !== undefined;
  refresh();
  if (open.drawing) announce("Drag a box around the object.");
}

function newBox(box) {
  const { photo, instances } = detail();
  open.drawing = false;
  const sides = [box[2] - box[0], box[3] - box[1]];
  if (Math.min(...sides) < 4 || !photo.width) {
    toast("A box has at least 4 × 4 pixels.");
    refresh();
    return;
  }
  // The first box of a photo says where its only object is, if nothing was marked on that.
  const only = instances.length === 1 && !instances[0].box ? instances[0] : null;
  if (only && only.points.every((point) => ["prediction", null].includes(point.source))) edits.setBox(open.id, only.id, box);
  else open.instance = edits.addObject(open.id, (categoryOf(open.category) ?? openCategory()).id, box);
  open.keypoint = firstUnplaced();
  refresh();
}

function changeBox(instance, box) {
  if (Math.min(box[2] - box[0], box[3] - box[1]) >= 4) edits.setBox(open.id, instance, box);
}

/** Remove the selected object. */
export function deleteObject() {
  if (!selectedObject()) return;
  edits.removeObject(open.id, open.instance);
  open.instance = null;
  chosen = false;
  refresh();
  toast("Object removed; Z brings it back.");
}

/** Give the keyboard to the photo. */
export const focusStage = () => $("stage").focus({ preventScroll: true });

// Filter, search and order → the photos of the grid, and which photo comes next in the review.

import { settings } from "./settings.js";
import { emit, on, store } from "./store.js";

const RANK = { unsure: 0, predicted: 0, marked: 0, unmarked: 1, reviewed: 2, failed: 3 };
const OPEN = new Set(["unsure", "predicted", "marked", "unmarked"]);

export const choice = { filter: "all", search: "" };

let byPath = null; // all summaries, by name
let shown = null; // ids of the list, in order
let positions = null; // id → position in it
let counted = null;
const passed = new Set(); // photos that were left without a decision: they come last
const decided = new Set(); // photos that were accepted or skipped, until the server has said so
const visited = []; // photos that were opened, in order
let at = -1; // the open one in visited

/** The state that the page shows: as the server's, with "unsure" apart from "predicted". */
export function photoState(photo) {
  if (photo.state !== "predicted") return photo.state;
  const unsure = photo.other_kind || (photo.sureness ?? 0) < store.project.threshold;
  return unsure ? "unsure" : "predicted";
}

function forget() {
  byPath = shown = positions = counted = null;
}

on("photos", (changed) => {
  for (const id of changed) decided.delete(id);
  const known = byPath;
  forget();
  const samePath = (id) => known[positionsByPath.get(id)]?.path === store.photos.get(id)?.path;
  if (known && [...changed].every((id) => store.photos.has(id) && samePath(id))) { // names are as before
    for (const id of changed) known[positionsByPath.get(id)] = store.photos.get(id);
    byPath = known;
  }
  emit("list");
});
on("rejected", (id) => decided.delete(id));
on("settings", (name) => { if (name === "sort") choose({}); });

const positionsByPath = new Map();

function allByPath() {
  if (byPath) return byPath;
  byPath = [...store.photos.values()].sort((a, b) => (a.path < b.path ? -1 : 1));
  positionsByPath.clear();
  byPath.forEach((photo, i) => positionsByPath.set(photo.id, i));
  return byPath;
}

/** Change filter or search. */
export function choose(change) {
  Object.assign(choice, change);
  shown = positions = null;
  passed.clear();
  emit("list");
}

/** How many photos are in each state: {all, unmarked, predicted, …}. */
export function counts() {
  if (counted) return counted;
  counted = { all: store.photos.size, unmarked: 0, predicted: 0, unsure: 0, marked: 0, reviewed: 0, failed: 0 };
  for (const photo of store.photos.values()) counted[photoState(photo)]++;
  return counted;
}

function sorted(photos) {
  if (settings.sort === "name") return photos;
  const keys = new Map(photos.map((photo) => [photo, RANK[photoState(photo)] * 10 + (photo.sureness ?? 2)]));
  return photos.sort((a, b) => keys.get(a) - keys.get(b)); // stable: equals stay by name
}

function select(filter, search) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return allByPath().filter((photo) => {
    if (filter !== "all" && photoState(photo) !== filter) return false;
    if (!words.length) return true;
    const path = photo.path.toLowerCase();
    return words.every((word) => path.includes(word));
  });
}

/** The ids of the photos in the grid, in order. */
export function list() {
  shown ??= sorted(select(choice.filter, choice.search)).map((photo) => photo.id);
  return shown;
}

/** Where a photo is in the list; -1 if it is not. */
export function positionOf(id) {
  positions ??= new Map(list().map((one, i) => [one, i]));
  return positions.get(id) ?? -1;
}

/** Whether a photo waits for a decision. */
export const isOpen = (id) => store.photos.has(id) && OPEN.has(photoState(store.photos.get(id)));

/** The photos that wait for a review, in the order of the list; if there are none in it, among all photos. */
export function queue(except = null) {
  const waits = (id) => id !== except && !decided.has(id) && isOpen(id);
  let ids = list().filter(waits);
  if (!ids.length) ids = sorted(allByPath().slice()).map((photo) => photo.id).filter(waits);
  if (settings.sort === "name" && except !== null) { // after the open one first, then from the start
    const path = store.photos.get(except)?.path ?? "";
    const later = ids.findIndex((id) => store.photos.get(id).path > path);
    if (later > 0) ids = [...ids.slice(later), ...ids.slice(0, later)];
  }
  const first = ids.filter((id) => !passed.has(id));
  if (first.length) return first;
  for (const id of ids) passed.delete(id); // all were passed over: once more from the start
  return ids;
}

/** A photo is opened. */
export function visit(id) {
  if (visited[at] === id) return;
  visited.splice(at + 1, Infinity, id);
  at = visited.length - 1;
}

/** The photo after the open one: of the review, or of the list when nothing is left to review; null: there is none. */
export function nextOf(id) {
  if (at < visited.length - 1) return visited[++at];
  passed.add(id);
  const next = queue(id)[0];
  if (next !== undefined) return next;
  return list()[positionOf(id) + 1] ?? null;
}

/** The photo that was open before, or that is before this one in the list; null: there is none. */
export function previousOf(id) {
  if (at > 0) return visited[--at];
  return list()[positionOf(id) - 1] ?? null;
}

/** The next photo of the review after a decision; null: all are done. */
export function nextInReview(id) {
  at = visited.length - 1;
  passed.delete(id);
  if (isOpen(id)) decided.add(id);
  return queue(id)[0] ?? null;
}

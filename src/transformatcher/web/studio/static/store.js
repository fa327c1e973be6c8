// What the server has said: the project, the summary of each photo, and details of those in use.

import { api } from "./api.js";

const MAX_DETAILS = 300;
const MAX_REQUESTS = 3; // at a time; a browser has six connections, of which one waits for changes

const listeners = new Map();

/** Call a function on each event of a name: "project", "photos" (a set of ids), "detail" (an id), "list" (the grid's
 * order), "settings" (a name), "unsaved" (a number), "rejected" (the id of a photo
 * whose change the server has refused), "online". */
export function on(event, listener) {
  if (!listeners.has(event)) listeners.set(event, []);
  listeners.get(event).push(listener);
}

export function emit(event, value) {
  for (const listener of listeners.get(event) ?? []) listener(value);
}

export const store = {
  project: null, // as GET /api/project
  photos: new Map(), // id → summary
  revision: -1, // of what has been received through /api/changes
  online: true,
};

const details = new Map(); // id → detail; those used last are at the end
const loading = new Map(); // id → {promise, run}
const waiting = []; // of those, not sent yet
let running = 0;

/** Take over the project from any answer, unless a later one has come before. */
export function receiveProject(project) {
  if (!project || (store.project && project.revision < store.project.revision)) return;
  store.project = project;
  emit("project", project);
}

/** Take over summaries; ``all``: those that are not among them have been removed. */
export function receivePhotos(summaries, { all = false } = {}) {
  const changed = new Set();
  if (all) {
    const ids = new Set(summaries.map((summary) => summary.id));
    for (const id of store.photos.keys()) {
      if (!ids.has(id)) {
        store.photos.delete(id);
        details.delete(id);
        changed.add(id);
      }
    }
  }
  for (const summary of summaries) {
    const known = store.photos.get(summary.id);
    if (known && known.revision >= summary.revision) continue;
    store.photos.set(summary.id, summary);
    changed.add(summary.id);
  }
  if (changed.size || all) emit("photos", changed);
}

export function receiveDetail(detail) {
  const { id, revision } = detail.photo;
  if ((details.get(id)?.photo.revision ?? -1) > revision) return;
  details.delete(id);
  details.set(id, detail);
  if (details.size > MAX_DETAILS) details.delete(details.keys().next().value);
  receivePhotos([detail.photo]);
  emit("detail", id);
}

/** The detail of a photo as the server sent it last, or undefined. */
export const knownDetail = (id) => details.get(id);

const isFresh = (id) => (details.get(id)?.photo.revision ?? -1) >= (store.photos.get(id)?.revision ?? 0);

/** Load the detail of a photo unless it is known and up to date; ``first``: before all others that wait. */
export function loadDetail(id, { first = false } = {}) {
  if (isFresh(id)) {
    const detail = details.get(id);
    details.delete(id);
    details.set(id, detail); // used last
    return Promise.resolve(detail);
  }
  const known = loading.get(id);
  if (known) {
    const at = waiting.indexOf(known);
    if (first && at > 0) waiting.unshift(...waiting.splice(at, 1));
    return known.promise;
  }
  const entry = { id };
  entry.promise = new Promise((resolve, reject) => Object.assign(entry, { resolve, reject }));
  entry.promise.catch(() => {}); // whoever needs the detail handles its own copy of the error
  loading.set(id, entry);
  if (first) waiting.unshift(entry);
  else waiting.push(entry);
  runWaiting();
  return entry.promise;
}

/** Leave out those that wait and that nobody looks at any more. */
export function cancelDetails(wanted) {
  for (let i = waiting.length - 1; i >= 0; i--) {
    const entry = waiting[i];
    if (wanted(entry.id)) continue;
    waiting.splice(i, 1);
    loading.delete(entry.id);
    entry.reject(new DOMException("not needed any more", "AbortError"));
  }
}

function runWaiting() {
  while (running < MAX_REQUESTS && waiting.length) {
    const entry = waiting.shift();
    running++;
    api.get(`/api/photos/${entry.id}`).then(
      (detail) => { loading.delete(entry.id); receiveDetail(detail); entry.resolve(detail); },
      (error) => { loading.delete(entry.id); entry.reject(error); },
    ).finally(() => { running--; runWaiting(); });
  }
}

/** Load everything anew. */
export async function loadAll() {
  const [project, photos] = await Promise.all([api.get("/api/project"), api.get("/api/photos?since=-1")]);
  store.project = null; // whatever its revision: it may be another project
  receivePhotos(photos.photos, { all: true });
  store.revision = photos.revision;
  receiveProject(project);
}

/** The category of an id; undefined if it was removed. */
export const categoryOf = (id) => store.project.categories.find((category) => category.id === id);

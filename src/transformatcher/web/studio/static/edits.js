// What a person does to photos: shown at once, sent in order, sent again while the server is away, never lost silently.

import { api } from "./api.js";
import { sleep } from "./dom.js";
import { hideBanner, showBanner, showError } from "./messages.js";
import { emit, knownDetail, receiveDetail, store } from "./store.js";

const NUDGE_MS = 350; // arrow keys: many steps become one change
const RETRY_MS = [400, 1000, 2000, 4000];

const pending = []; // {photo, key, apply, send, done, depends, notBefore, inFlight}
const realIds = new Map(); // objects that the page has added: its own negative id → the server's
let lastTemporary = 0;
let running = null;
let wake = () => {};

/** The server's id of an object that this page has added. */
export const realId = (id) => realIds.get(id) ?? id;

/** The detail of a photo with all changes that the server has not answered yet; undefined while it is not known. */
export function shownDetail(id) {
  const detail = knownDetail(id);
  const mine = pending.filter((edit) => edit.photo === id);
  if (!detail || !mine.length) return detail;
  const changed = structuredClone(detail);
  for (const edit of mine) edit.apply(changed);
  return changed;
}

/** How many changes are not saved yet. */
export const countUnsaved = () => pending.length;

function push(edit) {
  const last = pending.at(-1);
  if (edit.key && last?.key === edit.key && !last.inFlight) pending.pop(); // it is overtaken by this one
  else if (last) last.notBefore = 0;
  pending.push({ notBefore: 0, inFlight: false, ...edit });
  emit("detail", edit.photo);
  emit("unsaved", pending.length);
  wake();
  running ??= sendAll().finally(() => { running = null; });
}

async function sendAll() {
  let failures = 0;
  while (pending.length) {
    const edit = pending[0];
    const wait = edit.notBefore - Date.now();
    if (wait > 0) {
      await Promise.race([sleep(wait), new Promise((resolve) => { wake = resolve; })]);
      continue;
    }
    edit.inFlight = true;
    try {
      const answer = await edit.send();
      edit.done?.(answer);
      pending.shift();
      receiveDetail(answer);
      failures = 0;
      hideBanner("unsaved");
    } catch (error) {
      edit.inFlight = false;
      if (error.temporary) {
        failures++;
        showBanner("unsaved", `Not saved yet: ${error.message} Trying again…`, { closable: false });
        await sleep(RETRY_MS[Math.min(failures, RETRY_MS.length) - 1]);
        continue;
      }
      hideBanner("unsaved");
      pending.shift();
      for (let i = pending.length - 1; i >= 0; i--) { // what was done to an object that does not exist
        if (edit.adds !== undefined && pending[i].depends === edit.adds) pending.splice(i, 1);
      }
      showError(error);
      emit("rejected", edit.photo);
      await reload(edit.photo);
    }
    emit("detail", edit.photo);
    emit("unsaved", pending.length);
  }
}

/** Load a photo as the server has it, whatever is known of it. */
export async function reload(id) {
  const detail = await api.get(`/api/photos/${id}`).catch(() => null);
  if (detail) receiveDetail(detail);
}

/** Send everything now; resolves when all is saved. */
export async function flushEdits() {
  for (const edit of pending) edit.notBefore = 0;
  wake();
  await running;
}

// ---------------------------------------------------------------- the changes

const objectOf = (detail, id) => detail.instances.find((instance) => instance.id === realId(id));

function pointOf(detail, instance, keypoint) {
  return objectOf(detail, instance)?.points.find((point) => point.keypoint_id === keypoint);
}

const pointPath = (instance, keypoint) => `/api/instances/${realId(instance)}/points/${keypoint}`;

/** Place a keypoint, or say that it is hidden (visibility 1) or not there (0). nudge: more steps are likely to come. */
export function setPoint(photo, instance, keypoint, { visibility, x = null, y = null }, { nudge = false } = {}) {
  const position = visibility === 0 ? { x: null, y: null } : { x, y };
  push({
    photo, depends: instance, key: `${instance} ${keypoint}`, notBefore: nudge ? Date.now() + NUDGE_MS : 0,
    apply(detail) {
      const point = pointOf(detail, instance, keypoint);
      if (point) Object.assign(point, { source: "person", visibility, ...position, confidence: null, is_match: true });
      markBegun(detail);
    },
    send: () => api.put(pointPath(instance, keypoint), { visibility, ...position }),
  });
}

function markBegun(detail) {
  if (["unmarked", "predicted"].includes(detail.photo.state)) detail.photo = { ...detail.photo, state: "marked" };
}

/** Take back what was said of a keypoint: its prediction counts again. */
export function clearPoint(photo, instance, keypoint) {
  push({
    photo, depends: instance, key: `${instance} ${keypoint}`,
    apply(detail) {
      const point = pointOf(detail, instance, keypoint);
      if (point) Object.assign(point, { source: null, visibility: 0, x: null, y: null, confidence: null });
    },
    send: () => api.remove(pointPath(instance, keypoint)),
  });
}

/** Accept all points as they are shown; those that are unsure or not placed become “not there”. */
export function acceptPhoto(photo) {
  push({
    photo,
    apply(detail) {
      detail.photo = { ...detail.photo, state: "reviewed" };
      for (const instance of detail.instances) {
        instance.reviewed = true;
        for (const point of instance.points) {
          if (point.source !== null && point.source !== "prediction") continue;
          const there = point.source === "prediction" && point.is_match;
          const position = there ? {} : { x: null, y: null };
          Object.assign(point, { source: "accepted", visibility: there ? 2 : 0, is_match: true, confidence: null, ...position });
        }
      }
    },
    send: () => api.post(`/api/photos/${photo}/accept`),
  });
}

/** Review a photo again. */
export function reopenPhoto(photo) {
  push({
    photo,
    apply(detail) {
      detail.photo = { ...detail.photo, state: "marked" };
      for (const instance of detail.instances) instance.reviewed = false;
    },
    send: () => api.post(`/api/photos/${photo}/reopen`),
  });
}

/** Say that there is nothing to mark on a photo. */
export function skipPhoto(photo) {
  push({
    photo,
    apply(detail) { detail.photo = { ...detail.photo, state: "reviewed" }; },
    send: () => api.post(`/api/photos/${photo}/skip`, { skipped: true }),
  });
}

/** Add an object to a photo; returns the id that this page knows it by. */
export function addObject(photo, category, box) {
  const id = --lastTemporary;
  const { keypoints } = store.project.categories.find((one) => one.id === category);
  let known = null; // the objects before: if the answer is lost, the server sees that it has added this one already
  push({
    photo, adds: id,
    apply(detail) {
      if (objectOf(detail, id)) return;
      const points = keypoints.map((keypoint) => (
        { keypoint_id: keypoint.id, source: null, visibility: 0, x: null, y: null, confidence: null, is_match: false }));
      detail.instances.push({ id, category_id: category, box, reviewed: false, same_kind: null, mirrored: false, points });
    },
    send: () => {
      known ??= knownDetail(photo)?.instances.map((instance) => instance.id) ?? null;
      return api.post(`/api/photos/${photo}/instances`, { category_id: category, box, known });
    },
    done: (answer) => realIds.set(id, answer.instance),
  });
  return id;
}

/** Give an object another box. */
export function setBox(photo, instance, box) {
  push({
    photo, depends: instance, key: `${instance} box`,
    apply(detail) {
      const found = objectOf(detail, instance);
      if (found) found.box = box;
    },
    send: () => api.put(`/api/instances/${realId(instance)}/box`, { box }),
  });
}

/** Remove an object with its marks. */
export function removeObject(photo, instance) {
  push({
    photo, depends: instance,
    apply(detail) { detail.instances = detail.instances.filter((one) => one.id !== realId(instance)); },
    send: () => api.remove(`/api/instances/${realId(instance)}`),
  });
}

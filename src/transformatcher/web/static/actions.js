// What the user does to photos and points → requests → the new state on the page.

import { clearErrors, showError, showStatus } from "./messages.js";
import { hover, leave, refreshBlends, refreshHeatmaps } from "./overlays.js";
import { $, page, photoName, pointOf } from "./page.js";
import { showMarkers, showPhotos, showPoints } from "./view.js";

let running = 0; // requests

/** Send a request that changes the session, and show its answer, the new state. Returns undefined after an error. */
export async function change(send, { during = "", after = "" } = {}) {
  running++;
  if (during) showStatus(during, { busy: true });
  try {
    const answer = await send();
    clearErrors();
    showState(answer);
    if (!during || running === 1) showStatus(after);
    return answer;
  } catch (error) {
    showError(error);
    if (during) showStatus("");
    if (error.status !== 404 && error.status !== 0) showState(await page.api.read().catch(() => page.state));
    return undefined;
  } finally {
    running--;
  }
}

export function showState({ source, photos, points }) {
  page.state = { source, photos, points };
  if (!pointOf(page.active)) page.active = points.at(-1)?.id ?? null;
  showPhotos(actions);
  showMarkers();
  showPoints(actions);
  refreshHeatmaps();
  refreshBlends();
}

function select(id) {
  if (page.active === id) return;
  page.active = id;
  showMarkers();
  showPoints(actions);
  refreshHeatmaps();
}

async function addPoint([x, y]) {
  const answer = await change(() => page.api.addPoint(x, y), { after: "Point set." });
  if (answer) select(answer.added);
}

const movePoint = (id, [x, y]) => change(() => page.api.changePoint(id, { x, y }), { after: "Point moved." });
const renamePoint = (id, name) => change(() => page.api.changePoint(id, { name }), { after: `Renamed to ${name}.` });

async function removePoint(id) {
  const index = page.state.points.findIndex((p) => p.id === id);
  const name = page.state.points[index]?.name;
  const hadFocus = document.activeElement?.closest("#points, .stage");
  await change(() => page.api.removePoint(id), { after: `${name} deleted.` });
  if (!hadFocus || document.activeElement !== document.body) return;
  const next = $("points").children[Math.min(index, page.state.points.length - 1)]; // the next point gets the focus
  (next?.querySelector("button") ?? $("source-stage").firstElementChild)?.focus();
}

const removePhoto = ({ id, name }) => change(() => page.api.removePhoto(id), { after: `${name} removed.` });

const pin = (point, photo, position) =>
  change(() => page.api.pin(point, photo, position), {
    during: `Matching ${photoName(photo)} with the other targets…`,
    after: `${photoName(photo)} corrected; it now improves the predictions on the other targets.`,
  });

/** Delete on a marker of a target: undo a correction, or mark a predicted point as not visible. */
async function undoOrHide(point, photo) {
  if (pointOf(point)?.predictions[photo]?.pinned) {
    await change(() => page.api.unpin(point, photo), { after: "Correction undone." });
  } else {
    await change(() => page.api.pin(point, photo, {}), { after: `Not visible on ${photoName(photo)}.` });
  }
}

const actions = {
  addPoint, hover, leave, movePoint, pin, removePhoto, removePoint, renamePoint, select, undoOrHide,
};

// The selected keypoint, where it is predicted → where else it may be, as a picture that lies over the photo.

import { api } from "./api.js";
import { settings } from "./settings.js";
import { showHeat } from "./stage.js";

const RETRY_MS = 700; // the server knows it a moment after the photo was opened
const MAX_TRIES = 20;
let current = null; // the path and place of what is shown, or asked for

/** Show the heat map of a point, or none if it is not a prediction or heat maps are off. */
export function followHeat(instance, point) {
  const wanted = settings.heat && instance !== null && point?.source === "prediction";
  const next = wanted ? `/api/instances/${instance}/points/${point.keypoint_id}/heatmap?at=${point.x},${point.y}` : null;
  if (next === current) return;
  current = next;
  showHeat(null);
  if (next) load(next, MAX_TRIES);
}

async function load(path, tries) {
  const heat = await api.overlay(path).catch(() => null);
  if (path !== current) return;
  if (heat) showHeat(heat);
  else if (tries > 1) setTimeout(() => { if (path === current) load(path, tries - 1); }, RETRY_MS);
}

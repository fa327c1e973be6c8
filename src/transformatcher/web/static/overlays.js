// What lies over the targets: predictions under the pointer, heat maps, and the source blended in.

import { showError } from "./messages.js";
import { $, page } from "./page.js";
import { showCaptions } from "./view.js";

const BLEND_DELAY_MS = 150; // several changes in a row make one request

const targetStages = () => [...page.stages].filter(([, entry]) => entry.card);

// ------------------------------------------------------------------ hovering over the source

// While the pointer moves, one request at a time is sent; the next is for the pointer's position at that time.
let requesting = false;
let nextPosition = null;
let left = false; // the pointer left during a request

export async function hover(position) {
  nextPosition = position;
  left = false;
  if (requesting) return;
  requesting = true;
  while (nextPosition) {
    const [x, y] = nextPosition;
    nextPosition = null;
    try {
      const answer = await page.api.match(x, y, $("heatmap").checked);
      if (left) break;
      page.hover = answer;
      showCaptions();
      if ($("heatmap").checked) showHeatmaps(answer.heatmaps);
    } catch (error) {
      showError(error);
      break;
    }
    await new Promise(requestAnimationFrame);
  }
  requesting = false;
  if (left) leave();
}

export function leave() {
  left = requesting;
  if (requesting) {
    nextPosition = null;
    return;
  }
  page.hover = null;
  showCaptions();
  refreshHeatmaps();
}

// ------------------------------------------------------------------ heat maps

function showHeatmaps(heatmaps) {
  for (const [id, { stage }] of targetStages()) stage.showHeatmap(heatmaps[id] ?? null);
}

let heatmapRequest = new AbortController();

/** Show the heat maps of the selected point, unless the pointer is over the source. */
export async function refreshHeatmaps() {
  heatmapRequest.abort();
  heatmapRequest = new AbortController();
  if (!$("heatmap").checked || page.active === null) {
    showHeatmaps({});
    return;
  }
  if (page.hover) return;
  try {
    const { heatmaps } = await page.api.heatmaps(page.active, heatmapRequest.signal);
    if (!page.hover && $("heatmap").checked) showHeatmaps(heatmaps);
  } catch (error) {
    showError(error);
  }
}

// ------------------------------------------------------------------ blends

let blendRequest = new AbortController();
let blendTimer = 0;

/** Warp the source onto each target anew, or take the blends away. */
export function refreshBlends() {
  clearTimeout(blendTimer);
  blendRequest.abort();
  const on = $("blend").checked;
  $("blend-opacity").disabled = $("control-points").disabled = !on;
  if (on) {
    blendTimer = setTimeout(loadBlends, BLEND_DELAY_MS);
    return;
  }
  for (const [, { stage }] of targetStages()) stage.showOverlay(null);
  showCaptions();
}

async function loadBlends() {
  blendRequest = new AbortController();
  const { signal } = blendRequest;
  for (const photo of page.state.photos) {
    const entry = page.stages.get(photo.id);
    if (!entry?.card || !photo.ready) continue;
    try {
      const { url, description } = await page.api.warp(photo.id, $("control-points").value, signal);
      entry.stage.showOverlay(url);
      page.blendNotes[photo.id] = `Source warped along ${description}.`;
    } catch (error) {
      if (error.name === "AbortError") return;
      entry.stage.showOverlay(null);
      page.blendNotes[photo.id] = error.message;
    }
    showCaptions();
  }
}

export function applyBlendOpacity() {
  document.documentElement.style.setProperty("--blend-opacity", String($("blend-opacity").value / 100));
}

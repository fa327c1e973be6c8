// Where the photo is on the canvas: {scale, x, y}; a point of the photo is at x + scale · px. All sizes in CSS pixels.

import { clamp } from "./dom.js";

const PADDING = 28; // around the photo when it fits
const MAX_SCALE = 32;
const MIN_SIGHT = 60; // so much of the photo stays in sight

/** The view in which the whole photo is seen. */
export function fitView(photo, stage) {
  const padding = stage.width < 600 ? 8 : PADDING;
  const scale = Math.min((stage.width - 2 * padding) / photo.width, (stage.height - 2 * padding) / photo.height);
  return centred(photo, stage, Math.max(scale, 0.01));
}

function centred(photo, stage, scale) {
  return { scale, x: (stage.width - scale * photo.width) / 2, y: (stage.height - scale * photo.height) / 2 };
}

/** Zoom by a factor, so that what is at (x, y) of the stage stays there. */
export function zoomView(view, factor, x, y, photo, stage) {
  const fit = fitView(photo, stage).scale;
  const scale = clamp(view.scale * factor, Math.min(fit, 1) * 0.5, Math.max(MAX_SCALE, fit * 8));
  const actual = scale / view.scale;
  return keepInSight({ scale, x: x - (x - view.x) * actual, y: y - (y - view.y) * actual }, photo, stage);
}

/** Move the photo by some pixels of the stage. */
export function panView(view, dx, dy, photo, stage) {
  return keepInSight({ scale: view.scale, x: view.x + dx, y: view.y + dy }, photo, stage);
}

function keepInSight({ scale, x, y }, photo, stage) {
  return {
    scale,
    x: clamp(x, MIN_SIGHT - scale * photo.width, stage.width - MIN_SIGHT),
    y: clamp(y, MIN_SIGHT - scale * photo.height, stage.height - MIN_SIGHT),
  };
}

/** The view with a point of the photo in sight: the same one if it is in sight already. */
export function viewOf(view, point, photo, stage) {
  const [x, y] = toStage(view, point.x, point.y);
  const inside = x > 20 && y > 20 && x < stage.width - 20 && y < stage.height - 20;
  return inside ? view : panView(view, stage.width / 2 - x, stage.height / 2 - y, photo, stage);
}

/** Photo → stage. */
export const toStage = (view, x, y) => [view.x + view.scale * x, view.y + view.scale * y];

/** Stage → photo. */
export const toPhoto = (view, x, y) => [(x - view.x) / view.scale, (y - view.y) / view.scale];

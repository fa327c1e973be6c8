// Photo, objects and view → the picture on the canvas.

import { drawPoint, kindOf } from "./shapes.js";
import { toStage } from "./viewport.js";

const RADIUS = 6.5;
const SMALL = 4.5; // points of the objects that are not selected
const FONT = "500 12px system-ui, sans-serif";
const LOUPE = 58; // its radius
const LOUPE_ZOOM = 2.2;
const PIXELS_FROM = 8; // from this scale on, the pixels of the photo are seen

/** Draw a scene.
 *
 * @param ctx of the canvas, in CSS pixels.
 * @param scene {stage, view, photo, image, heat: {image, box} or null, objects: [{id, box, category, points}], instance, keypoint, hover, names,
 *   skeleton, rubber: box or null, loupe: {x, y} of the stage or null}; points have x and y in pixels of the photo.
 */
export function drawScene(ctx, scene) {
  const { stage, view } = scene;
  ctx.clearRect(0, 0, stage.width, stage.height);
  drawImage(ctx, scene);
  if (scene.heat) drawHeat(ctx, view, scene.heat);
  for (const object of scene.objects) drawBox(ctx, scene, object);
  if (scene.rubber) strokeBox(ctx, view, scene.rubber, { dashed: true, selected: true });
  const others = scene.objects.filter((object) => object.id !== scene.instance);
  const selected = scene.objects.filter((object) => object.id === scene.instance);
  const taken = [];
  for (const object of [...others, ...selected]) {
    const own = object.id === scene.instance;
    ctx.globalAlpha = own ? 1 : 0.6;
    if (scene.skeleton) drawSkeleton(ctx, view, object);
    drawPoints(ctx, scene, object, own, taken);
  }
  ctx.globalAlpha = 1;
  if (scene.names) for (const object of selected) drawNames(ctx, scene, object, taken);
  else if (scene.hover) drawName(ctx, scene, scene.hover, taken);
  if (scene.loupe) drawLoupe(ctx, scene);
}

function drawImage(ctx, { view, photo, image }) {
  const [w, h] = [photo.width * view.scale, photo.height * view.scale];
  if (!image) {
    ctx.fillStyle = "rgb(128 128 128 / 0.25)";
    ctx.fillRect(view.x, view.y, w, h);
    return;
  }
  ctx.imageSmoothingEnabled = view.scale < PIXELS_FROM;
  ctx.imageSmoothingQuality = "high";
  ctx.drawImage(image, view.x, view.y, w, h);
}

function drawHeat(ctx, view, { image, box: [x0, y0, x1, y1] }) {
  const [left, top] = toStage(view, x0, y0);
  ctx.imageSmoothingEnabled = true;
  ctx.globalAlpha = 0.8;
  ctx.drawImage(image, left, top, (x1 - x0) * view.scale, (y1 - y0) * view.scale);
  ctx.globalAlpha = 1;
}

function strokeBox(ctx, view, [x0, y0, x1, y1], { dashed = false, selected = false }) {
  const [left, top] = toStage(view, x0, y0);
  const [w, h] = [(x1 - x0) * view.scale, (y1 - y0) * view.scale];
  ctx.save();
  ctx.lineWidth = 3.5;
  ctx.strokeStyle = "rgb(0 0 0 / 0.6)";
  ctx.strokeRect(left, top, w, h);
  ctx.lineWidth = 1.5;
  if (dashed) ctx.setLineDash([6, 4]);
  ctx.strokeStyle = "#fff";
  ctx.strokeRect(left, top, w, h);
  if (selected) {
    ctx.setLineDash([]);
    ctx.fillStyle = "#fff";
    ctx.strokeStyle = "#000";
    ctx.lineWidth = 1;
    for (const [x, y] of [[left, top], [left + w, top], [left, top + h], [left + w, top + h]]) {
      ctx.fillRect(x - 4, y - 4, 8, 8);
      ctx.strokeRect(x - 4, y - 4, 8, 8);
    }
  }
  ctx.restore();
}

function drawBox(ctx, { view, instance }, { id, box, label }) {
  if (!box) return;
  const selected = id === instance;
  ctx.globalAlpha = selected ? 1 : 0.6;
  strokeBox(ctx, view, box, { selected });
  const [x, y] = toStage(view, box[0], box[1]);
  ctx.font = FONT;
  drawLabel(ctx, label, { x: x + 6, y: y - 20, w: ctx.measureText(label).width + 10, h: 18 });
  ctx.globalAlpha = 1;
}

function drawSkeleton(ctx, view, { category, points }) {
  const places = new Map(points.filter((point) => kindOf(point).placed).map((point) => [point.keypoint_id, point]));
  const lines = category.skeleton.filter((edge) => edge.every((id) => places.has(id))).map((edge) => edge.map((id) => places.get(id)));
  ctx.save();
  ctx.lineCap = "round";
  for (const [width, colour] of [[4, "rgb(0 0 0 / 0.45)"], [1.75, "rgb(255 255 255 / 0.85)"]]) {
    ctx.lineWidth = width;
    ctx.strokeStyle = colour;
    for (const [a, b] of lines) {
      ctx.setLineDash(kindOf(a).unsure || kindOf(b).unsure ? [2, 7] : []);
      strokeBetween(ctx, toStage(view, a.x, a.y), toStage(view, b.x, b.y));
    }
  }
  ctx.restore();
}

/** A line that ends where the shapes of its points begin. */
function strokeBetween(ctx, [ax, ay], [bx, by]) {
  const length = Math.hypot(bx - ax, by - ay);
  if (length <= 2 * RADIUS + 4) return;
  const [dx, dy] = [((bx - ax) / length) * (RADIUS + 2), ((by - ay) / length) * (RADIUS + 2)];
  ctx.beginPath();
  ctx.moveTo(ax + dx, ay + dy);
  ctx.lineTo(bx - dx, by - dy);
  ctx.stroke();
}

function drawPoints(ctx, { view, keypoint, hover }, { id, points }, own, taken) {
  const last = (point) => own && point.keypoint_id === keypoint;
  for (const point of [...points].sort((a, b) => last(a) - last(b))) { // the selected one is on top
    const kind = kindOf(point);
    if (!kind.placed) continue;
    const [x, y] = toStage(view, point.x, point.y);
    const radius = own ? RADIUS : SMALL;
    if (last(point)) drawTarget(ctx, x, y);
    const over = hover?.instance === id && hover.keypoint === point.keypoint_id;
    drawPoint(ctx, kind, x, y, over || last(point) ? radius + 1.5 : radius, { open: last(point) });
    taken.push({ x: x - radius - 2, y: y - radius - 2, w: 2 * radius + 4, h: 2 * radius + 4 });
  }
}

function drawTarget(ctx, x, y) {
  ctx.beginPath();
  for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
    ctx.moveTo(x + 13 * dx, y + 13 * dy);
    ctx.lineTo(x + 22 * dx, y + 22 * dy);
  }
  ctx.lineCap = "round";
  for (const [width, colour] of [[4.5, "rgb(0 0 0 / 0.8)"], [2, "#fff"]]) {
    ctx.lineWidth = width;
    ctx.strokeStyle = colour;
    ctx.stroke();
  }
  ctx.beginPath(); // the pixel that counts
  ctx.arc(x, y, 1.5, 0, 2 * Math.PI);
  ctx.fillStyle = "#fff";
  ctx.fill();
}

// ---------------------------------------------------------------- names

const overlap = (a, b) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;

function drawLabel(ctx, text, { x, y, w, h }, { selected = false } = {}) {
  ctx.beginPath();
  ctx.roundRect(x, y, w, h, 4);
  ctx.fillStyle = selected ? "#fff" : "rgb(12 16 20 / 0.72)";
  ctx.fill();
  ctx.fillStyle = selected ? "#000" : "#fff";
  ctx.textBaseline = "middle";
  ctx.fillText(text, x + 5, y + h / 2 + 0.5);
}

/** Write a name where it hides no point and no other name; the selected one is always written. */
function placeName(ctx, { view, stage, keypoint }, object, point, taken) {
  const [x, y] = toStage(view, point.x, point.y);
  if (x < 0 || y < 0 || x > stage.width || y > stage.height) return;
  const text = object.category.keypoints.find((one) => one.id === point.keypoint_id)?.name ?? "";
  const [w, h] = [ctx.measureText(text).width + 10, 18];
  const gap = RADIUS + 6;
  const places = [
    { x: x + gap, y: y - h / 2 }, { x: x - gap - w, y: y - h / 2 }, { x: x - w / 2, y: y - gap - h }, { x: x - w / 2, y: y + gap },
    { x: x + gap - 4, y: y - gap - h + 6 }, { x: x + gap - 4, y: y + gap - 6 }, { x: x - gap - w + 4, y: y - gap - h + 6 },
    { x: x - gap - w + 4, y: y + gap - 6 },
  ].map((place) => ({ ...place, w, h }));
  const inside = (place) => place.x >= 2 && place.y >= 2 && place.x + w <= stage.width - 2 && place.y + h <= stage.height - 2;
  const free = places.find((place) => inside(place) && !taken.some((other) => overlap(place, other)));
  const selected = point.keypoint_id === keypoint;
  if (!free && !selected) return;
  const place = free ?? places.find(inside) ?? places[0];
  drawLabel(ctx, text, place, { selected });
  taken.push(place);
}

function drawNames(ctx, scene, object, taken) {
  ctx.font = FONT;
  const first = (point) => (point.keypoint_id === scene.keypoint ? 0 : 1);
  for (const point of [...object.points].sort((a, b) => first(a) - first(b))) {
    if (kindOf(point).placed) placeName(ctx, scene, object, point, taken);
  }
}

function drawName(ctx, scene, { instance, keypoint }, taken) {
  ctx.font = FONT;
  const object = scene.objects.find((one) => one.id === instance);
  const point = object?.points.find((one) => one.keypoint_id === keypoint);
  if (point && kindOf(point).placed) placeName(ctx, scene, object, point, taken);
}

// ---------------------------------------------------------------- loupe

/** A magnifier above the finger that drags a point. */
function drawLoupe(ctx, { loupe, view, image, photo, stage }) {
  if (!image) return;
  const [px, py] = [(loupe.x - view.x) / view.scale, (loupe.y - view.y) / view.scale];
  const scale = view.scale * LOUPE_ZOOM;
  const cx = Math.min(Math.max(loupe.x, LOUPE + 4), stage.width - LOUPE - 4);
  const above = loupe.y - LOUPE - 56;
  const cy = above > LOUPE + 4 ? above : loupe.y + LOUPE + 56;
  ctx.save();
  ctx.beginPath();
  ctx.arc(cx, cy, LOUPE, 0, 2 * Math.PI);
  ctx.fillStyle = "#202428";
  ctx.fill();
  ctx.clip();
  ctx.drawImage(image, cx - px * scale, cy - py * scale, photo.width * scale, photo.height * scale);
  ctx.beginPath();
  ctx.moveTo(cx - LOUPE, cy);
  ctx.lineTo(cx - 5, cy);
  ctx.moveTo(cx + 5, cy);
  ctx.lineTo(cx + LOUPE, cy);
  ctx.moveTo(cx, cy - LOUPE);
  ctx.lineTo(cx, cy - 5);
  ctx.moveTo(cx, cy + 5);
  ctx.lineTo(cx, cy + LOUPE);
  ctx.lineWidth = 3;
  ctx.strokeStyle = "rgb(0 0 0 / 0.5)";
  ctx.stroke();
  ctx.lineWidth = 1.25;
  ctx.strokeStyle = "#fff";
  ctx.stroke();
  ctx.restore();
  ctx.beginPath();
  ctx.arc(cx, cy, LOUPE, 0, 2 * Math.PI);
  ctx.lineWidth = 3;
  ctx.strokeStyle = "#fff";
  ctx.stroke();
}

// The state of a keypoint → its shape and colour, the same on canvas, in lists and on thumbnails.
// Square: placed by a person. Circle: accepted. Diamond: from a file. Ring: predicted; dashed ring: unsure. Half filled: hidden.

import { element, percent, svg } from "./dom.js";

export const COLOURS = { person: "#e69f00", accepted: "#2fc49a", import: "#cc79a7", prediction: "#56b4e9", unsure: "#f0e442" };
const SHAPES = { person: "square", accepted: "circle", import: "diamond", prediction: "ring" };

/** A point of a detail → {source, shape, colour, hidden, placed, absent}; placed: it has a position on the photo. */
export function kindOf(point) {
  const placed = point.source !== null && point.visibility > 0 && point.x !== null;
  const absent = point.source !== null && !placed;
  const unsure = point.source === "prediction" && !point.is_match;
  const name = unsure ? "unsure" : point.source;
  return {
    name, placed, absent, unsure, shape: SHAPES[point.source] ?? null, colour: COLOURS[name] ?? null,
    hidden: placed && point.visibility === 1,
  };
}

/** What is known of a point, in words. */
export function stateText(point) {
  const { placed, unsure, hidden } = kindOf(point);
  if (point.source === null) return "not placed";
  if (point.source === "person" && !placed) return "not there, as you said";
  const there = placed ? (hidden ? ", hidden" : "") : ", not there";
  if (point.source === "prediction") return `${unsure ? "unsure" : "predicted"} ${percent(point.confidence ?? 0)}${there}`;
  return { person: "placed by you", accepted: "accepted", import: "from a file" }[point.source] + there;
}

function outline(ctx, shape, x, y, r) {
  ctx.beginPath();
  if (shape === "square") ctx.rect(x - 0.9 * r, y - 0.9 * r, 1.8 * r, 1.8 * r);
  else if (shape === "diamond") {
    ctx.moveTo(x, y - 1.25 * r);
    ctx.lineTo(x + 1.25 * r, y);
    ctx.lineTo(x, y + 1.25 * r);
    ctx.lineTo(x - 1.25 * r, y);
    ctx.closePath();
  } else ctx.arc(x, y, r, 0, 2 * Math.PI);
}

/** Draw a point on a canvas, with a dark and a light outline, so that it is seen on any photo. */
export function drawPoint(ctx, kind, x, y, r, { open = false } = {}) {
  const { shape, colour, hidden, unsure } = kind;
  ctx.save();
  ctx.lineJoin = "round";
  if (shape === "ring" || open) {
    outline(ctx, shape, x, y, r);
    ctx.lineWidth = 5;
    ctx.strokeStyle = "rgb(0 0 0 / 0.75)";
    ctx.stroke();
    if (unsure) ctx.setLineDash([0.52 * r, 0.52 * r]);
    ctx.lineWidth = 2.75;
    ctx.strokeStyle = colour;
    ctx.stroke();
    if (!hidden) {
      ctx.restore();
      return;
    }
    ctx.setLineDash([]);
  } else {
    outline(ctx, shape, x, y, r + 1.75);
    ctx.fillStyle = "#fff";
    ctx.fill();
    outline(ctx, shape, x, y, r + 0.75);
    ctx.fillStyle = "#000";
    ctx.fill();
  }
  outline(ctx, shape, x, y, r - 0.5);
  ctx.fillStyle = hidden ? "#14181c" : colour;
  if (shape !== "ring") ctx.fill();
  if (hidden) { // the lower half is filled
    ctx.clip();
    ctx.fillStyle = colour;
    ctx.fillRect(x - 2 * r, y, 4 * r, 2 * r);
  }
  ctx.restore();
}

/** A point as a small SVG picture for lists and legends. */
export function pointIcon(kind) {
  const node = svg("svg", { viewBox: "-9 -9 18 18", class: "mark", "aria-hidden": "true" });
  if (kind.absent) {
    node.append(svg("path", { d: "M-5-5 5 5M5-5-5 5", class: "cross" }));
  } else if (!kind.placed) {
    node.append(svg("circle", { r: 2, class: "empty" }));
  } else {
    if (kind.shape === "ring") node.append(svg("circle", { r: 6, class: "under" }));
    node.append(shapeNode(kind, { class: `shape ${kind.shape}${kind.unsure ? " unsure" : ""}`, fill: fillOf(kind) }));
    if (kind.shape === "ring") node.lastChild.setAttribute("stroke", kind.colour);
    if (kind.hidden) node.append(svg("path", { d: HALVES[kind.shape], class: "half", fill: kind.colour }));
  }
  return node;
}

const HALVES = { square: "M-5.5 0H5.5V5.5H-5.5z", diamond: "M-7 0H7L0 7z", circle: "M-6 0A6 6 0 0 0 6 0z", ring: "M-6 0A6 6 0 0 0 6 0z" };
const fillOf = (kind) => (kind.shape === "ring" ? "none" : kind.hidden ? "#14181c" : kind.colour);

function shapeNode({ shape }, attributes) {
  if (shape === "square") return svg("rect", { x: -5.5, y: -5.5, width: 11, height: 11, ...attributes });
  if (shape === "diamond") return svg("path", { d: "M0-7 7 0 0 7-7 0z", ...attributes });
  return svg("circle", { r: 6, ...attributes });
}

const example = (source, { visibility = 2, is_match = true } = {}) =>
  kindOf({ source, visibility, is_match, x: 1, y: 1, confidence: 1 });

/** What the shapes mean. */
export function legend() {
  const entries = [
    [example("person"), "placed by you"],
    [example("accepted"), "accepted"],
    [example("import"), "from a file"],
    [example("prediction"), "predicted"],
    [example("prediction", { is_match: false }), "unsure"],
    [example("person", { visibility: 1 }), "hidden"],
    [example("person", { visibility: 0 }), "not there"],
  ];
  return element("ul", { className: "legend", "aria-label": "What the shapes mean" },
    ...entries.map(([kind, text]) => element("li", {}, pointIcon(kind), text)));
}

/** The states of a photo: name → {label, description}; the shapes of the badges are in the style sheet. */
export const PHOTO_STATES = {
  unmarked: "not predicted yet",
  predicted: "predicted",
  unsure: "unsure",
  marked: "begun",
  reviewed: "done",
  failed: "cannot be read",
};

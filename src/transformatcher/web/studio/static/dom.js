// Small helpers: elements, numbers and durations as text, delayed calls.

export const $ = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

function fill(node, properties, children) {
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (key.startsWith("data-")) node.setAttribute(key, value);
    else if (key.startsWith("aria-") || key === "role" || key === "for" || node.namespaceURI === SVG) {
      node.setAttribute(key, String(value));
    } else node[key] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Create an HTML element with properties and children. */
export const element = (tag, properties = {}, ...children) => fill(document.createElement(tag), properties, children);

/** Create an SVG element with attributes and children. */
export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Set the text of a node, only if it changes, so that screen readers and layout are left alone otherwise. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set or remove an attribute, only if it changes. */
export function setAttribute(node, name, value) {
  if (value === null || value === undefined) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

/** How many CSS pixels a pixel of the design has: more on large screens, and as the person has set the browser's font. */
export const unit = () => parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;

export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
export const roundTo = (value, digits) => Math.round(value * 10 ** digits) / 10 ** digits;
export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** 0.873 → "87 %"; never 100 % for less than all. */
export const percent = (value) => `${Math.min(Math.round(100 * value), value < 1 ? 99 : 100)} %`;

/** (3, "photo") → "3 photos". */
export const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

/** Seconds → "about 18 minutes". */
export function duration(seconds) {
  if (seconds < 50) return "less than a minute";
  const minutes = Math.max(Math.round(seconds / 60), 1);
  if (minutes < 90) return `about ${plural(minutes, "minute")}`;
  const hours = seconds / 3600;
  return `about ${plural(hours < 10 ? roundTo(hours, 1) : Math.round(hours), "hour")}`;
}

/** "cars/a.jpg" → ["a.jpg", "cars/"]. */
export function splitPath(path) {
  const at = path.lastIndexOf("/") + 1;
  return [path.slice(at), path.slice(0, at)];
}

/** A function that runs once no call has come for some time; ``flush`` runs it now if it is waiting. */
export function delayed(run, ms) {
  let timer = 0;
  const call = () => {
    clearTimeout(timer);
    timer = setTimeout(() => { timer = 0; run(); }, ms);
  };
  call.flush = () => {
    if (!timer) return;
    clearTimeout(timer);
    timer = 0;
    run();
  };
  return call;
}

/** A function that runs at the next frame, once for all calls until then. */
export function atNextFrame(run) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; run(); });
  };
}

/** Whether a key press belongs to a field that is being typed into. */
export const isTyping = (target) =>
  target.closest?.("textarea, select, input:not([type=checkbox], [type=radio], [type=button], [type=range])") != null;

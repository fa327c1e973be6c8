// A photo of the grid: thumbnail, its points drawn small, state and name. Cells are used again for other photos.

import { thumbnailUrl } from "./api.js";
import { element, percent, setAttribute, setText, splitPath, svg, unit } from "./dom.js";
import { photoState } from "./order.js";
import { kindOf, PHOTO_STATES } from "./shapes.js";

const DOT = 3; // times the unit of the design
const RETRIES = 4; // of a thumbnail: the server makes a few at a time and refuses the others for a moment
const RETRY_MS = 700;

/** The badge of a state, as an SVG picture. */
export function badge(state) {
  return svg("svg", { class: `badge ${state}`, "aria-hidden": "true" }, svg("use", { href: `#badge-${state}` }));
}

/** Show another state in a badge. */
export function setBadge(node, state) {
  node.setAttribute("class", `badge ${state}`);
  setAttribute(node.firstElementChild, "href", `#badge-${state}`);
}

/** What is known of a photo, in words. */
export function describe(photo, state) {
  const sureness = ["predicted", "unsure", "marked"].includes(state) && photo.sureness !== null;
  const least = sureness ? `, least sure ${percent(photo.sureness)}` : "";
  return `${PHOTO_STATES[state]}${least}${photo.other_kind ? ", perhaps another kind of object" : ""}`;
}

export class Cell {
  constructor() {
    this.image = element("img", { alt: "", decoding: "async", draggable: false });
    this.canvas = element("canvas", { hidden: true });
    this.badge = badge("unmarked");
    this.sureness = element("span", { className: "sureness" });
    this.name = element("span", { className: "cell-name" });
    this.star = element("span", { className: "star", textContent: "teaches most", hidden: true });
    this.node = element("div", { className: "cell", role: "option" },
      element("div", { className: "thumb" }, this.image, this.canvas, this.star, this.sureness),
      element("div", { className: "caption" }, this.badge, this.name));
    this.image.addEventListener("load", () => this.node.classList.add("loaded"));
    this.image.addEventListener("error", () => this.retry());
    this.id = null;
    this.url = null;
    this.retries = 0;
  }

  /** Show a photo at a place of the grid. */
  place(photo, index, count, x, y, size) {
    const { node } = this;
    if (this.id !== photo.id) {
      this.id = photo.id;
      this.photo = null;
      this.url = null;
      this.retries = 0;
      this.image.removeAttribute("src"); // also stops the request
      this.canvas.hidden = true;
      this.drawn = null;
      node.classList.remove("loaded", "broken");
      node.id = `cell-${photo.id}`;
      node.dataset.id = photo.id;
    }
    node.style.transform = `translate(${x}px, ${y}px)`;
    node.style.width = `${size}px`;
    setAttribute(node, "aria-posinset", index + 1);
    setAttribute(node, "aria-setsize", count);
    this.update(photo);
  }

  /** Show what has become of the photo. */
  update(photo) {
    if (this.photo === photo) return;
    this.photo = photo;
    const state = photoState(photo);
    const [name, folder] = splitPath(photo.path);
    setBadge(this.badge, state);
    setText(this.name, name);
    this.node.title = `${folder}${name}: ${photo.problem ?? describe(photo, state)}`;
    setAttribute(this.node, "aria-label", `${name}, ${photo.problem ?? describe(photo, state)}`);
    const sure = photo.sureness !== null && state !== "reviewed";
    setText(this.sureness, sure ? percent(photo.sureness) : "");
    this.node.classList.toggle("faded", state === "failed");
    if (state === "failed") this.node.classList.add("broken");
  }

  /** Load the thumbnail. */
  load() {
    if (this.url || !this.photo || this.photo.state === "failed") return;
    this.url = thumbnailUrl(this.photo);
    this.image.src = this.url;
  }

  /** Load the thumbnail again a little later; after some times, it is broken. */
  retry() {
    const { url, id } = this;
    if (!url) return;
    if (this.retries++ >= RETRIES) {
      this.node.classList.add("broken");
      return;
    }
    setTimeout(() => { if (this.url === url && this.id === id) this.image.src = url; }, RETRY_MS * this.retries);
  }

  /** Draw the points of a detail on the thumbnail. */
  draw(detail) {
    if (this.drawn === detail) return;
    this.drawn = detail;
    const { width, height } = detail.photo;
    const points = detail.instances.flatMap((instance) => instance.points).map((point) => [kindOf(point), point]);
    const placed = points.filter(([kind]) => kind.placed);
    this.canvas.hidden = !placed.length || !width;
    if (this.canvas.hidden) return;
    const { clientWidth: w, clientHeight: h } = this.canvas;
    const ratio = Math.min(window.devicePixelRatio, 2);
    this.canvas.width = Math.round(w * ratio);
    this.canvas.height = Math.round(h * ratio);
    const scale = Math.min(w / width, h / height); // as object-fit: contain
    const [left, top] = [(w - width * scale) / 2, (h - height * scale) / 2];
    const ctx = this.canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    const dot = DOT * unit();
    for (const [kind, point] of placed) {
      ctx.beginPath();
      if (kind.shape === "square") ctx.rect(left + point.x * scale - dot, top + point.y * scale - dot, 2 * dot, 2 * dot);
      else ctx.arc(left + point.x * scale, top + point.y * scale, dot, 0, 2 * Math.PI);
      ctx.lineWidth = 2.5;
      ctx.strokeStyle = "rgb(0 0 0 / 0.8)";
      ctx.stroke();
      ctx.fillStyle = kind.colour;
      ctx.fill();
    }
  }
}

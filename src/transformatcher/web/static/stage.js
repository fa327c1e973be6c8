// A photo with its markers, heat map and overlay: pixels of the photo ↔ the screen; pointer and keyboard.

import { element } from "./page.js";

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** The step of an arrow key in pixels (with Shift, ten times as far), or undefined for other keys. */
function stepOf(event) {
  const step = STEPS[event.key];
  if (!step || event.altKey || event.ctrlKey || event.metaKey) return undefined;
  return step.map((n) => n * (event.shiftKey ? 10 : 1));
}

// Purple, orange, yellow: lightness increases throughout, so the heat map is readable without colour vision.
const COLOURS = [[40, 11, 84], [132, 32, 107], [212, 72, 66], [245, 125, 21], [250, 193, 39], [252, 255, 164]];

function heatColour(value) {
  const at = Math.sqrt(value / 255) * (COLOURS.length - 1); // the square root makes more than the peak visible
  const low = Math.min(Math.floor(at), COLOURS.length - 2);
  return COLOURS[low].map((c, i) => Math.round(c + (COLOURS[low + 1][i] - c) * (at - low)));
}

const MIN_DRAG_PX = 3; // a shorter movement is a click
const KEY_DELAY_MS = 250;

export class Stage {
  /**
   * @param photo {id, name, width, height}
   * @param url address of its image
   * @param on {move(id, position), remove(id), select(id)}: called when the user does that to a marker
   */
  constructor(photo, url, on) {
    this.photo = photo;
    this.on = on;
    this.markers = new Map();
    this.canvas = element("canvas", { className: "heatmap", hidden: true });
    this.warped = element("img", { className: "warped", alt: "", hidden: true });
    this.hoverMark = element("span", { className: "hover-mark", hidden: true });
    this.layer = element("div", { className: "markers" });
    this.node = element("div", { className: "stage" },
      element("img", { className: "photo", src: url, alt: photo.name, draggable: false }),
      this.warped, element("div", { className: "heatmap-frame" }, this.canvas), this.layer, this.hoverMark);
    this.node.style.aspectRatio = `${photo.width} / ${photo.height}`;
    this.node.style.setProperty("--ratio", String(photo.width / photo.height)); // so that CSS can fit tall photos
  }

  /** The nearest position on the photo, rounded to a tenth of a pixel. */
  clamp([x, y]) {
    const round = (v) => Math.round(v * 10) / 10;
    return [round(Math.min(Math.max(x, 0), this.photo.width)), round(Math.min(Math.max(y, 0), this.photo.height))];
  }

  /** The position of a pointer event on the photo. */
  positionOf(event) {
    const box = this.node.getBoundingClientRect();
    return this.clamp([
      ((event.clientX - box.left) / box.width) * this.photo.width,
      ((event.clientY - box.top) / box.height) * this.photo.height,
    ]);
  }

  /** Move a node to a position. */
  place(node, [x, y]) {
    node.style.left = `${(100 * x) / this.photo.width}%`;
    node.style.top = `${(100 * y) / this.photo.height}%`;
    node.classList.toggle("right", x > 0.8 * this.photo.width);
    node.classList.toggle("high", y < 0.12 * this.photo.height);
  }

  /** Show exactly these markers: [{id, number, position, kind, label, active}]. Nodes are reused, so focus is kept. */
  showMarkers(markers) {
    const wanted = new Set(markers.map((m) => m.id));
    for (const [id, marker] of this.markers) {
      if (!wanted.has(id)) {
        marker.node.remove();
        this.markers.delete(id);
      }
    }
    for (const m of markers) {
      const marker = this.markers.get(m.id) ?? this.#make(m.id);
      if (marker.dragging || marker.pending) continue; // the user is moving it
      marker.position = m.position;
      marker.node.className = `marker ${m.kind}${m.active ? " active" : ""}`;
      this.place(marker.node, marker.position);
      marker.tag.textContent = m.number;
      marker.node.setAttribute("aria-label", m.label);
      marker.node.title = m.label;
    }
  }

  #make(id) {
    const tag = element("span", { className: "tag" });
    const node = element("button", { type: "button" }, element("span", { className: "dot" }), tag);
    const marker = { id, node, tag, position: [0, 0], dragging: false, pending: 0 };
    this.markers.set(id, marker);
    this.layer.append(node);
    node.addEventListener("focus", () => this.on.select(id));
    node.addEventListener("click", (event) => event.stopPropagation());
    node.addEventListener("pointerdown", (event) => {
      if (event.button === 0) this.#drag(marker, event);
    });
    node.addEventListener("keydown", (event) => this.#pressKey(marker, event));
    return marker;
  }

  #drag(marker, down) {
    const { id, node } = marker;
    down.preventDefault();
    down.stopPropagation();
    node.focus();
    node.setPointerCapture(down.pointerId);
    const start = this.positionOf(down);
    const offset = [marker.position[0] - start[0], marker.position[1] - start[1]]; // else it would jump to the pointer
    let moved = false;
    const move = (event) => {
      if (!moved && Math.hypot(event.clientX - down.clientX, event.clientY - down.clientY) < MIN_DRAG_PX) return;
      moved = marker.dragging = true;
      const [x, y] = this.positionOf(event);
      marker.position = this.clamp([x + offset[0], y + offset[1]]);
      this.place(node, marker.position);
    };
    const end = (event) => {
      node.removeEventListener("pointermove", move);
      node.removeEventListener("pointerup", end);
      node.removeEventListener("pointercancel", end);
      marker.dragging = false;
      if (moved && event.type === "pointerup") this.on.move(id, marker.position);
      else if (moved) this.on.select(id);
    };
    node.addEventListener("pointermove", move);
    node.addEventListener("pointerup", end);
    node.addEventListener("pointercancel", end);
  }

  #pressKey(marker, event) {
    const step = stepOf(event);
    const deletes = event.key === "Delete" || event.key === "Backspace";
    if (!step && !deletes) return;
    event.preventDefault();
    event.stopPropagation();
    if (deletes) {
      this.on.remove(marker.id);
      return;
    }
    marker.position = this.clamp([marker.position[0] + step[0], marker.position[1] + step[1]]);
    this.place(marker.node, marker.position);
    clearTimeout(marker.pending); // a key held down is one move
    marker.pending = setTimeout(() => {
      marker.pending = 0;
      this.on.move(marker.id, marker.position);
    }, KEY_DELAY_MS);
  }

  /** Mark the position that matches the pointer's on the source; null hides the mark. */
  showHover(position, kind = "") {
    this.hoverMark.hidden = position === null;
    if (position === null) return;
    this.hoverMark.className = `hover-mark ${kind}`;
    this.place(this.hoverMark, position);
  }

  /** Show a heat map {width, height, values: base64}; null hides it. */
  showHeatmap(map) {
    this.canvas.hidden = map === null;
    if (map === null) return;
    const bytes = Uint8Array.from(atob(map.values), (c) => c.charCodeAt(0));
    const pixels = new ImageData(map.width, map.height);
    bytes.forEach((value, i) => {
      pixels.data.set([...heatColour(value), Math.round(235 * (value / 255) ** 0.4)], 4 * i);
    });
    this.canvas.width = map.width;
    this.canvas.height = map.height;
    this.canvas.getContext("2d").putImageData(pixels, 0, 0);
    // The centres of the outermost cells lie on the photo's borders, so the image extends half a cell beyond them.
    const [w, h] = [map.width - 1, map.height - 1];
    Object.assign(this.canvas.style, {
      left: `${-50 / w}%`, width: `${100 + 100 / w}%`, top: `${-50 / h}%`, height: `${100 + 100 / h}%`,
    });
  }

  /** Lay an image over the photo; null removes it. */
  showOverlay(url) {
    if (this.warped.src.startsWith("blob:")) URL.revokeObjectURL(this.warped.src);
    this.warped.hidden = url === null;
    if (url !== null) this.warped.src = url;
    else this.warped.removeAttribute("src");
  }
}

/** Let the user point at a stage: hover, click, and a cursor for the keyboard. */
export function makeSource(stage, { hover, leave, click }) {
  const { node } = stage;
  const cursor = element("span", { className: "cursor", hidden: true });
  let position = [Math.round(stage.photo.width / 2), Math.round(stage.photo.height / 2)];
  node.append(cursor);
  node.tabIndex = 0;
  node.classList.add("pointable");
  node.setAttribute("role", "application");
  node.setAttribute("aria-roledescription", "photo with a cursor");
  node.setAttribute("aria-label",
    `Source photo ${stage.photo.name}. Arrow keys move the cursor, Enter sets a point.`);

  const go = (to, { visible }) => {
    position = to;
    cursor.hidden = !visible;
    stage.place(cursor, position);
    hover(position);
  };
  node.addEventListener("pointermove", (event) => {
    if (event.target.closest(".marker")) return;
    go(stage.positionOf(event), { visible: false });
  });
  node.addEventListener("pointerleave", () => {
    if (!node.matches(":focus-visible")) leave();
  });
  node.addEventListener("click", (event) => {
    if (!event.target.closest(".marker")) click(stage.positionOf(event));
  });
  node.addEventListener("focus", () => {
    if (node.matches(":focus-visible")) go(position, { visible: true });
  });
  node.addEventListener("blur", () => {
    cursor.hidden = true;
    leave();
  });
  node.addEventListener("keydown", (event) => {
    if (event.target !== node) return;
    const step = stepOf(event);
    if (step) {
      event.preventDefault();
      go(stage.clamp([position[0] + step[0], position[1] + step[1]]), { visible: true });
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      click(position);
    }
  });
}

// One photo with its markers: places in pixels of the photo ↔ places on the screen; pointer and keys.

export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("aria-") || key === "role" || key === "for") node.setAttribute(key, value);
    else node[key] = value;
  }
  node.append(...children);
  return node;
}

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** The step of an arrow key in pixels (Shift: ten), or undefined. */
function stepOf(event) {
  const step = STEPS[event.key];
  if (!step || event.altKey || event.ctrlKey || event.metaKey) return undefined;
  return step.map((n) => n * (event.shiftKey ? 10 : 1));
}

// Purple over orange to yellow, ever more opaque: lightness rises all the way, so it reads without colour, too.
const RAMP = [[40, 11, 84], [132, 32, 107], [212, 72, 66], [245, 125, 21], [250, 193, 39], [252, 255, 164]];

function heatColour(value) {
  const at = Math.sqrt(value / 255) * (RAMP.length - 1); // the square root shows the slopes, not the peak alone
  const low = Math.min(Math.floor(at), RAMP.length - 2);
  return RAMP[low].map((c, i) => Math.round(c + (RAMP[low + 1][i] - c) * (at - low)));
}

export class Stage {
  /**
   * @param photo {id, name, width, height}
   * @param url of its picture
   * @param on {drop(id, place), remove(id), select(id)}: what happens to markers
   */
  constructor(photo, url, on) {
    this.photo = photo;
    this.on = on;
    this.markers = new Map();
    this.canvas = element("canvas", { className: "heat", hidden: true });
    this.warped = element("img", { className: "warped", alt: "", hidden: true });
    this.ghost = element("span", { className: "ghost", hidden: true });
    this.layer = element("div", { className: "markers" });
    this.node = element("div", { className: "stage" },
      element("img", { className: "photo", src: url, alt: photo.name, draggable: false }),
      this.warped, element("div", { className: "heatbox" }, this.canvas), this.layer, this.ghost);
    this.node.style.aspectRatio = `${photo.width} / ${photo.height}`;
    this.node.style.setProperty("--ratio", String(photo.width / photo.height)); // a tall photo is to fit the screen
  }

  clamp([x, y]) {
    const round = (v) => Math.round(v * 10) / 10;
    return [round(Math.min(Math.max(x, 0), this.photo.width)), round(Math.min(Math.max(y, 0), this.photo.height))];
  }

  placeOf(event) {
    const box = this.node.getBoundingClientRect();
    return this.clamp([
      ((event.clientX - box.left) / box.width) * this.photo.width,
      ((event.clientY - box.top) / box.height) * this.photo.height,
    ]);
  }

  put(node, [x, y]) {
    node.style.left = `${(100 * x) / this.photo.width}%`;
    node.style.top = `${(100 * y) / this.photo.height}%`;
    node.classList.toggle("right", x > 0.8 * this.photo.width);
    node.classList.toggle("high", y < 0.12 * this.photo.height);
  }

  /** Show exactly these markers: [{id, number, place, kind, label, active}]; nodes stay, so that focus does. */
  show(markers) {
    const wanted = new Set(markers.map((m) => m.id));
    for (const [id, marker] of this.markers) {
      if (!wanted.has(id)) {
        marker.node.remove();
        this.markers.delete(id);
      }
    }
    for (const m of markers) {
      const marker = this.markers.get(m.id) ?? this.#make(m.id);
      if (marker.dragging || marker.pending) continue; // the person's hand is right, whatever the server says
      marker.place = [m.place.x, m.place.y];
      marker.node.className = `marker ${m.kind}${m.active ? " active" : ""}`;
      this.put(marker.node, marker.place);
      marker.tag.textContent = m.number;
      marker.node.setAttribute("aria-label", m.label);
      marker.node.title = m.label;
    }
  }

  #make(id) {
    const tag = element("span", { className: "tag" });
    const node = element("button", { type: "button" }, element("span", { className: "dot" }), tag);
    const marker = { node, tag, place: [0, 0], dragging: false, pending: 0 };
    this.markers.set(id, marker);
    this.layer.append(node);

    node.addEventListener("focus", () => this.on.select(id));
    node.addEventListener("click", (event) => event.stopPropagation());
    node.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      event.preventDefault();
      event.stopPropagation();
      node.focus();
      node.setPointerCapture(event.pointerId);
      const start = this.placeOf(event);
      const offset = [marker.place[0] - start[0], marker.place[1] - start[1]]; // grabbed beside its centre: no jump
      let moved = false;
      const move = (e) => {
        const [x, y] = this.placeOf(e);
        if (!moved && Math.hypot(e.clientX - event.clientX, e.clientY - event.clientY) < 3) return;
        moved = marker.dragging = true;
        marker.place = this.clamp([x + offset[0], y + offset[1]]);
        this.put(node, marker.place);
      };
      const end = (e) => {
        node.removeEventListener("pointermove", move);
        node.removeEventListener("pointerup", end);
        node.removeEventListener("pointercancel", end);
        marker.dragging = false;
        if (moved && e.type === "pointerup") this.on.drop(id, marker.place);
        else if (moved) this.on.select(id);
      };
      node.addEventListener("pointermove", move);
      node.addEventListener("pointerup", end);
      node.addEventListener("pointercancel", end);
    });
    node.addEventListener("keydown", (event) => {
      const step = stepOf(event);
      if (step) {
        event.preventDefault();
        event.stopPropagation();
        marker.place = this.clamp([marker.place[0] + step[0], marker.place[1] + step[1]]);
        this.put(node, marker.place);
        clearTimeout(marker.pending); // a held key is one correction
        marker.pending = setTimeout(() => {
          marker.pending = 0;
          this.on.drop(id, marker.place);
        }, 250);
      } else if (event.key === "Delete" || event.key === "Backspace") {
        event.preventDefault();
        event.stopPropagation();
        this.on.remove(id);
      }
    });
    return marker;
  }

  /** The place that belongs to the one pointed at on the source; null hides it. */
  point(place, kind = "") {
    this.ghost.hidden = place === null;
    if (place === null) return;
    this.ghost.className = `ghost ${kind}`;
    this.put(this.ghost, place);
  }

  /** A heat map {width, height, values: base64}, or null. */
  heat(map) {
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
    // The first and the last cell's centres lie on the photo's borders: the picture of cells reaches half a cell beyond.
    const [w, h] = [map.width - 1, map.height - 1];
    Object.assign(this.canvas.style, {
      left: `${-50 / w}%`, width: `${100 + 100 / w}%`, top: `${-50 / h}%`, height: `${100 + 100 / h}%`,
    });
  }

  /** A picture to lay over the photo, or null. */
  overlay(url) {
    if (this.warped.src.startsWith("blob:")) URL.revokeObjectURL(this.warped.src);
    this.warped.hidden = url === null;
    if (url !== null) this.warped.src = url;
    else this.warped.removeAttribute("src");
  }
}

/** Make a stage the one that is pointed at: hover, click, and a cursor for the keyboard. */
export function makeSource(stage, { hover, leave, click }) {
  const { node } = stage;
  const cursor = element("span", { className: "cursor", hidden: true });
  let place = [Math.round(stage.photo.width / 2), Math.round(stage.photo.height / 2)];
  node.append(cursor);
  node.tabIndex = 0;
  node.classList.add("pointable");
  node.setAttribute("role", "application");
  node.setAttribute("aria-roledescription", "photo with a cursor");
  node.setAttribute("aria-label",
    `Source photo ${stage.photo.name}. Arrow keys move the cursor, Enter sets a point.`);

  const go = (to, { visible }) => {
    place = to;
    cursor.hidden = !visible;
    stage.put(cursor, place);
    hover(place);
  };
  node.addEventListener("pointermove", (event) => {
    if (event.target.closest(".marker")) return;
    go(stage.placeOf(event), { visible: false });
  });
  node.addEventListener("pointerleave", () => {
    if (!node.matches(":focus-visible")) leave();
  });
  node.addEventListener("click", (event) => {
    if (!event.target.closest(".marker")) click(stage.placeOf(event));
  });
  node.addEventListener("focus", () => {
    if (node.matches(":focus-visible")) go(place, { visible: true });
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
      go(stage.clamp([place[0] + step[0], place[1] + step[1]]), { visible: true });
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      click(place);
    }
  });
}

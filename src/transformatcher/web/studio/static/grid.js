// The list of photos → a grid of thumbnails, of which only those in sight exist; it scrolls smoothly with any number.

import { Cell } from "./cell.js";
import { $, atNextFrame, clamp, delayed, unit } from "./dom.js";
import { isOpen, list, positionOf } from "./order.js";
import { setSetting, settings } from "./settings.js";
import { cancelDetails, knownDetail, loadDetail, on, store } from "./store.js";
import { setInView } from "./sync.js";

const SIZES = { gap: 10, margin: 18, caption: 30, narrow: { gap: 8, margin: 12, caption: 30 } }; // times the unit of the design
const OVERSCAN_ROWS = 2;
const SETTLE_MS = 80; // nothing is loaded while the person scrolls on
const POINTS_MS = 250; // the points come last

let openPhoto = () => {};
let layout = { columns: 1, size: 180, row: 170, gap: 10, margin: 18, height: 0 };
const cells = new Map(); // position → Cell
const spare = [];
let active = null; // id of the photo that the keys act on
let scroller, space;

/** Set the grid up; open(id) opens a photo. */
export function startGrid(open) {
  openPhoto = open;
  scroller = $("grid");
  space = $("grid-space");
  scroller.addEventListener("scroll", renderSoon, { passive: true });
  new ResizeObserver(() => measure()).observe(scroller);
  space.addEventListener("click", (event) => {
    const cell = event.target.closest(".cell");
    if (cell) openPhoto(Number(cell.dataset.id));
  });
  scroller.addEventListener("keydown", onKey);
  scroller.addEventListener("focus", () => { if (active === null || positionOf(active) < 0) setActive(list()[firstInSight()] ?? null); });
  $("size").value = settings.size;
  $("size").addEventListener("input", (event) => { setSetting("size", Number(event.target.value)); measure(); });
  on("list", renderSoon);
  on("project", renderSoon);
  on("detail", (id) => drawPoints(id));
}

const isVisible = () => !$("grid-view").hidden;

function measure() {
  const width = scroller.clientWidth;
  if (!width || !isVisible()) return;
  const before = list()[firstInSight()];
  const [one, narrow] = [unit(), width < 500];
  const [gap, margin, caption] = ["gap", "margin", "caption"].map((name) => (narrow ? SIZES.narrow : SIZES)[name] * one);
  const wanted = Math.min(settings.size * one, narrow ? (width - 2 * margin - gap) / 2 : Infinity);
  const columns = Math.max(Math.floor((width - 2 * margin + gap) / (wanted + gap)), 1);
  const size = Math.floor((width - 2 * margin - gap * (columns - 1)) / columns);
  const changed = columns !== layout.columns || size !== layout.size;
  layout = { columns, size, gap, margin, row: Math.round(size * 0.75) + caption + gap, height: scroller.clientHeight };
  space.style.setProperty("--thumb", `${Math.round(size * 0.75)}px`);
  if (changed) {
    for (const cell of cells.values()) cell.drawn = null;
    setHeight();
    if (before !== undefined && scroller.scrollTop > 0) scroller.scrollTop = Math.floor(positionOf(before) / columns) * layout.row;
  }
  render();
}

const rows = () => Math.ceil(list().length / layout.columns);
const setHeight = () => { space.style.height = `${rows() * layout.row + 2 * layout.margin - layout.gap}px`; };
const firstInSight = () => Math.max(Math.floor((scroller.scrollTop - layout.margin) / layout.row), 0) * layout.columns;

const renderSoon = atNextFrame(() => { if (isVisible()) render(); });

function render() {
  const ids = list();
  setHeight();
  const { columns, row, size, gap, margin } = layout;
  const top = scroller.scrollTop - margin;
  const from = Math.max(Math.floor(top / row) - OVERSCAN_ROWS, 0) * columns;
  const to = Math.min((Math.ceil((top + layout.height) / row) + OVERSCAN_ROWS) * columns, ids.length);
  const kept = new Map([...cells.values()].map((cell) => [cell.id, cell])); // a photo keeps its cell when it moves
  const free = [...spare.splice(0)];
  const wanted = new Set(ids.slice(from, to));
  for (const [id, cell] of kept) if (!wanted.has(id)) { free.push(cell); kept.delete(id); }
  cells.clear();
  for (let i = from; i < to; i++) {
    let cell = kept.get(ids[i]) ?? free.pop();
    if (!cell) {
      cell = new Cell();
      space.append(cell.node);
    }
    const x = margin + (i % columns) * (size + gap);
    cell.node.hidden = false;
    cell.place(store.photos.get(ids[i]), i, ids.length, x, margin + Math.floor(i / columns) * row, size);
    cell.node.setAttribute("aria-selected", String(ids[i] === active));
    cell.star.hidden = ids[i] !== store.project.suggestion || !isOpen(ids[i]);
    cells.set(i, cell);
  }
  for (const cell of free) { // what is not in sight loads nothing
    cell.node.hidden = true;
    cell.image.removeAttribute("src");
    cell.id = cell.url = null;
    cell.node.id = "";
    spare.push(cell);
  }
  $("empty").hidden = ids.length > 0;
  loadImages();
  loadPoints();
}

const loadImages = delayed(() => {
  for (const cell of cells.values()) cell.load();
  if (isVisible()) setInView([...inSight()].map((cell) => cell.id));
}, SETTLE_MS);

function* inSight() {
  const { columns, row } = layout;
  const from = Math.max(Math.floor((scroller.scrollTop - layout.margin) / row), 0) * columns;
  const to = Math.ceil((scroller.scrollTop + layout.height) / row) * columns;
  for (let i = from; i < to; i++) if (cells.has(i)) yield cells.get(i);
}

const loadPoints = delayed(() => {
  if (!isVisible()) return;
  const wanted = new Set([...inSight()].filter((cell) => cell.photo.instances > 0).map((cell) => cell.id));
  cancelDetails((id) => wanted.has(id));
  for (const id of wanted) loadDetail(id).then(() => drawPoints(id), () => {});
}, POINTS_MS);

function drawPoints(id) {
  if (!isVisible()) return;
  for (const cell of cells.values()) if (cell.id === id && knownDetail(id)) cell.draw(knownDetail(id));
}

// ---------------------------------------------------------------- keys

/** Make a photo the one that the keys act on, and bring it into sight. */
export function setActive(id, { scroll = true } = {}) {
  active = id;
  const position = id === null ? -1 : positionOf(id);
  if (position >= 0 && scroll) {
    const y = layout.margin + Math.floor(position / layout.columns) * layout.row;
    const height = scroller.clientHeight;
    if (y - layout.margin < scroller.scrollTop) scroller.scrollTop = y - layout.margin;
    else if (y + layout.row > scroller.scrollTop + height) scroller.scrollTop = y + layout.row - height;
  }
  if (isVisible()) render();
  if (position >= 0) scroller.setAttribute("aria-activedescendant", `cell-${id}`);
  else scroller.removeAttribute("aria-activedescendant");
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { columns, row, height } = layout;
  const page = Math.max(Math.floor(height / row), 1) * columns;
  const steps = {
    ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, PageUp: -page, PageDown: page,
    Home: -Infinity, End: Infinity,
  };
  if (event.key === "Enter" || event.key === " ") {
    if (active === null || positionOf(active) < 0) return;
    event.preventDefault();
    event.stopPropagation();
    openPhoto(active);
  } else if (event.key in steps && list().length) {
    event.preventDefault();
    event.stopPropagation();
    setActive(list()[clamp(Math.max(positionOf(active), 0) + steps[event.key], 0, list().length - 1)]);
  }
}

/** The grid comes back into sight after a photo was open. */
export function showGrid(id) {
  measure();
  setActive(id ?? active);
  scroller.focus({ preventScroll: true });
}

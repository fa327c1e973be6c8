// The page: the server's state → photos, markers and lists; what a person does → requests.

import { ApiError, Session } from "./api.js";
import { element, makeSource, Stage } from "./stage.js";

const $ = (id) => document.getElementById(id);
const HEARTBEAT_S = 300; // a session without a sign of life is forgotten after half an hour

let session; // with the server
let about; // what it said when the session began: calibrated, no_match, limits, local
let state = { source: null, photos: [], points: [] };
let active = null; // the id of the point that cards speak of
let hovered = null; // {place, on, heat} while the source is pointed at
const stages = new Map(); // photo id → {stage, card, says, …}
let blendWords = {}; // photo id → what its blend follows, or why there is none

// ------------------------------------------------------------------ saying things

function complain(error) {
  if (error.name === "AbortError") return;
  if (!(error instanceof ApiError)) console.error(error);
  const close = element("button", { type: "button", className: "plain", "aria-label": "Dismiss" }, "✕");
  const box = element("div", { className: "alert" }, element("span", {}, error.message), close);
  close.addEventListener("click", () => box.remove());
  $("alerts").append(box);
  while ($("alerts").children.length > 3) $("alerts").firstChild.remove();
}

const clearComplaints = () => $("alerts").replaceChildren();

let working = 0;
function say(words, { busy = false } = {}) {
  $("status").textContent = words;
  $("status").classList.toggle("busy", busy);
}

/** Run a request that changes something; its answer is the new state. */
async function change(work, { during = "", after = "" } = {}) {
  working++;
  if (during) say(during, { busy: true });
  try {
    const answer = await work();
    clearComplaints();
    apply(answer);
    if (!during || working === 1) say(after);
    return answer;
  } catch (error) {
    complain(error);
    if (during) say("");
    if (error.status !== 404 && error.status !== 0) apply(await session.read().catch(() => state));
    return undefined;
  } finally {
    working--;
  }
}

const percent = (p) => `${Math.round(100 * p)} %`;

/** How sure a prediction is, in words; without calibration it is only its sharpness. */
function sureness(placement) {
  if (placement.pinned) return placement.x === null ? "not there (you said so)" : "set by you";
  if (!about.calibrated) return `sharpness ${placement.confidence.toFixed(2)}`;
  return placement.found ? `${percent(placement.confidence)} sure` : `no match (${percent(placement.confidence)})`;
}

const kindOf = (placement) => (placement.pinned ? "pinned" : placement.found ? "predicted" : "unsure");
const nameOf = (photo) => state.photos.find((p) => p.id === photo)?.name ?? "";

// ------------------------------------------------------------------ showing the state

function apply(answer) {
  state = { source: answer.source, photos: answer.photos, points: answer.points };
  if (!state.points.some((p) => p.id === active)) active = state.points.at(-1)?.id ?? null;
  showPhotos();
  showMarkers();
  showPoints();
  refreshHeat();
  refreshBlend();
}

function showPhotos() {
  const here = new Set(state.photos.map((p) => p.id));
  for (const [id, entry] of stages) {
    if (!here.has(id)) {
      entry.stage.overlay(null);
      (entry.card ?? entry.stage.node).remove();
      stages.delete(id);
    }
  }
  for (const photo of state.photos) {
    if (!stages.has(photo.id)) (photo.id === state.source ? addSource : addTarget)(photo);
  }
  const source = state.photos.find((p) => p.id === state.source);
  const targets = state.photos.length - (source ? 1 : 0);
  $("source-name").textContent = source?.name ?? "";
  $("source-drop").hidden = Boolean(source);
  $("source-hint").hidden = !source;
  $("targets-drop").hidden = targets > 0;
  $("targets-hint").hidden = targets === 0 || state.points.length === 0;
  $("targets-title").textContent = targets > 1 ? `${targets} targets` : "Targets";
}

function addSource(photo) {
  const stage = new Stage(photo, session.imageUrl(photo.id), {
    drop: (id, [x, y]) => change(() => session.changePoint(id, { x, y }), { after: "Point moved." }),
    remove: removePoint,
    select,
  });
  makeSource(stage, {
    hover: hoverAt,
    leave: unhover,
    click: async ([x, y]) => {
      const answer = await change(() => session.addPoint(x, y), { after: "Point set." });
      if (answer) select(answer.added);
    },
  });
  stages.set(photo.id, { stage });
  $("source-stage").append(stage.node);
}

function addTarget(photo) {
  const stage = new Stage(photo, session.imageUrl(photo.id), {
    drop: (id, [x, y]) => pin(id, photo.id, { x, y }),
    remove: (id) => takeBack(id, photo.id),
    select,
  });
  const remove = element("button",
    { type: "button", className: "plain", title: "Remove this photo", "aria-label": `Remove ${photo.name}` }, "✕");
  remove.addEventListener("click", () => change(() => session.removePhoto(photo.id), { after: `${photo.name} removed.` }));
  const what = element("span", { className: "what" });
  const sure = element("span", { className: "sure" });
  const absent = element("button", { type: "button", className: "small" }, "Not there");
  const undo = element("button", { type: "button", className: "small" }, "Predict again");
  absent.addEventListener("click", () => pin(active, photo.id, {}));
  undo.addEventListener("click", () => takeBack(active, photo.id));
  const card = element("article", { className: "card", "aria-label": photo.name },
    element("div", { className: "heading" }, element("h3", { className: "name" }, photo.name), remove),
    stage.node,
    element("div", { className: "says" }, what, sure, absent, undo),
    element("p", { className: "blendwords" }));
  stages.set(photo.id, { stage, card, what, sure, absent, undo });
  $("targets").append(card);
}

function showMarkers() {
  for (const [id, { stage }] of stages) {
    const markers = state.points.map((point, index) => {
      const placement = id === state.source ? { x: point.x, y: point.y, source: true } : point.on[id];
      if (!placement || placement.x === null) return undefined;
      const words = placement.source ? "on the source" : `on ${stage.photo.name}: ${sureness(placement)}`;
      return {
        id: point.id,
        number: String(index + 1),
        place: placement,
        kind: placement.source ? "set" : kindOf(placement),
        label: `${point.name} ${words}`,
        active: point.id === active,
      };
    });
    stage.show(markers.filter(Boolean));
  }
  showCards();
}

/** Below each target: the place pointed at, or else the point chosen last. */
function showCards() {
  const index = state.points.findIndex((p) => p.id === active);
  const point = state.points[index];
  for (const [id, { stage, card, what, sure, absent, undo }] of stages) {
    if (!card) continue;
    const pointed = hovered?.on?.[id];
    const placement = pointed ?? point?.on[id];
    stage.point(pointed ? [pointed.x, pointed.y] : null, pointed && !pointed.found ? "unsure" : "");
    what.replaceChildren();
    sure.className = "sure";
    if (placement) {
      if (pointed) what.append("Pointed at");
      else what.append(element("b", { className: "number" }, String(index + 1)), ` ${point.name}`);
      const from = !placement.pinned && placement.reference !== state.source ? `, by ${nameOf(placement.reference)}` : "";
      sure.textContent = sureness(placement) + from;
      sure.classList.add(kindOf(placement));
    } else {
      const ready = state.photos.find((p) => p.id === id)?.ready;
      sure.textContent = !state.source ? "waits for a source photo" : ready ? "" : "matching…";
    }
    absent.hidden = !placement || Boolean(pointed) || (placement.pinned && placement.x === null);
    undo.hidden = !placement || Boolean(pointed) || !placement.pinned;
    if (point) {
      absent.setAttribute("aria-label", `${point.name} is not on ${stage.photo.name}`);
      undo.setAttribute("aria-label", `Predict ${point.name} on ${stage.photo.name} again`);
    }
    card.querySelector(".blendwords").textContent = $("blend").checked ? (blendWords[id] ?? "") : "";
  }
}

function showPoints() {
  $("points-panel").hidden = state.points.length === 0;
  $("points-count").textContent = state.points.length ? `(${state.points.length})` : "";
  $("export").disabled = state.points.length === 0;
  const list = $("points");
  const rows = new Map([...list.children].map((row) => [Number(row.dataset.id), row]));
  state.points.forEach((point, index) => {
    const row = rows.get(point.id) ?? pointRow(point);
    rows.delete(point.id);
    const [number, input, , remove] = row.children;
    number.textContent = String(index + 1);
    if (document.activeElement !== input) input.value = point.name;
    input.setAttribute("aria-label", `Name of point ${index + 1}`);
    remove.setAttribute("aria-label", `Delete ${point.name}`);
    row.querySelector(".lost").textContent = summary(point);
    row.classList.toggle("active", point.id === active);
    if (list.children[index] !== row) list.insertBefore(row, list.children[index] ?? null);
  });
  for (const row of rows.values()) row.remove();
}

function summary(point) {
  const all = Object.values(point.on);
  const pinned = all.filter((p) => p.pinned).length;
  const lost = all.filter((p) => !p.found && !p.pinned).length;
  return [pinned && `${pinned} set`, lost && `${lost} no match`].filter(Boolean).join(", ");
}

function pointRow(point) {
  const { id } = point;
  const input = element("input", { value: point.name, maxLength: 80, spellcheck: false });
  const remove = element("button", { type: "button", className: "plain", title: "Delete this point" }, "✕");
  const row = element("li", {}, element("b", { className: "number" }), input, element("span", { className: "lost" }), remove);
  row.dataset.id = String(id);
  const nameNow = () => state.points.find((p) => p.id === id)?.name ?? "";
  input.addEventListener("focus", () => select(id));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") input.blur();
    if (event.key === "Escape") {
      input.value = nameNow();
      input.blur();
    }
  });
  input.addEventListener("change", async () => {
    const name = input.value.trim();
    if (name === nameNow()) return;
    await change(() => session.changePoint(id, { name }), { after: `Renamed to ${name}.` });
    input.value = nameNow();
  });
  row.addEventListener("click", () => select(id));
  remove.addEventListener("click", (event) => {
    event.stopPropagation();
    removePoint(id);
  });
  return row;
}

// ------------------------------------------------------------------ what a person does

function select(id) {
  if (active === id) return;
  active = id;
  showMarkers();
  showPoints();
  refreshHeat();
}

async function removePoint(id) {
  const index = state.points.findIndex((p) => p.id === id);
  const name = state.points[index]?.name;
  const held = document.activeElement?.closest("#points, .stage");
  await change(() => session.removePoint(id), { after: `${name} deleted.` });
  if (!held || document.activeElement !== document.body) return;
  const next = $("points").children[Math.min(index, state.points.length - 1)]; // focus is not left nowhere
  (next?.querySelector("button") ?? $("source-stage").firstElementChild)?.focus();
}

const pin = (point, photo, place) =>
  change(() => session.pin(point, photo, place), {
    during: `Matching ${nameOf(photo)} with the other targets…`,
    after: `${nameOf(photo)} corrected; it now helps with the other targets.`,
  });

/** Delete on a target's marker: a correction is taken back; a prediction is said to be nowhere. */
async function takeBack(point, photo) {
  const placement = state.points.find((p) => p.id === point)?.on[photo];
  if (placement?.pinned) await change(() => session.unpin(point, photo), { after: "Predicted again." });
  else await change(() => session.pin(point, photo, {}), { after: `Not on ${nameOf(photo)}.` });
}

// While the pointer moves there is one request under way, and then one for where the pointer is by then.
let asking = false;
let next = null;
let leaving = false; // the pointer left while a request was under way

async function hoverAt(place) {
  next = place;
  leaving = false;
  if (asking) return;
  asking = true;
  while (next) {
    const [x, y] = next;
    next = null;
    try {
      const answer = await session.match(x, y, $("heat").checked);
      if (leaving) break;
      hovered = { place: [x, y], ...answer };
      showCards();
      if ($("heat").checked) showHeat(answer.heat);
    } catch (error) {
      complain(error);
      break;
    }
    await new Promise(requestAnimationFrame);
  }
  asking = false;
  if (leaving) unhover();
}

function unhover() {
  leaving = asking;
  if (asking) {
    next = null;
    return;
  }
  hovered = null;
  showCards();
  refreshHeat();
}

// ------------------------------------------------------------------ heat maps and blends

function showHeat(maps) {
  for (const [id, { stage, card }] of stages) if (card) stage.heat(maps[id] ?? null);
}

let heatRequest = new AbortController();
async function refreshHeat() {
  heatRequest.abort();
  heatRequest = new AbortController();
  if (!$("heat").checked || active === null) return showHeat({});
  if (hovered) return undefined;
  try {
    const { heat } = await session.heat(active, heatRequest.signal);
    if (!hovered && $("heat").checked) showHeat(heat);
  } catch (error) {
    complain(error);
  }
  return undefined;
}

let blendRequest = new AbortController();
let blendTimer = 0;
function refreshBlend() {
  clearTimeout(blendTimer);
  blendRequest.abort();
  const on = $("blend").checked;
  $("share").disabled = $("through").disabled = !on;
  if (!on) {
    for (const { stage, card } of stages.values()) if (card) stage.overlay(null);
    showCards();
    return;
  }
  blendTimer = setTimeout(async () => {
    blendRequest = new AbortController();
    const { signal } = blendRequest;
    for (const photo of state.photos) {
      const entry = stages.get(photo.id);
      if (!entry?.card || !photo.ready) continue;
      try {
        const { url, words } = await session.warp(photo.id, $("through").value, signal);
        entry.stage.overlay(url);
        blendWords = { ...blendWords, [photo.id]: `Source bent along ${words}.` };
      } catch (error) {
        if (error.name === "AbortError") return;
        entry.stage.overlay(null);
        blendWords = { ...blendWords, [photo.id]: error.message };
      }
      showCards();
    }
  }, 150);
}

function applyShare() {
  document.documentElement.style.setProperty("--share", String($("share").value / 100));
}

// ------------------------------------------------------------------ photos and files

async function upload(files, role) {
  const photos = [...files];
  if (role === "source" && state.source && state.points.length
    && !window.confirm("A new source photo removes all points. Go on?")) return;
  for (const [index, file] of photos.entries()) {
    if (file.size > about.limits.upload_bytes) {
      complain(new ApiError(`${file.name}: too large; the server takes up to ${about.limits.upload_bytes / 1e6} MB.`));
      continue;
    }
    const count = photos.length > 1 ? ` (${index + 1} of ${photos.length})` : "";
    await change(() => session.upload(file, role), { during: `Reading and matching ${file.name}${count}…` });
  }
}

/** Dropped anywhere but on a section: the first is the source if there is none. */
async function uploadAll(files, role) {
  const photos = [...files].filter((file) => !file.name.toLowerCase().endsWith(".json"));
  const notes = [...files].filter((file) => file.name.toLowerCase().endsWith(".json"));
  if (role === "source") {
    await upload(photos.slice(0, 1), "source");
    await upload(photos.slice(1), "target");
  } else {
    await upload(photos, "target");
  }
  for (const file of notes) await importFile(file);
}

async function importFile(file) {
  const answer = await change(() => session.import(file), { during: `Importing ${file.name}…` });
  if (!answer) return;
  $("category").value = answer.category;
  say([`${state.points.length} points imported.`, ...answer.remarks].join(" "));
}

async function exportFile() {
  try {
    const blob = await session.export($("category").value.trim() || "object");
    const link = element("a", { href: URL.createObjectURL(blob), download: "keypoints.json" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    say("Exported keypoints.json.");
  } catch (error) {
    complain(error);
  }
}

function takeDrops(node, role) {
  let depth = 0;
  const mark = (by) => {
    depth += by;
    node.classList.toggle("dragging", depth > 0);
  };
  node.addEventListener("dragenter", (event) => { event.preventDefault(); mark(1); });
  node.addEventListener("dragleave", () => mark(-1));
  node.addEventListener("dragover", (event) => event.preventDefault());
  node.addEventListener("drop", (event) => {
    event.preventDefault();
    mark(-depth);
    if (event.dataTransfer.files.length) uploadAll(event.dataTransfer.files, role);
  });
}

function takeFiles(input, take) {
  input.addEventListener("change", async () => {
    const files = [...input.files];
    input.value = ""; // so that the same file can be chosen again
    if (files.length) await take(files);
  });
}

async function start() {
  try {
    [session, about] = await Session.open();
  } catch (error) {
    complain(error);
    return;
  }
  apply(about);
  $("legend-none").hidden = !about.calibrated;
  $("privacy").textContent = `Photos stay in the memory of ${about.local ? "this computer" : "the server"} until this page `
    + `is closed; nothing is written to disk or sent elsewhere. transformatcher ${about.version}`;
  takeFiles($("source-file"), (files) => upload(files, "source"));
  takeFiles($("target-files"), (files) => upload(files, "target"));
  takeFiles($("import-file"), ([file]) => importFile(file));
  takeDrops(document.querySelector("section.source"), "source");
  takeDrops(document.querySelector("section.targets"), "target");
  window.addEventListener("dragover", (event) => event.preventDefault()); // a near miss must not open the photo
  window.addEventListener("drop", (event) => event.preventDefault());
  $("examples").addEventListener("click", () => {
    if (state.points.length && !window.confirm("The example photos take the place of yours. Go on?")) return;
    change(() => session.examples(), { during: "Reading and matching three cats…", after: "Hover over the first cat." })
      .then((answer) => { if (answer) $("category").value = "cat"; });
  });
  $("heat").addEventListener("change", refreshHeat);
  $("blend").addEventListener("change", refreshBlend);
  $("through").addEventListener("change", refreshBlend);
  $("share").addEventListener("input", applyShare);
  $("export").addEventListener("click", exportFile);
  applyShare();
  setInterval(() => session.read().catch(complain), HEARTBEAT_S * 1000);
  window.addEventListener("pagehide", () => session.close());
  window.addEventListener("pageshow", (event) => { if (event.persisted) window.location.reload(); });
  document.documentElement.dataset.ready = "yes";
}

start();

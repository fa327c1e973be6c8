// The studio: starts everything, and goes between all photos and one.

import { api } from "./api.js";
import { openCategories } from "./categories.js";
import { openExport, openHelp } from "./dialogs.js";
import { $, setAttribute, setText, splitPath } from "./dom.js";
import { countUnsaved, flushEdits, reload } from "./edits.js";
import { addExamples, rescan, startFiles } from "./files.js";
import { setActive, showGrid, startGrid } from "./grid.js";
import { fillIcons } from "./icons.js";
import { listenToKeys } from "./keys.js";
import { startMenu } from "./menu.js";
import { hideBanner, showBanner, showError, toast } from "./messages.js";
import { startPanel } from "./panel.js";
import * as photo from "./photo.js";
import { applyTheme, setSetting, settings } from "./settings.js";
import { cancelDrag, fit, ZOOM_STEP, zoomBy } from "./stage.js";
import { on, receiveProject, store } from "./store.js";
import { followChanges, loadFirst } from "./sync.js";
import { firstOfReview, startToolbar } from "./toolbar.js";

const view = () => document.body.dataset.view;

// ---------------------------------------------------------------- views

function setView(name) {
  document.body.dataset.view = name;
  $("grid-view").hidden = name !== "grid";
  $("photo-view").hidden = name !== "photo";
}

/** A photo is open now: the address names it, so that the page can be loaded again. */
function opened(id) {
  const first = view() !== "photo";
  setView("photo");
  if (first) photo.focusStage();
  const hash = `#${id}`;
  if (location.hash !== hash) history[first ? "pushState" : "replaceState"](null, "", hash);
  document.title = `${splitPath(store.photos.get(id).path)[0]} · TransforMatcher studio`;
}

function toGrid() {
  const { id } = photo.open;
  photo.closePhoto();
  setView("grid");
  if (location.hash) history.pushState(null, "", location.pathname);
  document.title = "TransforMatcher studio";
  showGrid(id);
}

function followAddress() {
  const id = Number(location.hash.slice(1));
  if (location.hash && store.photos.has(id)) photo.openPhoto(id);
  else if (view() === "photo") toGrid();
}

/** Open the photo where the review begins. */
function review() {
  const id = firstOfReview();
  if (id === null) toast("All photos are done.");
  else photo.openPhoto(id);
}

// ---------------------------------------------------------------- actions

async function move(direction) {
  try {
    await flushEdits();
    const { name, photos, project } = await api.post(`/api/${direction}`);
    receiveProject(project);
    await Promise.all(photos.slice(0, 20).map(reload));
    if (name === null) toast(direction === "undo" ? "Nothing to undo." : "Nothing to do again.");
    else toast(`${direction === "undo" ? "Undone" : "Done again"}: ${name}`);
    if (!photos.length || photos.includes(photo.open.id)) return;
    if (view() === "photo" && photos.length === 1) photo.openPhoto(photos[0]);
    else if (view() === "grid") setActive(photos[0]);
  } catch (error) {
    showError(error);
  }
}

async function pause() {
  try {
    receiveProject(await api.post("/api/prediction", { paused: store.project.prediction.state !== "paused" }));
  } catch (error) {
    showError(error);
  }
}

const editCategories = () => {
  const first = store.project.categories.length === 0;
  openCategories({ first, saved: (text) => { toast(text); if (first && store.photos.size && view() === "grid") review(); } });
};

const page = {
  zoomIn: () => zoomBy(ZOOM_STEP),
  zoomOut: () => zoomBy(1 / ZOOM_STEP),
  fit,
  toggleNames: () => setSetting("names", !settings.names),
  toggleSkeleton: () => setSetting("skeleton", !settings.skeleton),
  toggleHeat: () => setSetting("heat", !settings.heat),
  undo: () => { move("undo"); },
  redo: () => { move("redo"); },
  toGrid: () => { if (view() === "photo") toGrid(); },
  escape: () => {
    if (view() !== "photo" || cancelDrag()) return;
    if (photo.open.drawing) photo.toggleDrawing(false);
    else toGrid();
  },
  help: () => openHelp(actions),
  search: () => $("search").focus(),
  review,
};
const actions = { photo, page };

/** Buttons of the photo view: a click does not take the keyboard away from the photo. */
function onClick(id, run) {
  $(id).addEventListener("click", (event) => {
    run();
    if (event.detail > 0 && view() === "photo") photo.focusStage();
  });
}

function startButtons() {
  const buttons = {
    "to-grid": page.toGrid, undo: page.undo, redo: page.redo, suggest: photo.openSuggestion,
    "point-keep": photo.keepPoint, "point-hidden": photo.toggleHidden, "point-absent": photo.markAbsent,
    "point-back": photo.backToPrediction, previous: photo.previousPhoto, next: photo.nextPhoto, accept: photo.accept,
    skip: photo.skip, reopen: photo.reopen, "toggle-names": page.toggleNames, "toggle-skeleton": page.toggleSkeleton, "toggle-heat": page.toggleHeat,
    "zoom-in": page.zoomIn, "zoom-out": page.zoomOut, "zoom-fit": page.fit,
  };
  for (const [id, run] of Object.entries(buttons)) onClick(id, run);
  $("help-button").addEventListener("click", page.help);
}

// ---------------------------------------------------------------- what is always shown

function showProject(project) {
  for (const [id, key] of [["undo", "Z"], ["redo", "⇧ Z"]]) {
    const label = id === "undo" ? "Undo" : "Redo";
    $(id).disabled = project[id] === null;
    setAttribute($(id), "title", project[id] === null ? label : `${label}: ${project[id]} (${key})`);
    setAttribute($(id), "aria-label", project[id] === null ? label : `${label}: ${project[id]}`);
  }
  const name = project.temporary ? "Studio" : splitPath(project.folder.replaceAll("\\", "/").replace(/\/$/, ""))[0];
  setText($("project-name"), name);
  $("title").title = project.folder;
  $("suggest").disabled = project.suggestion === null;
  if (project.prediction.problem) showBanner("prediction", project.prediction.problem, { closable: false });
  else hideBanner("prediction");
  if (project.temporary && project.counts.reviewed + project.counts.marked > 0) {
    showBanner("temporary", "This project is temporary: export it before the server stops.", { kind: "news" });
  }
}

function showSettings() {
  setAttribute($("toggle-names"), "aria-pressed", settings.names);
  setAttribute($("toggle-skeleton"), "aria-pressed", settings.skeleton);
  setAttribute($("toggle-heat"), "aria-pressed", settings.heat);
}

async function start() {
  applyTheme();
  fillIcons();
  showSettings();
  if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", location.pathname + location.hash);
  const fileActions = {
    importFile: () => $("import-file").click(), addPhotos: () => $("photo-files").click(), exportFile: openExport, scan: rescan,
    examples: addExamples, editCategories, pause, help: page.help,
  };
  startToolbar({ ...fileActions, open: photo.openPhoto, review });
  startPanel({
    select: (keypoint) => { photo.select(keypoint); photo.focusStage(); }, selectObject: photo.selectObject,
    chooseCategory: photo.chooseCategory, draw: () => photo.toggleDrawing(), deleteObject: photo.deleteObject,
  });
  startMenu(fileActions);
  startButtons();
  startFiles();
  photo.startPhoto({ opened, leave: toGrid });
  startGrid(photo.openPhoto);
  on("project", showProject);
  on("settings", showSettings);
  on("unsaved", (n) => { document.documentElement.dataset.unsaved = n; });
  await loadFirst();
  listenToKeys({ photo: { ...photo }, page }, view);
  window.addEventListener("popstate", followAddress);
  window.addEventListener("beforeunload", (event) => { if (countUnsaved()) event.preventDefault(); });
  window.addEventListener("pagehide", () => { flushEdits(); });
  followAddress();
  if (view() === "grid") $("grid").focus({ preventScroll: true });
  if (!store.project.categories.length && store.photos.size) editCategories();
  document.documentElement.dataset.ready = "";
  followChanges().catch(showError);
}

start().catch(showError);

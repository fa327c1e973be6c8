// Counts, pace and prediction → what to do next, filters with counts, progress; search and order of the grid.

import { badge } from "./cell.js";
import { $, atNextFrame, delayed, duration, element, plural, roundTo, setAttribute, setText, splitPath } from "./dom.js";
import { icon } from "./icons.js";
import { choice, choose, counts, queue } from "./order.js";
import { setSetting, settings } from "./settings.js";
import { PHOTO_STATES } from "./shapes.js";
import { on, store } from "./store.js";

const SEARCH_MS = 120;
const LISTS = ["all", "unsure", "predicted", "marked", "reviewed", "unmarked", "failed"];
const chips = new Map();
let actions = {};

/** Set the toolbar up. actions: {open(id), review(), editCategories(), exportFile(), addPhotos(), examples(), pause()}. */
export function startToolbar(given) {
  actions = given;
  for (const name of LISTS) {
    const count = element("span", { className: "count" });
    const button = element("button", { type: "button", className: "chip", onclick: () => choose({ filter: name }) },
      name === "all" ? null : badge(name), name === "all" ? "All" : PHOTO_STATES[name], count);
    chips.set(name, { button, count });
    $("chips").append(button);
  }
  const search = delayed(() => choose({ search: $("search").value }), SEARCH_MS);
  $("search").addEventListener("input", search);
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === "ArrowDown") { search.flush(); $("grid").focus(); event.preventDefault(); }
    if (event.key === "Escape") { $("search").value = ""; choose({ search: "" }); $("grid").focus(); }
    event.stopPropagation();
  });
  $("sort").value = settings.sort;
  $("sort").addEventListener("change", () => setSetting("sort", $("sort").value));
  $("prediction").addEventListener("click", () => actions.pause());
  const updateSoon = atNextFrame(update);
  for (const event of ["list", "project", "photos"]) on(event, updateSoon);
}

function update() {
  if (!store.project) return;
  const n = counts();
  for (const [name, { button, count }] of chips) {
    setText(count, n[name].toLocaleString("en"));
    setAttribute(button, "aria-pressed", choice.filter === name);
    button.hidden = n[name] === 0 && !["all", choice.filter].includes(name);
  }
  document.querySelector(".filters").hidden = n.all === 0;
  updatePrediction(store.project.prediction);
  updateProgress(n);
  updateGuide(n);
  updateEmpty(n);
}

/** What the background work is doing: [icon, text]. */
function predictionText({ state, done, total, photos_per_second: speed }) {
  const count = `${done.toLocaleString("en")} of ${total.toLocaleString("en")}`;
  const rest = speed ? ` · ${roundTo(speed, 1)} photos/s · ${duration((total - done) / speed)}` : "";
  return {
    predicting: ["pause", `Predicting ${count}${rest}`],
    waiting: ["pause", `Predicting ${count} · waits while you work`],
    paused: ["play", `Prediction paused at ${count}`],
    idle: ["check", "All predicted"],
    no_references: ["photo", "Nothing marked yet"],
    problem: ["warning", "Prediction has stopped"],
  }[state];
}

function updatePrediction(prediction) {
  const button = $("prediction");
  const [name, text] = predictionText(prediction);
  button.hidden = prediction.state === "no_references";
  button.disabled = ["idle", "problem"].includes(prediction.state);
  button.className = `pill ${prediction.state}`;
  const part = prediction.total ? prediction.done / prediction.total : 1;
  button.style.setProperty("--part", String(part));
  if (button.dataset.icon !== name) {
    button.dataset.icon = name;
    button.querySelector(".pill-icon").replaceChildren(icon(name));
  }
  setText(button.querySelector(".pill-text"), text);
  const verb = { pause: "Pause the prediction", play: "Go on with the prediction" }[name];
  setAttribute(button, "title", verb ? `${verb}. ${text}` : text);
  setAttribute(button, "aria-label", verb ? `${text}. ${verb}` : text);
}

function updateProgress(n) {
  const parts = ["reviewed", "marked", "predicted", "unsure", "unmarked"];
  const total = Math.max(n.all - n.failed, 1);
  const bar = $("progress");
  if (!bar.children.length) bar.append(...parts.map((name) => element("i", { className: name })));
  parts.forEach((name, i) => { bar.children[i].style.flexGrow = String(n[name] / total); });
  setAttribute(bar, "aria-label", parts.map((name) => `${n[name]} ${PHOTO_STATES[name]}`).join(", "));
  bar.hidden = n.all === 0;
}

function paceText(n) {
  const { seconds_per_photo: seconds, remaining_s: rest } = store.project.pace;
  const done = `${n.reviewed.toLocaleString("en")} of ${(n.all - n.failed).toLocaleString("en")} done`;
  if (!seconds || !rest) return done;
  const pace = seconds < 90 ? `${Math.max(Math.round(seconds), 1)} s` : `${roundTo(seconds / 60, 1)} min`;
  return `${done} · ${duration(rest)} left at your pace (${pace} a photo)`;
}

const button = (label, run, { primary = false, key = null } = {}) =>
  element("button", { type: "button", className: primary ? "primary" : "", onclick: run }, label,
    key && element("kbd", { textContent: key }));

function suggestionButton() {
  const photo = store.photos.get(store.project.suggestion);
  if (!photo) return null;
  return element("button", {
    type: "button", className: "suggestion", title: `${photo.path}: its marks would help with most of the others`,
    onclick: () => actions.open(photo.id),
  }, icon("bulb"), element("span", {}, element("small", { textContent: "Teaches most" }), splitPath(photo.path)[0]),
  element("kbd", { textContent: "M" }));
}

/** What to do next: {title, buttons}. */
function nextStep(n) {
  const { categories, prediction } = store.project;
  if (n.all === 0) return null;
  const waiting = n.unsure + n.predicted + n.marked;
  if (!categories.length) {
    return {
      title: "First, name the keypoints", note: "Say what is to be marked, for example the wheels and lamps of a car.",
      buttons: [button("Name the keypoints…", actions.editCategories, { primary: true })],
    };
  }
  if (n.unmarked + waiting === 0) {
    return { title: "All photos are done", buttons: [button("Export…", actions.exportFile, { primary: true })] };
  }
  if (prediction.state === "no_references") {
    return {
      title: "Mark the first photo", note: "The rest is predicted from it. Choose one that shows the object well.",
      buttons: [button("Mark a photo", actions.review, { primary: true, key: "N" })],
    };
  }
  if (waiting === 0) {
    return { title: "The first predictions are on their way", buttons: [suggestionButton(), button("Mark another", actions.review)] };
  }
  return {
    title: `${plural(waiting, "photo")} to review`,
    buttons: [suggestionButton(), button("Review", actions.review, { primary: true, key: "N" })],
  };
}

let shownStep = "";

function updateGuide(n) {
  const step = nextStep(n);
  $("guide").hidden = step === null;
  if (!step) return;
  setText($("guide-title"), step.title);
  setText($("guide-note"), step.note ?? paceText(n));
  const key = `${step.title} ${store.project.suggestion}`;
  if (key === shownStep) return; // a button that has the focus stays
  shownStep = key;
  $("guide-actions").replaceChildren(...step.buttons.filter(Boolean));
}

function updateEmpty(n) {
  const node = $("empty");
  const key = `${n.all === 0} ${store.project.uploads}`;
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  const { uploads, folder } = store.project;
  if (n.all > 0) node.replaceChildren(element("p", { textContent: "No photo matches." }),
    button("Show all", () => { $("search").value = ""; choose({ filter: "all", search: "" }); }));
  else if (uploads) node.replaceChildren(icon("images"), element("h2", { textContent: "Mark keypoints once, find them everywhere" }),
    element("p", { textContent: "Drop photos of the same kind of object here. They are sent to nobody but the server of this page, and gone when it stops." }),
    element("div", { className: "buttons" }, button("Choose photos…", actions.addPhotos, { primary: true }),
      button("Try with example photos", actions.examples)));
  else node.replaceChildren(icon("images"), element("h2", { textContent: "There are no photos in this folder yet" }),
    element("p", { textContent: folder }), button("Look again", actions.scan, { primary: true }));
}

/** Where the review begins: the least sure photo, or the one that the server suggests if nothing is marked yet. */
export function firstOfReview() {
  const { prediction, suggestion } = store.project;
  if (prediction.state === "no_references" && store.photos.has(suggestion)) return suggestion;
  return queue()[0] ?? null;
}

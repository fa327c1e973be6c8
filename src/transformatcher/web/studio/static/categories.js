// The categories of a project: names, keypoints in order, lines of the skeleton. Typed, one keypoint a line.

import { api } from "./api.js";
import { $, element, plural } from "./dom.js";
import { openDialog } from "./dialogs.js";
import { icon } from "./icons.js";
import { receiveProject, store } from "./store.js";

const EXAMPLE = "left front wheel\nright front wheel\nleft headlight\nright headlight";

let draft = null; // {known: the category as the server has it or null, name, typed: all lines, lines: those with a name, edges: [[name, name]]}
let joining = null; // the keypoint that a line begins at
let done = () => {};

/** Open the editor. first: the project has no category yet; saved() is called when something was stored. */
export function openCategories({ first = false, saved = () => {} } = {}) {
  done = saved;
  edit(first ? null : store.project.categories[0] ?? null, first);
}

function edit(category, first = false) {
  const nameOf = new Map(category?.keypoints.map((keypoint) => [keypoint.id, keypoint.name]));
  const names = category?.keypoints.map((keypoint) => keypoint.name) ?? [];
  draft = {
    known: category, name: category?.name ?? "", typed: names, lines: names.slice(),
    edges: category?.skeleton.map((edge) => edge.map((id) => nameOf.get(id))) ?? [],
  };
  joining = null;
  show(first);
}

function show(first) {
  const { categories } = store.project;
  const tabs = element("div", { className: "chips tabs", role: "group", "aria-label": "Categories" },
    ...categories.map((one) => element("button", {
      type: "button", className: "chip", textContent: one.name, "aria-pressed": one.id === draft.known?.id, onclick: () => edit(one),
    })),
    element("button", { type: "button", className: "chip", "aria-pressed": draft.known === null, onclick: () => edit(null) },
      icon("plus"), "New category"));
  const name = element("input", {
    id: "category-name", value: draft.name, maxLength: 80, placeholder: "car", spellcheck: false, autocomplete: "off",
    oninput: (event) => { draft.name = event.target.value; },
  });
  const lines = element("textarea", {
    id: "category-keypoints", value: draft.lines.join("\n"), placeholder: EXAMPLE, rows: 11, spellcheck: false,
    "aria-describedby": "category-hint", oninput: (event) => { renameLines(parse(event.target.value)); showLines(); },
  });
  const problem = element("p", { className: "problem", id: "category-problem", role: "alert" });
  const save = element("button", { type: "button", className: "primary", id: "category-save", onclick: () => saveDraft(save, problem) },
    draft.known ? "Save" : first ? "Save and mark the first photo" : "Add the category");
  const dialog = openDialog("categories", first ? "What do you want to mark?" : "Categories and keypoints", [
    first ? element("p", { className: "lead", textContent: "Name the kind of object and its keypoints, in the order in which you will "
      + "click them. Then mark one photo: the others are predicted from it." }) : tabs,
    element("div", { className: "columns" },
      element("div", {}, element("label", { for: "category-name", textContent: "Name" }), name,
        element("label", { for: "category-keypoints", textContent: "Keypoints, one per line" }), lines,
        element("p", { className: "note", id: "category-hint", textContent: "“left” and “right” in names make twins, which lets mirrored objects match." })),
      element("div", {}, element("h3", { textContent: "Order and skeleton" }),
        element("p", { className: "note", textContent: "Click two keypoints to join them by a line, or to part them." }),
        element("ol", { id: "category-list" }), element("div", { id: "category-edges", className: "chips" }))),
    problem,
  ], [save]);
  showLines();
  dialog.querySelector(draft.name ? "#category-keypoints" : "#category-name").focus();
}

const parse = (text) => text.split("\n").map((line) => line.trim());

/** Which old name each new name stands for: the same one, or one that is gone and had the place after the name before; -1: none. */
function align(before, after) {
  const found = [];
  after.forEach((name, i) => {
    const at = before.indexOf(name);
    const place = i === 0 ? 0 : found[i - 1] + 1;
    const renamed = (i === 0 || found[i - 1] >= 0) && place < before.length && !after.includes(before[place]) && !found.includes(place);
    found.push(at >= 0 ? at : renamed ? place : -1);
  });
  return found;
}

/** Lines were typed: the skeleton follows those that were renamed in place. Empty lines keep their place meanwhile. */
function renameLines(typed) {
  const before = draft.typed;
  const renamed = new Map(align(before, typed).map((at, i) => [before[at], typed[i]]));
  draft.edges = draft.edges.map((edge) => edge.map((name) => renamed.get(name) ?? name));
  draft.typed = typed;
  draft.lines = typed.filter(Boolean);
}

/** The ids of the lines: by name; a line that has a new name, in the place of one that is gone, keeps its id. */
function idsOfLines() {
  const known = draft.known?.keypoints ?? [];
  return align(known.map((keypoint) => keypoint.name), draft.lines).map((at) => known[at]?.id ?? null);
}

function showLines() {
  const ids = idsOfLines();
  const known = new Map(draft.known?.keypoints.map((keypoint) => [keypoint.id, keypoint]));
  $("category-list").replaceChildren(...draft.lines.map((line, i) => {
    const before = known.get(ids[i]);
    const twin = before?.name === line ? known.get(before.twin)?.name : null;
    const notes = [];
    if (before && before.name !== line) notes.push(`was ${before.name}`);
    if (draft.known && !before) notes.push("new");
    return element("li", { className: joining === line ? "joining" : "" },
      element("button", { type: "button", className: "line", "aria-pressed": joining === line, onclick: () => join(line) },
        element("span", { textContent: line }), twin ? element("small", { className: "twin", title: `twin of ${twin}` }, icon("twin"), twin) : null,
        notes.length ? element("small", { textContent: notes.join(", ") }) : null),
      mover(i, -1), mover(i, 1));
  }));
  const edges = draft.edges.filter((edge) => edge.every((name) => draft.lines.includes(name)));
  $("category-edges").replaceChildren(...edges.map(([a, b]) => element("button", {
    type: "button", className: "chip edge", title: "Remove this line", "aria-label": `Remove the line from ${a} to ${b}`, onclick: () => toggleEdge(a, b),
  }, `${a} – ${b}`, icon("close"))));
  const removed = [...known.values()].filter((keypoint) => !ids.includes(keypoint.id));
  $("category-problem").textContent = removed.length
    ? `${removed.map((keypoint) => keypoint.name).join(", ")}: removed, and ${removed.length === 1 ? "its" : "their"} marks, too. Undo brings them back.`
    : "";
}

function mover(i, step) {
  const to = i + step;
  return element("button", {
    type: "button", className: "tool", "aria-label": `Move ${draft.lines[i]} ${step < 0 ? "up" : "down"}`,
    disabled: to < 0 || to >= draft.lines.length,
    onclick: () => {
      [draft.lines[i], draft.lines[to]] = [draft.lines[to], draft.lines[i]];
      draft.typed = draft.lines;
      $("category-keypoints").value = draft.lines.join("\n");
      showLines();
    },
  }, icon(step < 0 ? "up" : "down"));
}

function join(name) {
  if (joining !== null && joining !== name) toggleEdge(joining, name);
  joining = joining === null ? name : null;
  showLines();
}

function toggleEdge(a, b) {
  const same = ([c, d]) => (c === a && d === b) || (c === b && d === a);
  draft.edges = draft.edges.some(same) ? draft.edges.filter((edge) => !same(edge)) : [...draft.edges, [a, b]];
  showLines();
}

async function saveDraft(save, problem) {
  const { known, name, lines } = draft;
  const keypoints = lines.slice();
  const skeleton = draft.edges.map((edge) => edge.map((one) => keypoints.indexOf(one))).filter((edge) => !edge.includes(-1));
  if (!name.trim() || !keypoints.length) {
    problem.textContent = "A category has a name and at least one keypoint.";
    return;
  }
  save.disabled = true;
  try {
    const ids = idsOfLines();
    receiveProject(known
      ? await api.put(`/api/categories/${known.id}`, { name, keypoints: keypoints.map((one, i) => ({ id: ids[i], name: one })), skeleton })
      : await api.post("/api/categories", { name, keypoints, skeleton }));
    $("categories").close();
    const saved = store.project.categories.find((category) => category.name === name.trim());
    const pairs = (saved?.keypoints.filter((keypoint) => keypoint.twin !== null).length ?? 0) / 2;
    done(`${name.trim()}: ${plural(keypoints.length, "keypoint")}${pairs ? `, ${plural(pairs, "left and right pair")}` : ""}`);
  } catch (error) {
    problem.textContent = error.message;
  } finally {
    save.disabled = false;
  }
}

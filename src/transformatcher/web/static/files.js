// Photos and COCO files in and out: file dialogs, drag and drop, downloads.

import { change } from "./actions.js";
import { ApiError } from "./api.js";
import { showError, showStatus } from "./messages.js";
import { $, element, page } from "./page.js";

async function upload(files, role) {
  const photos = [...files];
  if (!photos.length) return;
  if (role === "source" && page.state.source && page.state.points.length
    && !window.confirm("A new source photo removes all points. Continue?")) return;
  const limit = page.server.limits.upload_bytes;
  for (const [index, file] of photos.entries()) {
    if (file.size > limit) {
      showError(new ApiError(`${file.name}: too large; the limit is ${limit / 1e6} MB.`));
      continue;
    }
    const count = photos.length > 1 ? ` (${index + 1} of ${photos.length})` : "";
    await change(() => page.api.upload(file, role), { during: `Reading and matching ${file.name}${count}…` });
  }
}

/** Dropped on the source's section, the first photo becomes the source, and further ones become targets. */
async function uploadDropped(files, role) {
  const isJson = (file) => file.name.toLowerCase().endsWith(".json");
  const photos = files.filter((file) => !isJson(file));
  if (role === "source") await upload(photos.splice(0, 1), "source");
  await upload(photos, "target");
  for (const file of files.filter(isJson)) await importFile(file);
}

async function importFile(file) {
  const answer = await change(() => page.api.importCoco(file), { during: `Importing ${file.name}…` });
  if (!answer) return;
  $("category").value = answer.category;
  showStatus([`${page.state.points.length} points imported.`, ...answer.warnings].join(" "));
}

async function exportFile() {
  try {
    const blob = await page.api.exportCoco($("category").value.trim() || "object");
    const link = element("a", { href: URL.createObjectURL(blob), download: "keypoints.json" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    showStatus("Exported keypoints.json.");
  } catch (error) {
    showError(error);
  }
}

async function loadExamples() {
  if (page.state.points.length && !window.confirm("The example photos replace yours. Continue?")) return;
  const answer = await change(() => page.api.loadExamples(),
    { during: "Reading and matching three cats…", after: "Hover over the first cat." });
  if (answer) $("category").value = "cat";
}

function acceptFiles(input, accept) {
  input.addEventListener("change", async () => {
    const files = [...input.files];
    input.value = ""; // so that the same file can be chosen again
    if (files.length) await accept(files);
  });
}

function acceptDrops(node, role) {
  let depth = 0; // of nested elements entered
  const enter = (by) => {
    depth += by;
    node.classList.toggle("dragging", depth > 0);
  };
  node.addEventListener("dragenter", (event) => { event.preventDefault(); enter(1); });
  node.addEventListener("dragleave", () => enter(-1));
  node.addEventListener("dragover", (event) => event.preventDefault());
  node.addEventListener("drop", (event) => {
    event.preventDefault();
    enter(-depth);
    if (event.dataTransfer.files.length) uploadDropped([...event.dataTransfer.files], role);
  });
}

export function connectFiles() {
  acceptFiles($("source-file"), (files) => upload(files, "source"));
  acceptFiles($("target-files"), (files) => upload(files, "target"));
  acceptFiles($("import-file"), ([file]) => importFile(file));
  acceptDrops(document.querySelector("section.source"), "source");
  acceptDrops(document.querySelector("section.targets"), "target");
  window.addEventListener("dragover", (event) => event.preventDefault()); // dropped beside a section, a photo …
  window.addEventListener("drop", (event) => event.preventDefault()); // … would open in place of the page
  $("examples").addEventListener("click", loadExamples);
  $("export").addEventListener("click", exportFile);
}

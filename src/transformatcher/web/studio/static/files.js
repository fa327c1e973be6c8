// Files that the person chooses or drops → photos of the project, or an imported COCO file.

import { api } from "./api.js";
import { $, plural, sleep } from "./dom.js";
import { hideBanner, showBanner, showError, toast } from "./messages.js";
import { loadAll, receivePhotos, receiveProject, store } from "./store.js";

const UPLOAD_TRIES = 5; // of a photo, while the server is busy
const RETRY_MS = 1500;

/** Set up the file fields, and dropping of files anywhere on the page. */
export function startFiles() {
  $("import-file").addEventListener("change", (event) => takeFiles(event.target, ([file]) => importFile(file)));
  $("photo-files").addEventListener("change", (event) => takeFiles(event.target, addPhotos));
  let depth = 0;
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  const over = (change) => {
    depth = change === 0 ? 0 : depth + change;
    $("drop").hidden = depth <= 0 || !store.project?.uploads;
  };
  window.addEventListener("dragenter", (event) => { if (hasFiles(event)) over(1); });
  window.addEventListener("dragleave", (event) => { if (hasFiles(event)) over(-1); });
  window.addEventListener("dragover", (event) => { if (hasFiles(event)) event.preventDefault(); });
  window.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault(); // never leave the page for a dropped file
    over(0);
    const files = [...event.dataTransfer.files];
    const coco = files.filter((file) => file.name.toLowerCase().endsWith(".json"));
    for (const file of coco) importFile(file);
    const photos = files.filter((file) => !coco.includes(file));
    if (photos.length && store.project?.uploads) addPhotos(photos);
    else if (photos.length) toast("Put photos into the folder of the project, then choose “Look for new photos”.");
  });
}

function takeFiles(input, run) {
  const files = [...input.files];
  input.value = ""; // so that the same file can be chosen again
  if (files.length) run(files);
}

/** Send photos, one after the other; those that fail are named. */
async function addPhotos(files) {
  const failed = [];
  for (const [i, file] of files.entries()) {
    showBanner("upload", `Adding photos: ${i + 1} of ${files.length}`, { kind: "news", closable: false });
    try {
      const answer = await uploadPhoto(file);
      receivePhotos([answer.photo]);
      receiveProject(answer.project);
    } catch (error) {
      failed.push(error.message);
      if (error.temporary) break;
    }
  }
  hideBanner("upload");
  for (const message of failed) showBanner(`error ${message}`, message);
  if (failed.length < files.length) toast(`${plural(files.length - failed.length, "photo")} added`);
}

async function uploadPhoto(file) {
  for (let tried = 1; ; tried++) {
    try {
      return await api.upload(`/api/photos?name=${encodeURIComponent(file.name)}`, file);
    } catch (error) {
      if (!error.temporary || tried >= UPLOAD_TRIES) throw error;
      await sleep(RETRY_MS);
    }
  }
}

/** Three photos with marks on the first. */
export async function addExamples() {
  try {
    receiveProject(await api.post("/api/examples"));
    await loadAll();
  } catch (error) {
    showError(error);
  }
}

/** Import the marks of a COCO file. */
async function importFile(file) {
  showBanner("import", `Importing ${file.name} …`, { kind: "news", closable: false });
  try {
    const answer = await api.upload(`/api/import?name=${encodeURIComponent(file.name)}`, file);
    await loadAll();
    const counts = [plural(answer.images, "photo"), plural(answer.objects, "object"), plural(answer.keypoints, "keypoint")];
    showBanner("imported", `${file.name}: ${counts.join(", ")} imported${skippedText(answer)}`, { kind: "news" });
  } catch (error) {
    showError(error);
  } finally {
    hideBanner("import");
  }
}

function skippedText({ skipped, project }) {
  if (!skipped.length) return project.undo?.startsWith("import") ? "; Z takes it back." : ".";
  const rest = skipped.length > 3 ? ` … and ${skipped.length - 3} more` : "";
  return `. Left out: ${skipped.slice(0, 3).join("; ")}${rest}`;
}

/** Compare the folder with the project. */
export async function rescan() {
  try {
    const { added, moved, changed, missing, back, left_out: leftOut } = await api.post("/api/scan");
    await loadAll();
    const parts = [[added, "new"], [moved, "moved"], [changed, "changed"], [missing, "missing"], [back, "there again"]].filter(([n]) => n > 0);
    toast(parts.length ? parts.map(([n, word]) => `${plural(n, "photo")} ${word}`).join(", ") : "Nothing has changed in the folder.");
    const problems = Object.entries(leftOut).map(([name, why]) => `${name}: ${why}`);
    if (problems.length) showBanner("scan", `Left out: ${problems.slice(0, 5).join("; ")}`);
  } catch (error) {
    showError(error);
  }
}

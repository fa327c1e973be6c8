// The server's changes → the store, for as long as the page is open; and to the server: which photos are on screen.

import { api } from "./api.js";
import { delayed, sleep } from "./dom.js";
import { hideBanner, showBanner } from "./messages.js";
import { emit, loadAll, receivePhotos, receiveProject, store } from "./store.js";

const POLL_TIMEOUT_MS = 60_000; // the server answers after 25 s at the latest
const RETRY_MS = [500, 1000, 2000, 4000];
const VIEW_DELAY_MS = 300;
const MAX_IN_VIEW = 200;

/** Tell everybody whether the server answers. */
export function setOnline(online, message) {
  if (online) hideBanner("offline");
  else showBanner("offline", `${message} Trying again…`, { closable: false });
  if (store.online === online) return;
  store.online = online;
  emit("online", online);
}

const retryDelay = (failures) => RETRY_MS[Math.min(failures, RETRY_MS.length) - 1];

/** Load everything, as often as it takes. */
export async function loadFirst() {
  for (let failures = 1; ; failures++) {
    try {
      await loadAll();
      setOnline(true);
      return;
    } catch (error) {
      if (!error.temporary) throw error;
      setOnline(false, error.message);
      await sleep(retryDelay(failures));
    }
  }
}

/** Follow the changes; returns never. */
export async function followChanges() {
  let failures = 0;
  for (;;) {
    try {
      if (failures) await loadAll(); // the server may have been restarted
      const since = store.revision;
      const answer = await api.get(`/api/changes?since=${since}`, AbortSignal.timeout(POLL_TIMEOUT_MS));
      failures = 0;
      setOnline(true);
      if (answer.revision < since) await loadAll(); // another project under the same address
      store.revision = answer.revision;
      receivePhotos(answer.photos);
      receiveProject(answer.project);
    } catch (error) {
      if (error.name === "TypeError") throw error;
      failures++;
      setOnline(false, error.status ? error.message : "The server does not answer; is it still running?");
      await sleep(retryDelay(failures));
    }
  }
}

let wanted = [];
let told = "";

const tell = delayed(() => {
  const key = wanted.join();
  if (key === told || !store.online) return;
  told = key;
  api.post("/api/view", { photos: wanted }).catch(() => { told = ""; });
}, VIEW_DELAY_MS);

/** Say which photos are on screen: they are predicted first. */
export function setInView(ids) {
  wanted = ids.slice(0, MAX_IN_VIEW);
  tell();
}

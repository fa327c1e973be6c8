// Starts the page: opens a session and connects the controls.

import { showState } from "./actions.js";
import { SessionApi } from "./api.js";
import { connectFiles } from "./files.js";
import { showError } from "./messages.js";
import { applyBlendOpacity, refreshBlends, refreshHeatmaps } from "./overlays.js";
import { $, page } from "./page.js";

const KEEP_ALIVE_S = 300; // the server drops a session after half an hour without a request

async function start() {
  try {
    [page.api, page.server] = await SessionApi.open();
  } catch (error) {
    showError(error);
    return;
  }
  showState(page.server);
  $("legend-no-match").hidden = !page.server.calibrated;
  $("privacy").textContent = `Photos stay in the memory of ${page.server.local ? "this computer" : "the server"} until `
    + `this page is closed; nothing is written to disk or sent elsewhere. transformatcher ${page.server.version}`;
  connectFiles();
  $("heatmap").addEventListener("change", refreshHeatmaps);
  $("blend").addEventListener("change", refreshBlends);
  $("control-points").addEventListener("change", refreshBlends);
  $("blend-opacity").addEventListener("input", applyBlendOpacity);
  applyBlendOpacity();
  setInterval(() => page.api.read().catch(showError), KEEP_ALIVE_S * 1000);
  window.addEventListener("pagehide", () => page.api.close());
  window.addEventListener("pageshow", (event) => { if (event.persisted) window.location.reload(); });
  document.documentElement.dataset.ready = "yes";
}

start();

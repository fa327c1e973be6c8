// Requests to the server → JSON, or an ApiError whose message is shown to the user.

const HEADERS = { "X-Transformatcher": "1" }; // the server requires it: other sites cannot send it
const MAX_ATTEMPTS = 5; // when the server is busy (503)

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

async function request(method, path, { body, json, signal } = {}) {
  const headers = { ...HEADERS };
  if (json !== undefined) {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(json);
  } else if (body !== undefined) {
    headers["Content-Type"] = "application/octet-stream";
  }
  for (let attempt = 1; ; attempt++) {
    let response;
    try {
      response = await fetch(path, { method, headers, body, signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The server does not answer; is it still running?", 0);
    }
    if (response.ok) return response;
    if (response.status === 503 && attempt < MAX_ATTEMPTS) {
      await sleep(Number(response.headers.get("Retry-After")) || 2);
      continue;
    }
    const message = await response.json().then((answer) => answer.error, () => undefined);
    throw new ApiError(message ?? `The server answered ${response.status}.`, response.status);
  }
}

const requestJson = async (...args) => (await request(...args)).json();

/** The API of one session. Every method returns the session's new state, unless its comment says otherwise. */
export class SessionApi {
  /** Open a session → [SessionApi, its state with facts about the server]. */
  static async open() {
    const answer = await requestJson("POST", "/api/sessions");
    return [new SessionApi(answer.session), answer];
  }

  constructor(id) {
    this.root = `/api/sessions/${encodeURIComponent(id)}`;
  }

  read = () => requestJson("GET", this.root);
  upload = (file, role) =>
    requestJson("POST", `${this.root}/photos?role=${role}&name=${encodeURIComponent(file.name)}`, { body: file });
  loadExamples = () => requestJson("POST", `${this.root}/examples`);
  removePhoto = (photo) => requestJson("DELETE", `${this.root}/photos/${photo}`);

  /** Returns the address of a photo. */
  imageUrl = (photo) => `${this.root}/photos/${photo}/image`;
  /** Returns {predictions, heatmaps} of a position on the source, by target. */
  match = (x, y, heatmap) => requestJson("GET", `${this.root}/match?x=${x}&y=${y}&heatmap=${heatmap}`);
  /** Returns {heatmaps} of a point, by target. */
  heatmaps = (point, signal) => requestJson("GET", `${this.root}/points/${point}/heatmaps`, { signal });

  addPoint = (x, y) => requestJson("POST", `${this.root}/points`, { json: { x, y } });
  changePoint = (point, change) => requestJson("PATCH", `${this.root}/points/${point}`, { json: change });
  removePoint = (point) => requestJson("DELETE", `${this.root}/points/${point}`);
  pin = (point, photo, position) =>
    requestJson("PUT", `${this.root}/points/${point}/pins/${photo}`, { json: position });
  unpin = (point, photo) => requestJson("DELETE", `${this.root}/points/${point}/pins/${photo}`);

  /** Returns the COCO file as a Blob. */
  exportCoco = async (category) =>
    (await request("GET", `${this.root}/coco?category=${encodeURIComponent(category)}`)).blob();
  importCoco = (file) =>
    requestJson("POST", `${this.root}/coco?name=${encodeURIComponent(file.name)}`, { body: file });

  /** Returns {url, description} of the source warped onto a target; revoke the url after use. */
  warp = async (photo, controlPoints, signal) => {
    const path = `${this.root}/photos/${photo}/warp?control_points=${controlPoints}`;
    const response = await request("GET", path, { signal });
    return {
      url: URL.createObjectURL(await response.blob()),
      description: response.headers.get("X-Control-Points") ?? "",
    };
  };

  /** Close the session while the page is being left: a beacon is still sent then. Returns nothing. */
  close = () => { navigator.sendBeacon(`${this.root}/close`); };
}

// Requests to the server → JSON, or an Error whose message is a sentence to show.

const OURS = { "X-Transformatcher": "1" };
const PATIENCE = 5; // how often a busy server is asked again

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const pause = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

async function request(method, path, { body, json, signal } = {}) {
  const headers = { ...OURS };
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
    if (response.status === 503 && attempt < PATIENCE) {
      await pause(Number(response.headers.get("Retry-After")) || 2);
      continue;
    }
    const sentence = await response.json().then((answer) => answer.error, () => undefined);
    throw new ApiError(sentence ?? `The server answered ${response.status}.`, response.status);
  }
}

const asJson = async (...args) => (await request(...args)).json();

/** One session with the server; every method returns the new state unless it says otherwise. */
export class Session {
  static async open() {
    const first = await asJson("POST", "/api/sessions");
    return [new Session(first.session), first];
  }

  constructor(id) {
    this.root = `/api/sessions/${encodeURIComponent(id)}`;
  }

  read = () => asJson("GET", this.root);
  upload = (file, role) =>
    asJson("POST", `${this.root}/photos?role=${role}&name=${encodeURIComponent(file.name)}`, { body: file });
  examples = () => asJson("POST", `${this.root}/examples`);
  removePhoto = (photo) => asJson("DELETE", `${this.root}/photos/${photo}`);
  imageUrl = (photo) => `${this.root}/photos/${photo}/image`;

  /** Not a state: {on, heat} for any place on the source. */
  match = (x, y, heat, signal) => asJson("GET", `${this.root}/match?x=${x}&y=${y}&heat=${heat}`, { signal });
  /** Not a state: {heat}. */
  heat = (point, signal) => asJson("GET", `${this.root}/points/${point}/heat`, { signal });

  addPoint = (x, y) => asJson("POST", `${this.root}/points`, { json: { x, y } });
  changePoint = (point, change) => asJson("PATCH", `${this.root}/points/${point}`, { json: change });
  removePoint = (point) => asJson("DELETE", `${this.root}/points/${point}`);
  pin = (point, photo, place) => asJson("PUT", `${this.root}/points/${point}/on/${photo}`, { json: place });
  unpin = (point, photo) => asJson("DELETE", `${this.root}/points/${point}/on/${photo}`);

  /** Not a state: the file, as a Blob. */
  export = async (category) =>
    (await request("GET", `${this.root}/coco?category=${encodeURIComponent(category)}`)).blob();
  import = (file) => asJson("POST", `${this.root}/coco?name=${encodeURIComponent(file.name)}`, { body: file });

  /** Not a state: {url, words} of the source bent onto a target; revoke the url when done. */
  warp = async (photo, through, signal) => {
    const response = await request("GET", `${this.root}/photos/${photo}/warp?through=${through}`, { signal });
    return { url: URL.createObjectURL(await response.blob()), words: response.headers.get("X-Through") ?? "" };
  };

  /** The page is going away: a beacon outlives it. */
  close = () => navigator.sendBeacon(`${this.root}/close`);
}

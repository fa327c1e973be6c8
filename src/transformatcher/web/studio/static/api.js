// Requests to the server → JSON, or an ApiError whose message is shown to the person.

const HEADERS = { "X-Transformatcher": "1" }; // the server requires it: other sites cannot send it
const MAX_KEEPALIVE_BYTES = 50_000; // browsers refuse more

export class ApiError extends Error {
  /** @param status of HTTP; 0: there was no answer. */
  constructor(message, status) {
    super(message);
    this.status = status;
  }

  /** Whether the same request may succeed a little later: the server is away or busy. */
  get temporary() {
    return [0, 429, 502, 503, 504].includes(this.status);
  }
}

async function request(method, path, { json, body, signal } = {}) {
  const headers = { ...HEADERS };
  if (json !== undefined) {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(json);
  } else if (body !== undefined) {
    headers["Content-Type"] = "application/octet-stream";
  }
  // A change that has been sent arrives even when the page is closed at this moment.
  const keepalive = method !== "GET" && (typeof body !== "object" && (body?.length ?? 0) < MAX_KEEPALIVE_BYTES);
  let response;
  try {
    response = await fetch(path, { method, headers, body, signal, keepalive });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer; is it still running?", 0);
  }
  if (response.ok) return response;
  const message = await response.json().then((answer) => answer.error, () => undefined);
  throw new ApiError(message ?? `The server answered ${response.status}.`, response.status);
}

const requestJson = async (...args) => (await request(...args)).json();

export const api = {
  get: (path, signal) => requestJson("GET", path, { signal }),
  post: (path, json = {}) => requestJson("POST", path, { json }),
  put: (path, json) => requestJson("PUT", path, { json }),
  remove: (path) => requestJson("DELETE", path),
  /** Send a file. */
  upload: (path, file) => requestJson("POST", path, { body: file }),
  /** A picture that lies over a part of the photo → {image, box}, or null if there is none. */
  overlay: async (path) => {
    const response = await request("GET", path);
    if (response.status === 204) return null;
    return { image: await createImageBitmap(await response.blob()), box: response.headers.get("X-Box").split(",").map(Number) };
  },
  /** → [Blob, its name or null]. */
  download: async (path) => {
    const response = await request("GET", path);
    const name = /filename\*?=(?:UTF-8'')?"?([^";]+)/.exec(response.headers.get("Content-Disposition") ?? "");
    return [await response.blob(), name && decodeURIComponent(name[1])];
  },
};

/** The addresses of a photo's pictures; they change with the pixels' size, so that a changed photo is loaded anew. */
export const imageUrl = (photo) => `/api/photos/${photo.id}/image`;
export const thumbnailUrl = (photo) => `/api/photos/${photo.id}/thumbnail`;

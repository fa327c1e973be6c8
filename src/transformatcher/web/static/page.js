// What all modules of the page share: the state of the session, and what the user has selected.

export const $ = (id) => document.getElementById(id);

export const page = {
  api: null, // SessionApi
  server: null, // {calibrated, limits, local, version}, received when the session was opened
  state: { source: null, photos: [], points: [] }, // as the server sent it last
  active: null, // id of the selected point
  hover: null, // {predictions, heatmaps} while the pointer is over the source
  stages: new Map(), // photo id → {stage} of the source, or {stage, card, …} of a target (view.js)
  blendNotes: {}, // photo id → what its blend follows, or why there is none
};

export const pointOf = (id) => page.state.points.find((point) => point.id === id);
export const photoOf = (id) => page.state.photos.find((photo) => photo.id === id);
export const photoName = (id) => photoOf(id)?.name ?? "";

/** Create an element with properties and children. */
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("aria-") || key === "role" || key === "for") node.setAttribute(key, value);
    else node[key] = value;
  }
  node.append(...children);
  return node;
}

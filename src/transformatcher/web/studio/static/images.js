// Photos → decoded images, the last few kept, so that the next photo of the review is there at once.

import { imageUrl } from "./api.js";

const MAX_IMAGES = 8;
const images = new Map(); // key → {image, ready, promise}; those used last are at the end

/** The image of a photo: {image, ready: bool, promise}. It is loaded unless it is known; urgent: before the others. */
export function photoImage(photo, { urgent = false } = {}) {
  const key = `${photo.id} ${photo.width} ${photo.height}`;
  const known = images.get(key);
  if (known) {
    images.delete(key);
    images.set(key, known);
    return known;
  }
  const image = new Image();
  image.decoding = "async";
  image.fetchPriority = urgent ? "high" : "low";
  image.src = imageUrl(photo);
  const entry = { image, ready: false };
  entry.promise = image.decode().then(
    () => { entry.ready = true; },
    (error) => { images.delete(key); throw error; },
  );
  entry.promise.catch(() => {}); // whoever shows the photo handles it
  images.set(key, entry);
  if (images.size > MAX_IMAGES) images.delete(images.keys().next().value);
  return entry;
}

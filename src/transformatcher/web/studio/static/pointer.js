// Mouse, pen and fingers on the stage → click, drag of a point, of a corner or of a new box, pan and zoom.

const SLOP = { mouse: 4, pen: 6, touch: 9 }; // pixels that a click may move
const DOUBLE_MS = 350;

/** Listen to a stage.
 *
 * @param node the element.
 * @param host {pick(x, y, type) → what is there: {kind: "point" | "corner" | "empty" | "box", …}, start(what, x, y, type),
 *   drag(what, x, y, type), drop(what, x, y), cancel(what), click(what, x, y, type), doubleClick(x, y), hover(x, y or null),
 *   pan(dx, dy), zoom(factor, x, y)}; x and y in CSS pixels of the stage.
 * @returns {cancel()} ends what is under way, as if it had not begun: true if something was.
 */
export function listenToPointers(node, host) {
  const pointers = new Map(); // id → [x, y]
  let held = null; // {what, id, type, x, y, moved, panning}
  let pinch = null; // {distance, x, y}
  let lastClick = { time: 0, x: 0, y: 0 };
  let space = false;

  const place = (event) => {
    const box = node.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  function cancel() {
    const was = held;
    held = null;
    if (!was || was.panning || !was.moved) return false;
    host.cancel(was.what);
    return true;
  }

  node.addEventListener("pointerdown", (event) => {
    if (event.target.closest("button") || (event.pointerType === "mouse" && event.button > 1)) return;
    event.preventDefault();
    node.focus({ preventScroll: true });
    node.setPointerCapture(event.pointerId);
    const [x, y] = place(event);
    pointers.set(event.pointerId, [x, y]);
    if (pointers.size === 2) {
      cancel();
      pinch = pinchOf(pointers);
      return;
    }
    if (pointers.size > 2) return;
    const panning = event.button === 1 || space;
    const what = panning ? { kind: "empty" } : host.pick(x, y, event.pointerType);
    held = {
      what, id: event.pointerId, type: event.pointerType, x, y, moved: false, panning: panning || what.kind === "empty",
      forced: panning, // even a click does nothing else
    };
  });

  node.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (!pointers.has(event.pointerId)) {
      if (event.pointerType !== "touch") host.hover(x, y);
      return;
    }
    const before = pointers.get(event.pointerId);
    pointers.set(event.pointerId, [x, y]);
    if (pinch) {
      const now = pinchOf(pointers);
      host.pan(now.x - pinch.x, now.y - pinch.y);
      host.zoom(now.distance / Math.max(pinch.distance, 1), now.x, now.y);
      pinch = now;
      return;
    }
    if (!held || held.id !== event.pointerId) return;
    if (!held.moved) {
      if (Math.hypot(x - held.x, y - held.y) < SLOP[held.type]) return;
      held.moved = true;
      if (held.panning) host.pan(x - held.x, y - held.y);
      else host.start(held.what, held.x, held.y, held.type);
      if (held.panning) return;
    }
    if (held.panning) host.pan(x - before[0], y - before[1]);
    else host.drag(held.what, x, y, held.type);
  });

  function end(event) {
    if (!pointers.delete(event.pointerId)) return;
    if (pinch) {
      if (pointers.size < 2) pinch = null;
      held = null;
      return;
    }
    if (!held || held.id !== event.pointerId) return;
    if (event.type === "pointercancel") {
      cancel();
      return;
    }
    const [x, y] = place(event);
    const { what, moved, panning, forced, type } = held;
    held = null;
    if (moved) {
      if (!panning) host.drop(what, x, y);
      return;
    }
    if (forced) return;
    const near = Math.hypot(x - lastClick.x, y - lastClick.y) < 2 * SLOP[type];
    if (near && event.timeStamp - lastClick.time < DOUBLE_MS) {
      lastClick.time = 0;
      host.doubleClick(x, y);
      return;
    }
    lastClick = { time: event.timeStamp, x, y };
    host.click(what, x, y, type);
  }
  node.addEventListener("pointerup", end);
  node.addEventListener("pointercancel", end);
  node.addEventListener("pointerleave", () => host.hover(null, null));

  node.addEventListener("wheel", (event) => {
    event.preventDefault();
    const [x, y] = place(event);
    const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 32 : 1;
    if (event.shiftKey && !event.ctrlKey) host.pan(-(event.deltaX || event.deltaY) * lines, 0);
    else host.zoom(Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.0018)), x, y); // ctrl: a pinch on a touch pad
  }, { passive: false });

  window.addEventListener("keydown", (event) => {
    if (event.key === " " && event.target === node) {
      space = true;
      node.classList.add("panning");
      event.preventDefault();
    }
  });
  const release = () => {
    space = false;
    node.classList.remove("panning");
  };
  window.addEventListener("keyup", (event) => { if (event.key === " ") release(); });
  window.addEventListener("blur", release);
  return { cancel };
}

function pinchOf(pointers) {
  const [[ax, ay], [bx, by]] = [...pointers.values()];
  return { distance: Math.hypot(ax - bx, ay - by), x: (ax + bx) / 2, y: (ay + by) / 2 };
}

"""The studio in a real browser, used from the first photo to the exported file; prints as JSON what was seen.

Run by tests/web/studio/test_browser.py, as a process of its own, since pytest blocks the network.
"""

import json
import re
import shutil
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

from helpers import studio_driver as studio
from helpers.studio_photos import PARTS, Points, make_car_photos
from helpers.studio_process import PATIENCE_S, Server, start_small, until
from PIL import Image, ImageOps
from playwright.sync_api import Page, sync_playwright

EXAMPLES = Path(str(files("transformatcher") / "examples"))

N_PHOTOS = 40
NAMES = list(PARTS)
SKELETON = [(0, 1), (0, 2), (1, 3), (4, 5)]


def wait_until_predicted(page: Page, server: Server) -> None:
    """Wait until nothing is left to predict, and the page says so."""
    until(lambda: server.state_of_prediction() == "idle", "all photos are predicted")
    page.wait_for_selector("#prediction.idle", timeout=1000 * PATIENCE_S)


def wait_for_point(page: Page, name: str, state: str) -> None:
    """Wait until the list of keypoints says this of one; no word of the state matters after the first."""
    page.wait_for_selector(f"#points li[aria-label^='{name}: {state}']", timeout=1000 * PATIENCE_S)


def wait_for_count(page: Page, label: str, n: int) -> None:
    """Wait until so many photos are in a state."""
    end = time.monotonic() + PATIENCE_S
    while (found := studio.count_photos(page, label)) != n:
        if time.monotonic() > end:
            raise AssertionError(f"{found} photos are {label!r}, not {n}")
        page.wait_for_timeout(50)


def words(page: Page) -> dict[str, str]:
    """The list of keypoints without its numbers, which change with each new reference."""
    return {name: re.sub(r" \d+ %", "", state) for name, state in studio.shown_points(page).items()}


def mark_all(page: Page, truth: dict[str, Points]) -> str:
    """Mark all keypoints of the open photo, in order, and accept it; returns its name."""
    name = studio.photo_name(page)
    for number, part in enumerate(NAMES):
        studio.mark_point(page, number, *truth[name][part])
    studio.wait_until_saved(page)
    studio.accept(page)
    studio.wait_for_photo(page)
    return name


# ---------------------------------------------------------------- the parts of the way


def begin(page: Page, server: Server, folder: Path, seen: dict[str, Any]) -> dict[str, Points]:
    """From an empty folder to three marked photos, and predictions on all others."""
    seen["empty"] = page.inner_text("#empty h2")
    truth = make_car_photos(folder, N_PHOTOS)
    page.click("#empty >> text=Look again")
    wait_for_count(page, "All", N_PHOTOS)
    studio.add_category(page, "car", NAMES, SKELETON)
    studio.wait_for_photo(page)
    seen["marked"] = [mark_all(page, truth)]
    studio.open_photo(page, "car_17")  # of all those that nobody has looked at
    seen["marked"].append(mark_all(page, truth))
    until(lambda: server.get("/project")["suggestion"] is not None, "a suggestion")
    page.wait_for_selector("#suggest:not([disabled])")
    studio.press(page, "m")
    studio.wait_for_photo(page)
    seen["marked"].append(mark_all(page, truth))
    wait_until_predicted(page, server)
    seen["predicted"] = server.points()
    return truth


def review(page: Page, other: Page, server: Server, truth: dict[str, Points], seen: dict[str, Any]) -> None:
    """Accept photos, correct one, take it back and do it again, while a second window looks on."""
    studio.start_review(page)
    seen["accepted"] = []
    for _ in range(4):
        seen["accepted"].append(studio.photo_name(page))
        studio.accept(page)
        studio.wait_for_photo(page)
    wait_for_count(other, "done", 7)

    name = seen["corrected"] = studio.photo_name(page)
    studio.open_photo(other, name)
    x, y = next((x, y) for part, _, _, x, y in server.points()[name][1] if part == NAMES[0])
    tx, ty = truth[name][NAMES[0]]
    studio.drag_point(page, (x, y), (tx + 20, ty + 10))
    wait_for_point(other, NAMES[0], "placed by you")
    studio.press(page, "6 h")
    wait_for_point(other, NAMES[5], "placed by you, hidden")
    studio.press(page, "7 x")
    wait_for_point(other, NAMES[6], "not there")
    studio.press(page, "8 ArrowRight ArrowRight")  # one change, after a moment
    studio.wait_until_saved(page)
    wait_for_point(other, NAMES[7], "placed by you")
    seen["in the other window"], seen["in this window"] = words(other), words(page)

    seen["undone"] = [studio.undo(page)]
    wait_for_point(other, NAMES[7], "predicted")
    seen["undone"].append(studio.undo(page))
    wait_for_point(other, NAMES[6], "predicted")
    seen["redone"] = [studio.redo(page)]
    wait_for_point(other, NAMES[6], "not there")


def survive(page: Page, server: Server, folder: Path, seen: dict[str, Any], errors: list[str]) -> Server:
    """Load the page again; kill the server, work on, start it again; returns the new one."""
    name = studio.photo_name(page)
    shown, before = words(page), server.marks()
    page.reload()
    studio.wait_until_ready(page)
    studio.wait_for_photo(page)
    seen["after a reload"] = [studio.photo_name(page) == name, words(page) == shown]

    errors_before = list(errors)
    server.kill()
    page.wait_for_selector(".banner >> text=does not answer", timeout=1000 * PATIENCE_S)
    studio.press(page, "2 x")  # the person works on
    page.wait_for_selector(".banner >> text=Not saved yet", timeout=1000 * PATIENCE_S)
    seen["while it is away"] = words(page)[NAMES[1]]
    server = start_small(folder, server.port)
    studio.wait_until_saved(page)
    page.wait_for_selector(".banner", state="detached", timeout=1000 * PATIENCE_S)
    after = server.marks()
    seen["lost by kill -9"] = [path for path in before if path != name and before[path] != after[path]]
    seen["after the outage"] = next(point for point in after[name][1] if point[0] == NAMES[1])
    errors[:] = errors_before + [line for line in errors[len(errors_before) :] if "net::ERR_" not in line]

    seen["undone after a restart"] = [studio.undo(page), studio.undo(page)]
    seen["redone after a restart"] = [studio.redo(page), studio.redo(page)]
    studio.accept(page)
    return server


def exchange(page: Page, server: Server, folder: Path, seen: dict[str, Any], errors: list[str]) -> None:
    """Export, and import into a new project on the same photos."""
    studio.show_all(page)
    seen["unlabelled"] = studio.unlabelled(page)
    out = folder.with_name("keypoints.json")
    studio.export_file(page, out)
    seen["exported"] = server.marks()
    fresh = folder.with_name("fresh")
    fresh.mkdir()
    for photo in folder.glob("*.jpg"):
        shutil.copy(photo, fresh)
    second = start_small(fresh)
    try:
        assert page.context.browser is not None
        beside, more = studio.open_studio(page.context.browser, second.address)
        beside.keyboard.press("Escape")  # the dialog that asks for keypoints
        seen["import"] = studio.import_file(beside, out)
        wait_for_count(beside, "done", 8)
        wait_until_predicted(beside, second)
        seen["imported"] = second.marks()
        seen["import undone"] = studio.undo(beside)
        wait_for_count(beside, "done", 0)
        errors += more
    finally:
        second.close()


def whole_way(browser: Any, folder: Path, seen: dict[str, Any]) -> None:
    """From an empty folder to an exported file."""
    photos = folder / "photos"
    photos.mkdir()
    server = start_small(photos)
    try:
        page, errors = studio.open_studio(browser, server.address)
        truth = seen["truth"] = begin(page, server, photos, seen)
        studio.show_all(page)
        other, other_errors = studio.open_studio(browser, server.address)
        review(page, other, server, truth, seen)
        other.close()
        server = survive(page, server, photos, seen, errors)
        wait_until_predicted(page, server)
        exchange(page, server, photos, seen, errors)
        seen["errors"] = errors + other_errors
    finally:
        server.close()


# ---------------------------------------------------------------- the other command


def try_it(browser: Any, folder: Path, seen: dict[str, Any]) -> None:
    """``transformatcher serve``: example photos, one more, a correction, and a file to take away."""
    server = Server(["-m", "transformatcher", "serve", "--port", "0", "--no-browser", "--device", "cpu"])
    try:
        page, errors = studio.open_studio(browser, server.address)
        seen["empty"] = page.inner_text("#empty h2")
        page.click("text=Try with example photos")
        wait_for_count(page, "All", 3)
        wait_until_predicted(page, server)

        with Image.open(EXAMPLES / "cat_b.jpg") as photo:
            ImageOps.mirror(photo).save(folder / "mirrored.png")
        (folder / "notes.jpg").write_bytes(b"not a photo")
        page.set_input_files("#photo-files", [folder / "mirrored.png", folder / "notes.jpg"])
        seen["alert"] = page.locator(".banner", has_text="notes.jpg").inner_text(timeout=1000 * PATIENCE_S)
        wait_for_count(page, "All", 4)
        until(lambda: len(server.points()["mirrored.png"][1]) > 0, "the new photo is predicted")
        wait_until_predicted(page, server)
        seen["predicted"] = server.points()
        studio.open_photo(page, "mirrored.png")
        seen["shown"] = studio.shown_points(page)

        name, _, _, x, y = seen["predicted"]["mirrored.png"][1][0]
        studio.drag_point(page, (x, y), (x + 12, y - 8))
        wait_for_point(page, name, "placed by you")
        studio.wait_until_saved(page)
        studio.accept(page)
        seen["banner"] = page.locator(".banner.news").inner_text(timeout=1000 * PATIENCE_S)
        studio.export_file(page, folder / "keypoints.json")
        kept = seen["folder"] = server.get("/project")["folder"]
        seen["there"] = Path(kept).is_dir()
        seen["errors"] = [line for line in errors if "422" not in line]  # the browser's own, of the file of notes
    finally:
        server.interrupt()
    seen["there afterwards"] = Path(kept).exists()


WAYS = {"annotate": whole_way, "serve": try_it}


def main(way: str, executable: str, folder: Path) -> None:
    """Go one of the ways."""
    seen: dict[str, Any] = {}
    start = time.monotonic()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=studio.LAUNCH_ARGUMENTS)
        WAYS[way](browser, folder, seen)
        browser.close()
    print(json.dumps(seen | {"seconds": round(time.monotonic() - start, 1)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))

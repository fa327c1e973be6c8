"""The studio with many photos → how long a person waits for it, and how long predictions take beside ``propagate``.

Usage: python docs/make/studio_speed.py page | moves VOC-Keypoints | predictions VOC-Keypoints [PHOTOS]. It needs Linux,
and for the first two the extra 'serve', playwright and Chromium.

page: 5,000 small photos, three of them marked. moves: a point of a reference is dropped elsewhere; when it is on disk,
and when the photos on the screen have new votes. predictions: photos of dogs from three references, by ``propagate``,
by the studio, and by the studio that is killed half-way and started again.
"""

import http.client
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from shutil import which
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from transformatcher.annotation.known_photos import KnownPhoto, choose_photos
from transformatcher.annotation.project import PROJECT
from transformatcher.data.coco_keypoints import box_around, load_coco

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from helpers import studio_driver  # noqa: E402
from helpers.studio_process import Server, until  # noqa: E402

COMMAND = [sys.executable, "-m", "transformatcher"]
MANY = 5000
SCREEN = 12  # photos on the screen beside the one that is open
MOVES = 10
REFERENCES = 3


def peak_mb(pid: int) -> float:
    """The largest memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3


def write_marks(file: Path, photos: list[KnownPhoto], names: list[str]) -> None:
    """The keypoints of photos as a COCO file; ``names`` are those of their copies."""
    category = photos[0].objects[0]
    images, notes = [], []
    for number, (photo, name) in enumerate(zip(photos, names, strict=True), 1):
        item = photo.objects[0]
        with Image.open(photo.image) as image:
            w, h = image.size
        triples = [[x, y, 2] if there else [0, 0, 0] for (x, y), there in zip(item.kps_px, item.visible, strict=True)]
        box = box_around(item.kps_px[item.visible], (h, w))
        images.append({"id": number, "file_name": name, "width": w, "height": h})
        notes.append({"id": number, "image_id": number, "category_id": 1, "bbox": [float(v) for v in box],
                      "keypoints": [float(v) for triple in triples for v in triple]})  # fmt: skip
    categories = [{"id": 1, "name": category.category, "keypoints": list(category.kp_names)}]
    file.write_text(json.dumps({"images": images, "annotations": notes, "categories": categories}))


def copy_dogs(voc: Path, folder: Path, count: int) -> list[KnownPhoto]:
    """Copy so many photos of single dogs; the first ones are the references."""
    folder.mkdir()
    photos = choose_photos(load_coco(voc), "dog", count)
    for number, photo in enumerate(photos):
        shutil.copyfile(photo.image, folder / f"{number:04d}.jpg")
    return photos


# ---------------------------------------------------------------- many photos on the page


def measure_page(browser: Browser, spare: Path) -> None:
    """Open the page on 5,000 photos and scroll through them while the first ones are predicted."""
    folder, marks = spare / "many", spare / "marks.json"
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(MANY):
        small = Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        small.resize((256, 192), Image.Resampling.BICUBIC).save(folder / f"{number:04d}.jpg")
    points = [float(v) for x in (60, 120, 180) for v in (x, 90, 2)]
    coco = {
        "images": [{"id": i, "file_name": f"{i:04d}.jpg", "width": 256, "height": 192} for i in range(1, 4)],
        "annotations": [{"id": i, "image_id": i, "category_id": 1, "bbox": [0, 0, 256, 192], "keypoints": points}
                        for i in range(1, 4)],
        "categories": [{"id": 1, "name": "thing", "keypoints": ["a", "b", "c"]}],
    }  # fmt: skip
    marks.write_text(json.dumps(coco))
    start = time.monotonic()
    server = Server(["-m", "transformatcher", "annotate", str(folder), "--port", "0", "--no-browser"])
    print(f"{MANY} photos: the command serves after {time.monotonic() - start:.1f} s, in a new project")
    try:
        page, errors = studio_driver.open_studio(browser, server.address)
        if page.locator("dialog[open]").count():
            page.keyboard.press("Escape")
        studio_driver.import_file(page, marks)
        page.close()
        opened = []
        for _ in range(5):
            start = time.monotonic()
            page, more = studio_driver.open_studio(browser, server.address)
            page.wait_for_selector(".cell:not([hidden]) img[src]")
            opened.append(time.monotonic() - start)
            errors += more
            if _ < 4:
                page.close()
        print(f"page usable after {median(opened):.2f} s (at most {max(opened):.2f})")
        studio_driver.record_long_tasks(page)
        start = time.monotonic()
        studio_driver.scroll_grid(page, steps=400, by=1200)
        tasks = studio_driver.long_tasks(page)
        print(f"scrolling for {time.monotonic() - start:.0f} s: {len(tasks)} tasks over 50 ms, "
              f"the longest {max(tasks, default=0):.0f} ms")  # fmt: skip
        page.wait_for_timeout(60_000)  # the predictions go on
        done = server.get("/project")["prediction"]
        print(
            f"memory of the server: {peak_mb(server.process.pid):.0f} MB at its peak, {done['done']} photos predicted"
        )
        assert errors == [], errors
    finally:
        server.close()


# ---------------------------------------------------------------- moved points


def measure_moves(browser: Browser, spare: Path, voc: Path) -> None:
    """Drag a point of a reference, again and again."""
    folder, marks = spare / "dogs", spare / "marks.json"
    photos = copy_dogs(voc, folder, REFERENCES + SCREEN)
    write_marks(marks, photos[:REFERENCES], [f"{i:04d}.jpg" for i in range(REFERENCES)])
    command = ["annotate", folder, "--import", f"coco:{marks}", "--predict"]
    subprocess.run([*COMMAND, *map(str, command)], check=True, stdout=subprocess.DEVNULL)
    server = Server(["-m", "transformatcher", "annotate", str(folder), "--port", "0", "--no-browser"])
    try:
        page, errors = studio_driver.open_studio(browser, server.address)
        studio_driver.open_photo(page, "0000.jpg")
        ids = [photo["id"] for photo in server.get("/photos")["photos"]]
        page.wait_for_timeout(2000)
        post(server, "/view", {"photos": [ids[0], *ids[REFERENCES:]]})
        saved, voted = [], []
        with closing(sqlite3.connect(folder / PROJECT, isolation_level=None)) as project:
            for number in range(MOVES):
                wait_until_idle(page, server)
                (x, y), kp, instance = a_point(server, ids[0])
                step = 6 if number % 2 else -6
                start_xy, end_xy = (x, y), (x + step, y + step / 2)
                page.mouse.move(*studio_driver.page_position(page, *start_xy))
                page.mouse.down()
                page.mouse.move(*studio_driver.page_position(page, *end_xy), steps=5)
                start = time.monotonic()
                page.mouse.up()
                saved.append(wait_for_mark(project, instance, kp, x) - start)
                voted.append(last_new_vote(project, start) - start)
        print(f"a dropped point is on disk after {1e3 * median(saved):.0f} ms (at most {1e3 * max(saved):.0f})")
        print(f"{SCREEN} photos on the screen are voted on again after {1e3 * median(voted):.0f} ms "
              f"(at most {1e3 * max(voted):.0f}), {MOVES} moves")  # fmt: skip
        assert errors == [], errors
    finally:
        server.close()


def wait_until_idle(page: Any, server: Server) -> None:
    """Until all is predicted, and the pairs of the photos on the screen are matched."""
    page.wait_for_timeout(1500)
    until(lambda: server.state_of_prediction() == "idle", "all is predicted")
    page.wait_for_timeout(15_000)


def a_point(server: Server, photo: int) -> tuple[tuple[float, float], int, int]:
    """The first visible mark of a photo: position, keypoint, object."""
    instance = server.get(f"/photos/{photo}")["instances"][0]
    point = next(point for point in instance["points"] if point["visibility"] == 2)
    return (point["x"], point["y"]), point["keypoint_id"], instance["id"]


def wait_for_mark(project: sqlite3.Connection, instance: int, keypoint: int, before: float) -> float:
    """When a mark has another place in the file."""
    query = "SELECT x FROM mark WHERE instance_id = ? AND keypoint_id = ?"
    while project.execute(query, (instance, keypoint)).fetchone()[0] == before:
        time.sleep(0.002)
    return time.monotonic()


def last_new_vote(project: sqlite3.Connection, start: float) -> float:
    """When the last of the votes that were read again at once came to the file; there must be one of each photo."""
    found, when = 0, start
    while time.monotonic() < start + 0.9:  # then all is matched again
        (count,) = project.execute("SELECT count(*) FROM vote WHERE state LIKE 'provisional %'").fetchone()
        if count != found:
            found, when = count, time.monotonic()
        time.sleep(0.002)
    assert found >= SCREEN, f"{found} new votes on {SCREEN} photos"
    return when


def post(server: Server, path: str, body: Any) -> None:
    """Send a request of the page."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"X-Transformatcher": "1", "Content-Type": "application/json"}
    connection.request("POST", f"/api{path}", json.dumps(body), headers)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    connection.close()


# ---------------------------------------------------------------- predictions


def measure_predictions(spare: Path, voc: Path, count: int) -> None:
    """The same photos by ``propagate``, by the studio, and by the studio that was killed."""
    marks = spare / "marks.json"
    names = [f"{i:04d}.jpg" for i in range(REFERENCES)]
    folders = [spare / name for name in ("propagate", "studio", "killed")]
    for folder in folders:
        photos = copy_dogs(voc, folder, REFERENCES + count)
        write_marks(marks, photos[:REFERENCES], names)
    beside = spare / "propagate" / "marked.json"
    shutil.move(marks, beside)
    seconds = {}
    seconds["propagate"] = timed("propagate", beside, folders[0], "--out", spare / "all.json")
    predict = [("annotate", folder, "--import", f"coco:{beside}", "--predict") for folder in folders[1:]]
    seconds["studio"] = timed(*predict[0])
    start = time.monotonic()
    process = subprocess.Popen([*COMMAND, *map(str, predict[1])], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds["studio"] / 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(predictions(folders[2]))
    timed("annotate", folders[2], "--predict")
    seconds["studio, killed half-way"] = time.monotonic() - start
    whole, resumed = predictions(folders[1]), predictions(folders[2])
    print(f"{count} photos from {REFERENCES} references; killed after {done} photos; "
          f"the same predictions: {whole == resumed}")  # fmt: skip
    for name, value in seconds.items():
        print(f"{name}: {value:.0f} s, {value / seconds['propagate']:.2f} of propagate's time")


def timed(*words: object) -> float:
    """Run a command; returns its seconds."""
    start = time.monotonic()
    subprocess.run([*COMMAND, *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - start


def predictions(folder: Path) -> dict[str, list[Any]]:
    """All predicted keypoints of a project, by photo."""
    found: dict[str, list[Any]] = {}
    query = """SELECT ph.path, k.name, p.x, p.y, p.confidence FROM prediction p JOIN instance i ON i.id = p.instance_id
               JOIN photo ph ON ph.id = i.photo_id JOIN keypoint k ON k.id = p.keypoint_id
               WHERE NOT EXISTS (SELECT 1 FROM mark m WHERE m.instance_id = i.id) ORDER BY ph.path, k.id"""
    with closing(sqlite3.connect(folder / PROJECT)) as project:
        for path, *values in project.execute(query):
            found.setdefault(path, []).append(values)
    return found


def main(what: str, *words: str) -> None:
    """Measure one of them."""
    with TemporaryDirectory() as name:
        spare = Path(name)
        if what == "predictions":
            measure_predictions(spare, Path(words[0]), int(words[1]) if len(words) > 1 else 500)
            return
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=which("chromium"), args=studio_driver.LAUNCH_ARGUMENTS)
            if what == "page":
                measure_page(browser, spare)
            else:
                measure_moves(browser, spare, Path(words[0]))
            browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

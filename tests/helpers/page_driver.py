"""Uses the page in a real browser: uploads photos, sets, corrects and exports points. Run by test_browser.py.

Usage: page_driver.py CHROMIUM FOLDER; prints what the page showed as JSON. A process of its own, as pytest blocks the
network.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

EXAMPLES = Path(str(files("transformatcher") / "examples"))


@contextmanager
def start_page() -> Iterator[str]:
    """Start ``transformatcher serve`` on a free port and yield the page's address."""
    options = ["--port", "0", "--no-browser", "--device", "cpu"]
    command = [sys.executable, "-m", "transformatcher", "serve", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        for line in server.stdout:
            if found := re.search(r"http://\S+", line):
                yield found[0]
                break
    finally:
        server.terminate()
        server.wait(20)


def wait_until_idle(page: Page) -> None:
    """Wait until no request is running."""
    page.wait_for_selector("#status:not(.busy)", state="attached", timeout=120_000)


def use_page(page: Page, folder: Path, seen: dict[str, Any]) -> None:
    """From upload to exported file; ``seen`` collects what the page shows."""
    (folder / "notes.jpg").write_bytes(b"not a photo")
    page.set_input_files("#source-file", EXAMPLES / "cat_a.jpg")
    wait_until_idle(page)
    page.set_input_files("#target-files", [EXAMPLES / "cat_b.jpg", EXAMPLES / "cat_c.jpg", folder / "notes.jpg"])
    page.wait_for_selector(".alert", timeout=120_000)
    wait_until_idle(page)
    seen["error"] = page.inner_text(".alert span")
    seen["cards"] = page.locator(".card h3").all_inner_texts()

    source = page.locator("#source-stage .stage")
    box = source.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.58 * box["width"], box["y"] + 0.8 * box["height"])
    page.wait_for_selector(".card .hover-mark >> nth=1", state="visible")
    seen["hover"] = page.locator(".card .point-name").all_inner_texts()
    page.mouse.click(box["x"] + 0.58 * box["width"], box["y"] + 0.8 * box["height"])
    page.wait_for_selector(".card >> nth=1 >> .marker")

    source.focus()  # the second point by keyboard only
    for key in (*["ArrowLeft"] * 10, *["Shift+ArrowUp"] * 9, "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("#points li >> nth=1")
    page.fill("#points li >> nth=1 >> input", "forehead")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Renamed to forehead")

    marker = page.locator(".card >> nth=0 >> .marker >> nth=0")
    box = marker.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 20, y - 10, steps=3)
    page.mouse.up()
    page.wait_for_selector(".card >> nth=0 >> .marker.pinned")
    wait_until_idle(page)
    page.keyboard.press("ArrowRight")  # the marker still has the focus
    page.wait_for_timeout(400)
    wait_until_idle(page)
    second = page.locator(".card >> nth=1 >> .marker >> nth=1")
    second.focus()
    page.keyboard.press("Delete")  # it is not visible
    page.wait_for_selector("text=Not visible on cat_c.jpg")

    page.check("#heatmap")
    page.wait_for_selector(".card .heatmap >> nth=0", state="visible")
    page.check("#blend")
    page.wait_for_selector(".card .warped >> nth=0", state="visible", timeout=60_000)

    page.fill("#category", "cat")
    with page.expect_download() as download:
        page.click("#export")
    download.value.save_as(folder / "keypoints.json")
    page.set_input_files("#import-file", folder / "keypoints.json")
    page.wait_for_selector("text=2 points imported")
    page.set_viewport_size({"width": 360, "height": 740})
    seen["phone width"] = page.evaluate("document.documentElement.scrollWidth")
    seen["unlabelled"] = page.evaluate(
        "[...document.querySelectorAll('button, input, select, .stage[tabindex]')].filter(e => !e.hidden"
        " && !(e.ariaLabel || e.labels?.length || e.textContent.trim())).map(e => e.outerHTML)"
    )


def main(chromium: str, folder: Path) -> None:
    """Use the page and print what it showed."""
    seen: dict[str, Any] = {"console": []}
    with start_page() as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.on("pageerror", lambda error: seen["console"].append(str(error)))
        page.on("console", lambda m: seen["console"].append(m.text) if m.type in ("error", "warning") else None)
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        use_page(page, folder, seen)
        browser.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

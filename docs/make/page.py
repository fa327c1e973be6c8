"""The page of ``transformatcher serve`` with the example photos → docs/images/page.png.

Usage: python docs/make/page.py [FILE]; it needs the extra 'serve', playwright and Chromium, as test_browser.py does.
"""

import sys
from pathlib import Path
from shutil import which

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from helpers.page_driver import start_page, wait_until_idle  # noqa: E402

POSITION = (0.53, 0.5)  # of the pointer on the source, as fractions of its width and height: between the eyes


def main(out: Path) -> None:
    """Load the examples, show heat maps, point at the source, save a screenshot."""
    with start_page() as address, sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 897})
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        page.click("text=Example photos")
        page.wait_for_selector(".card >> nth=1 >> .marker >> nth=5", timeout=120_000)
        wait_until_idle(page)
        page.check("#heatmap")
        box = page.locator("#source-stage .stage").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + POSITION[0] * box["width"], box["y"] + POSITION[1] * box["height"])
        page.wait_for_selector(".card .heatmap >> nth=1", state="visible")
        wait_until_idle(page)
        page.screenshot(path=out, full_page=True)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "page.png")

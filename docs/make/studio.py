"""The studio on pictures made from the example photos → docs/images/studio-*.png, as the documentation shows it.

Usage: python docs/make/studio.py [FOLDER]; it needs the extra 'serve', playwright and Chromium.
"""

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

from PIL import Image, ImageEnhance, ImageOps
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from helpers import studio_driver  # noqa: E402
from helpers.studio_process import Server  # noqa: E402

EXAMPLES = Path(str(files("transformatcher") / "examples"))
SKELETON = [(4, 1), (4, 2), (1, 3), (2, 3), (3, 5), (3, 6)]  # numbers of the keypoints in cat_a.json, from 1
SHOWN = "cat_b.jpg"
ACCEPTED = ("cat_a_mirrored.jpg", "cat_c_closer.jpg")
WIDTHS = {"": (1400, 900), "phone-": (390, 844)}
N_COLOURS = 256  # of the pictures, which are half as large then


def make_photos(folder: Path) -> None:
    """Each example photo: as it is, mirrored, closer, and darker and closer."""
    folder.mkdir()
    for name in ("cat_a", "cat_b", "cat_c"):
        photo = Image.open(EXAMPLES / f"{name}.jpg")
        w, h = photo.size
        closer = photo.crop((w // 12, h // 20, w - w // 10, h - h // 10))
        darker = ImageEnhance.Brightness(ImageOps.mirror(photo.crop((w // 30, 0, w - w // 20, h - h // 6)))).enhance(
            0.6
        )
        photo.save(folder / f"{name}.jpg", quality=92)
        ImageOps.mirror(photo).save(folder / f"{name}_mirrored.jpg", quality=92)
        closer.save(folder / f"{name}_closer.jpg", quality=92)
        darker.save(folder / f"{name}_darker.jpg", quality=92)


def write_marks(file: Path) -> None:
    """The points of cat_a.json as a COCO-keypoint file."""
    points = json.loads((EXAMPLES / "cat_a.json").read_text())
    w, h = Image.open(EXAMPLES / "cat_a.jpg").size
    keypoints = [number for x, y in points.values() for number in (x, y, 2)]
    coco = {
        "images": [{"id": 1, "file_name": "cat_a.jpg", "width": w, "height": h}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, w, h], "keypoints": keypoints}],
        "categories": [{"id": 1, "name": "cat", "keypoints": list(points), "skeleton": SKELETON}],
    }
    file.write_text(json.dumps(coco))


def annotate(*words: object) -> list[str]:
    """The words of a command, for Python."""
    return ["-m", "transformatcher", "annotate", *map(str, words)]


def open_photo(page: Page, name: str) -> None:
    """Open a photo from the view of all, which fit on the screen."""
    studio_driver.show_all(page)
    page.locator(".cell", has=page.get_by_text(name, exact=True)).click()
    studio_driver.wait_for_photo(page)


def save(page: Page, file: Path) -> None:
    """A screenshot of what the window shows, when all of it is there."""
    page.wait_for_selector("#prediction.idle", state="attached", timeout=120_000)
    page.mouse.move(0, 0)
    page.wait_for_timeout(1500)  # thumbnails fade in, and what was said fades out
    page.screenshot(path=file)
    Image.open(file).convert("RGB").quantize(N_COLOURS, dither=Image.Dither.FLOYDSTEINBERG).save(file, optimize=True)


def main(out: Path) -> None:
    """Mark one photo, accept two, and take the pictures, in the light and in the dark."""
    with TemporaryDirectory() as spare, sync_playwright() as browsers:
        folder, marks = Path(spare) / "cats", Path(spare) / "marks.json"
        make_photos(folder)
        write_marks(marks)
        subprocess.run([sys.executable, *annotate(folder, "--import", f"coco:{marks}", "--predict")], check=True)
        server = Server(annotate(folder, "--port", 0, "--no-browser"))
        browser = browsers.chromium.launch(executable_path=which("chromium"), args=studio_driver.LAUNCH_ARGUMENTS)
        try:
            for number, dark in enumerate((False, True)):
                for kind, (width, height) in WIDTHS.items():
                    page, errors = studio_driver.open_studio(
                        browser, server.address, width=width, height=height, dark=dark, touch=kind == "phone-"
                    )
                    if number == 0 and not kind:
                        for name in ACCEPTED:
                            open_photo(page, name)
                            studio_driver.accept(page)
                        page.wait_for_timeout(3000)  # until it is known that there is something to predict
                    open_photo(page, SHOWN)
                    theme = "dark" if dark else "light"
                    save(page, out / f"studio-{kind}photo-{theme}.png")
                    studio_driver.show_all(page)
                    save(page, out / f"studio-{kind}grid-{theme}.png")
                    assert errors == [], errors
                    page.close()
        finally:
            browser.close()
            server.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")

"""A page of playwright → what an annotator does in the studio: mark, drag, accept, undo, filter, export.

Each function waits until the page has done it; ``wait_until_saved`` until the server has it. The page's security policy
forbids evaluation of strings, so nothing here uses ``wait_for_function``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page

LAUNCH_ARGUMENTS = ["--no-sandbox"]
TIMEOUT_MS = 30_000


def open_studio(
    browser: Browser, address: str, *, width: int = 1400, height: int = 900, dark: bool = False, touch: bool = False
) -> tuple[Page, list[str]]:
    """Open the studio's page; returns it with the list that errors of its console and requests elsewhere go to."""
    page = browser.new_page(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", has_touch=touch
    )
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
    hosts = (urlsplit(address).netloc, "")  # blob: and data: addresses have none
    page.on("request", lambda r: errors.append(f"request to {r.url}") if urlsplit(r.url).netloc not in hosts else None)
    page.goto(address)
    wait_until_ready(page)
    return page, errors


def wait_until_ready(page: Page) -> None:
    """Wait until the page has loaded the project."""
    page.wait_for_selector("html[data-ready]", timeout=TIMEOUT_MS)


def wait_until_saved(page: Page) -> None:
    """Wait until the server has answered every change."""
    page.wait_for_selector("html:not([data-unsaved]), html[data-unsaved='0']", timeout=TIMEOUT_MS)


def add_category(page: Page, name: str, keypoints: Sequence[str], skeleton: Sequence[tuple[int, int]] = ()) -> None:
    """Fill in the dialog that an empty project opens, or that the menu opens. Edges are positions of keypoints."""
    if not page.locator("#categories[open]").count():
        choose_in_menu(page, "Categories and keypoints…")
        if page.locator("#categories .tabs").count():
            page.click("#categories .tabs >> text=New category")
    page.fill("#category-name", name)
    page.fill("#category-keypoints", "\n".join(keypoints))
    for a, b in skeleton:
        page.locator("#category-list .line").nth(a).click()
        page.locator("#category-list .line").nth(b).click()
    page.click("#category-save")
    page.wait_for_selector("#categories", state="hidden", timeout=TIMEOUT_MS)


def choose_in_menu(page: Page, label: str) -> None:
    """Open the menu and choose an entry."""
    page.click("#menu-button")
    page.locator("#menu .entry", has_text=label).click()


# ---------------------------------------------------------------- all photos


def show_all(page: Page) -> None:
    """Go to the view of all photos."""
    if page.locator("#photo-view").is_visible():
        page.keyboard.press("g")
    page.wait_for_selector("#grid", state="visible")


def set_filter(page: Page, label: str) -> int:
    """Show the photos of a state, by the label of its button ("All", "predicted", "done" …); returns how many."""
    chip = page.locator("#chips .chip").filter(has=page.locator(f"text=/^{label}/")).first
    chip.click()
    return int(chip.locator(".count").inner_text().replace(",", ""))


def count_photos(page: Page, label: str) -> int:
    """The number on the button of a filter; 0 where it is not shown, as there are none."""
    chips = page.locator("#chips .chip:not([hidden])").all_inner_texts()
    for text in chips:
        name, _, number = text.replace("\n", " ").strip().rpartition(" ")
        if name.strip() == label:
            return int(number.replace(",", ""))
    return 0


def search(page: Page, text: str) -> list[str]:
    """Type into the field of the search; returns the names of the photos in sight."""
    page.fill("#search", text)
    page.wait_for_timeout(400)
    return shown_names(page)


def shown_names(page: Page) -> list[str]:
    """The names of the photos that the grid draws, those in sight and a few beside, in order."""
    cells: list[tuple[int, str]] = page.eval_on_selector_all(
        ".cell:not([hidden])",
        "cells => cells.map(c => [+c.getAttribute('aria-posinset'), c.querySelector('.cell-name').textContent])",
    )
    return [name for _, name in sorted(cells)]


def open_photo(page: Page, name: str) -> None:
    """Open a photo by its name, through the search."""
    show_all(page)
    page.fill("#search", name)
    page.locator(".cell:not([hidden])", has_text=name).first.click()
    wait_for_photo(page)
    page.evaluate("document.getElementById('search').value = ''")


def start_review(page: Page) -> None:
    """Open the photo where the review begins."""
    show_all(page)
    page.locator("#grid").focus()
    page.keyboard.press("n")
    wait_for_photo(page)


# ---------------------------------------------------------------- one photo


def wait_for_photo(page: Page) -> None:
    """Wait until the open photo is on the screen and its keypoints are known."""
    page.wait_for_selector("#photo-view", state="visible", timeout=TIMEOUT_MS)
    page.wait_for_selector("#photo-view[data-ready='true']", timeout=TIMEOUT_MS)


def photo_name(page: Page) -> str:
    """The name of the open photo."""
    return page.inner_text("#photo-name")


def page_position(page: Page, x: float, y: float) -> tuple[float, float]:
    """A position of the open photo, in its pixels → the position on the page, in CSS pixels."""
    left, top, transform = page.eval_on_selector(
        "#stage", "s => { const b = s.getBoundingClientRect(); return [b.left, b.top, s.dataset.transform]; }"
    )
    scale, dx, dy = map(float, transform.split(" "))
    return left + dx + scale * x, top + dy + scale * y


def mark_point(page: Page, keypoint: int, x: float, y: float) -> None:
    """Select a keypoint by its position in the list, from 0, and place it at a pixel of the photo."""
    if page.locator("#points li").nth(keypoint).get_attribute("aria-selected") != "true":
        page.locator("#points li").nth(keypoint).click()
    page.mouse.click(*page_position(page, x, y))
    page.wait_for_timeout(400)  # two clicks at once would be a double click


def drag_point(page: Page, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Drag what is at one pixel of the photo to another."""
    page.mouse.move(*page_position(page, *start))
    page.mouse.down()
    page.mouse.move(*page_position(page, *end), steps=5)
    page.mouse.up()


def draw_box(page: Page, box: tuple[float, float, float, float]) -> None:
    """Draw the box of an object, in pixels of the photo: x0, y0, x1, y1."""
    page.keyboard.press("b")
    drag_point(page, box[:2], box[2:])


def press(page: Page, keys: str) -> None:
    """Press keys on the photo, one after the other: ``"Tab h ArrowLeft"``."""
    page.locator("#stage").focus()
    for key in keys.split():
        page.keyboard.press(key)


def accept(page: Page) -> None:
    """Accept the open photo, which opens the next one."""
    press(page, "Enter")
    wait_until_saved(page)


def undo(page: Page) -> str:
    """Undo the last action; returns what the page says of it."""
    return _journal(page, "z")


def redo(page: Page) -> str:
    """Do again what was undone last; returns what the page says of it."""
    return _journal(page, "Shift+z")


def _journal(page: Page, key: str) -> str:
    page.evaluate("document.getElementById('toasts').replaceChildren()")
    page.keyboard.press(key)
    page.wait_for_selector("#toasts p", timeout=TIMEOUT_MS)
    return page.inner_text("#toasts p")


def shown_points(page: Page) -> dict[str, str]:
    """The list of keypoints: name → what it says of it ("predicted 87 %", "placed by you", "not placed" …)."""
    labels: list[str] = page.eval_on_selector_all("#points li", "rows => rows.map(r => r.getAttribute('aria-label'))")
    return {name: state for name, _, state in (label.partition(": ") for label in labels)}


# ---------------------------------------------------------------- files


def export_file(page: Page, out: Path, title: str = "COCO", *, predictions: bool = False) -> None:
    """Export in the format whose title has these words, and save the file."""
    choose_in_menu(page, "Export…")
    page.locator("#export .choices label", has_text=title).first.click()
    if predictions:
        page.check("#export input[type=checkbox]")
    with page.expect_download(timeout=TIMEOUT_MS) as download:
        page.click("#export footer .primary")
    download.value.save_as(out)


def import_file(page: Page, file: Path) -> str:
    """Import a COCO file; returns what the page says of it."""
    page.set_input_files("#import-file", file)
    banner = page.locator(".banner.news", has_text="imported")
    banner.wait_for(timeout=TIMEOUT_MS)
    return banner.inner_text()


# ---------------------------------------------------------------- measuring


def record_long_tasks(page: Page) -> None:
    """From now on, remember every task that keeps the page busy for more than 50 ms."""
    page.evaluate(
        "window.longTasks = []; const note = list => longTasks.push(...list.getEntries().map(e => e.duration));"
        " new PerformanceObserver(note).observe({ type: 'longtask' })"
    )


def long_tasks(page: Page) -> list[float]:
    """The tasks since :func:`record_long_tasks`, in milliseconds."""
    found: list[float] = page.evaluate("window.longTasks")
    return found


def scroll_grid(page: Page, steps: int = 60, by: int = 900) -> None:
    """Scroll through the view of all photos by the wheel."""
    box: Any = page.locator("#grid").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    for _ in range(steps):
        page.mouse.wheel(0, by)
        page.wait_for_timeout(16)


def unlabelled(page: Page) -> list[str]:
    """The controls in sight that a screen reader has no name for."""
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('button, input, select, textarea, [tabindex]')].filter(e => e.checkVisibility()"
        " && !(e.ariaLabel || e.labels?.length || e.textContent.trim() || e.getAttribute('aria-labelledby')))"
        ".map(e => e.outerHTML.slice(0, 200))"
    )
    return found

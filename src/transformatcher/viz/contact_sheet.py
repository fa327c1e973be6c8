"""Predicted photos → contact sheets: many photos on a page, least sure first, with their points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from PIL import Image

from transformatcher.errors import InputError
from transformatcher.images import read_image
from transformatcher.schema import Size
from transformatcher.viz.canvas import (
    BAR,
    FONT,
    GAP,
    TITLE,
    Box,
    Canvas,
    Entry,
    draw_mark,
    fit_text,
    legend_height,
    mark_sample,
    text_width,
)
from transformatcher.viz.matches import COLOURS, ConfidenceScale
from transformatcher.viz.pictures import save_figure

# Inches: of a page; of a row of photos, as wanted and at the most; of the caption above a photo.
PAGE_WIDTH, PAGE_HEIGHT, ROW_HEIGHT, MAX_ROW_HEIGHT, CAPTION = 12.0, 14.0, 2.3, 2.7, 0.23
MIN_RATIO, MAX_RATIO = 0.45, 3.5  # width over height: narrower and wider photos get a border
MAX_SIDE = 480  # pixels of the longer side of a photo: about what a page shows
MAX_NUMBERED = 40  # keypoints: where a page has more, their marks have no numbers, as the legend would fill the page
DIAMETER = 9.5  # of numbered marks, in points
SMALL_DIAMETER = 6.0  # of the others
SMALL_FONT = FONT - 1.0  # of captions


@dataclass(frozen=True)
class PredictedObject:
    """The keypoints of one object, as they were predicted."""

    category: str
    names: tuple[str, ...]
    kps_px: Float[np.ndarray, "n 2"]
    confidence: Float[np.ndarray, " n"]  # of keypoints that were not found, too
    found: Bool[np.ndarray, " n"]
    skeleton: Sequence[tuple[int, int]] = ()  # indices of keypoints


@dataclass(frozen=True)
class PredictedPhoto:
    """A photo and the objects predicted on it."""

    path: Path
    name: str
    size: Size
    objects: Sequence[PredictedObject] = field(default_factory=list)
    notes: Sequence[str] = ()  # what else is to be known, in a few words each

    @property
    def sureness(self) -> float:
        """The mean confidence of its keypoints, of those that were not found, too; 0 where nothing was found."""
        values = [value for item in self.objects for value in item.confidence.tolist()]
        return float(np.mean(values)) if values else 0.0

    @property
    def missing(self) -> int:
        """The number of keypoints that were not found."""
        return sum(int((~item.found).sum()) for item in self.objects)


def draw_contact_sheets(photos: Sequence[PredictedPhoto], picture: Path, *, calibrated: bool) -> list[Path]:
    """Draw photos on as many pages as they need, least sure first; returns the pictures written.

    Args:
        photos: none make no picture.
        picture: the file of a single page; several are numbered: sheet-1.png, sheet-2.png, …
        calibrated: the confidences are probabilities; see :class:`transformatcher.viz.matches.ConfidenceScale`.

    Example:
        >>> draw_contact_sheets([PredictedPhoto(Path("a.jpg"), "a.jpg", (300, 451), [item])], Path("sheet.png"))
    """
    values = [value for photo in photos for item in photo.objects for value in item.confidence[item.found].tolist()]
    scale = ConfidenceScale(np.array(values, dtype=float), calibrated=calibrated)
    ordered = sorted(photos, key=lambda photo: (photo.sureness, -photo.missing, photo.name))
    pages = arrange_pages([photo.size[1] / photo.size[0] for photo in ordered])
    written, start = [], 0
    for number, rows in enumerate(pages, 1):
        chosen = ordered[start : start + sum(map(len, rows))]
        title = f"{len(ordered)} predicted photo{'s' * (len(ordered) > 1)} by mean confidence, least sure first"
        if len(pages) > 1:
            title += f": {start + 1} to {start + len(chosen)} (page {number} of {len(pages)})"
        name = picture if len(pages) == 1 else picture.with_name(f"{picture.stem}-{number}{picture.suffix}")
        save_figure(draw_page(chosen, rows, scale, title), name)
        written.append(name)
        start += len(chosen)
    return written


def arrange_pages(ratios: Sequence[float]) -> list[list[list[float]]]:
    """Widths over heights of photos, in order → pages of rows of these."""
    rows: list[list[float]] = []
    for ratio in np.clip(ratios, MIN_RATIO, MAX_RATIO).tolist():
        if rows and _natural_height([*rows[-1], ratio]) >= 0.9 * ROW_HEIGHT:
            rows[-1].append(ratio)
        else:
            rows.append([ratio])
    pages: list[list[list[float]]] = []
    for row in rows:
        if pages and sum(_row_height(one) + CAPTION for one in [*pages[-1], row]) <= PAGE_HEIGHT:
            pages[-1].append(row)
        else:
            pages.append([row])
    return pages


def _natural_height(row: Sequence[float]) -> float:
    """Height of a row of photos that fills the width of the page."""
    return (PAGE_WIDTH - GAP * (len(row) + 1)) / sum(row)


def _row_height(row: Sequence[float]) -> float:
    return min(_natural_height(row), MAX_ROW_HEIGHT)


# ---------------------------------------------------------------- one page


class _Page(Canvas):
    """A canvas with rows of photos that fill the width, and a caption above each."""

    def __init__(self, rows: Sequence[Sequence[float]], title: str, *, strip: float) -> None:
        self.strip, self.width = strip, PAGE_WIDTH
        self.height = TITLE + sum(_row_height(row) + CAPTION for row in rows) + strip
        self.figure = Figure(figsize=(self.width, self.height), dpi=150)
        self.axes = []
        self.text(self.width / 2, self.height - 0.55 * TITLE, title, fontsize=FONT + 1, color="0.3")
        self.slots: list[Box] = []
        bottom = self.height - TITLE
        for row in rows:
            height, left = _row_height(row), GAP
            bottom -= CAPTION + height
            for ratio in row:
                self.slots.append((left, bottom, left + height * ratio, bottom + height))
                left += height * ratio + GAP

    def add_photo(self, photo: PredictedPhoto, scale: ConfidenceScale, *, numbered: bool) -> None:
        """Draw the next photo with its caption and marks. One that cannot be read is an empty frame."""
        left, bottom, right, top = self.slots[len(self.axes)]
        pixels, problem = _read(photo)
        h, w = pixels.shape[:2]
        width, height = min(right - left, (top - bottom) * w / h), min(top - bottom, (right - left) * h / w)
        corner = ((left + right - width) / 2, (bottom + top - height) / 2)
        axis = self._add_panel(pixels, (*corner, width, height))
        self.axes.append(axis)
        axis.add_patch(Rectangle((0, 0), w, h, fill=False, edgecolor="0.8", linewidth=0.6))
        value = f"{photo.sureness:.2f}" if photo.objects else "nothing found"
        room, y = right - left - text_width(value) - GAP, top + 0.4 * CAPTION
        self.text(left, y, fit_text(photo.name, room, SMALL_FONT), ha="left", fontsize=SMALL_FONT)
        self.text(right, y, value, ha="right", fontsize=SMALL_FONT, weight="bold")
        notes = [problem] if problem else [*photo.notes, *([f"{photo.missing} not found"] if photo.missing else [])]
        if notes:
            text = fit_text(" · ".join(notes), width - GAP, SMALL_FONT)
            box = {"facecolor": "black", "alpha": 0.6, "pad": 1.5, "linewidth": 0}
            style = {"ha": "left", "va": "bottom", "color": "white", "fontsize": SMALL_FONT, "zorder": 2.5}
            self.text(corner[0] + 0.04, corner[1] + 0.04, text, bbox=box, **style)
        for item in photo.objects:
            _draw_object(axis, item, item.kps_px * (w / photo.size[1], h / photo.size[0]), scale, numbered=numbered)


def _draw_object(
    axis: Axes, item: PredictedObject, points: Float[np.ndarray, "n 2"], scale: ConfidenceScale, *, numbered: bool
) -> None:
    """The skeleton of an object, and a mark for each point that was found; the least sure lie on top."""
    for a, b in item.skeleton:
        if item.found[a] and item.found[b]:
            for paint, thick in (("black", 2.0), ("white", 0.9)):
                axis.add_line(Line2D(*points[[a, b]].T, color=paint, linewidth=thick, alpha=0.7))
    for rank, row in enumerate(np.argsort(-item.confidence).tolist()):
        if item.found[row]:
            colour, band = scale.colour(item.confidence[row]), scale.band(item.confidence[row])
            number, diameter = (str(row + 1), DIAMETER) if numbered else ("", SMALL_DIAMETER)
            zorder = 3 + rank / len(item.names)
            draw_mark(axis, points[row], colour, number, diameter=diameter, shape=band.shape, zorder=zorder)


def draw_page(
    photos: Sequence[PredictedPhoto], rows: Sequence[Sequence[float]], scale: ConfidenceScale, title: str = ""
) -> Figure:
    """One page: photos in rows of these widths over heights. Colours and shapes of marks show the confidence.

    Marks have the numbers of their keypoints, which a legend names, unless there are too many.
    """
    entries = _legend(photos)
    bands = [Entry(one.text, {**one.sample, "linestyle": "none"}) for one in scale.entries(dashed=False)]
    strip = max(BAR, legend_height(bands, PAGE_WIDTH / 2)) + GAP
    page = _Page(rows, title, strip=strip + legend_height(entries, PAGE_WIDTH) + GAP)
    for photo in photos:
        page.add_photo(photo, scale, numbered=bool(entries))
    page.colourbar(scale.norm, scale.label, COLOURS, ticks=scale.ticks)
    page.legend(bands, left=PAGE_WIDTH / 2, top=0.1)
    page.legend(entries, top=strip)
    return page.figure


def _legend(photos: Sequence[PredictedPhoto]) -> list[Entry]:
    """Numbers and names of all keypoints of the categories on a page; none if they are too many."""
    names: Mapping[str, tuple[str, ...]] = {item.category: item.names for photo in photos for item in photo.objects}
    if sum(map(len, names.values())) > MAX_NUMBERED:
        return []
    sample = mark_sample("o", "0.85", markersize=11)
    several = len(names) > 1
    return [
        Entry(f"{category}: {name}" if several else name, sample, str(number))
        for category, group in names.items()
        for number, name in enumerate(group, 1)
    ]


def _read(photo: PredictedPhoto) -> tuple[UInt8[np.ndarray, "_ _ 3"], str]:
    """The pixels of a photo, reduced to what a page shows; grey, and why, where it cannot be read."""
    try:
        pixels, problem = read_image(photo.path), ""
    except InputError:
        h, w = photo.size
        factor = min(1.0, MAX_SIDE / max(h, w))
        grey = np.full((max(round(h * factor), 1), max(round(w * factor), 1), 3), 224, dtype=np.uint8)
        return grey, "cannot be read any more"
    h, w = pixels.shape[:2]
    if max(h, w) <= MAX_SIDE:
        return pixels, problem
    size = (max(round(w * MAX_SIDE / max(h, w)), 1), max(round(h * MAX_SIDE / max(h, w)), 1))
    return np.array(Image.fromarray(pixels).resize(size, Image.Resampling.BOX)), problem

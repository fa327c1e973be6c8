"""Photos → a figure with a panel for each photo in its own pixel coordinates, and a strip below for legends.

Lengths are in inches, font sizes and marks in points (1/72 inch), as matplotlib has them.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import Normal, Stroke
from matplotlib.typing import ColorType
from PIL import Image

from transformatcher.errors import printable

SEQUENTIAL = "cividis"  # of plots: monotone in lightness, and the same to most colour-blind eyes
# Okabe and Ito's colours, which colour-blind people can tell apart; without black, which shadows would hide.
QUALITATIVE = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")

MAX_PIXELS = 1200  # of the longer side of a photo that is drawn: 24 megapixels take seconds otherwise
# Width of a row of panels; height of a row at the most, and at the least if another layout can help; of all rows.
WIDTH, MAX_HEIGHT, MIN_HEIGHT, MAX_TOTAL = 10.0, 5.0, 1.8, 9.0
# Between panels; for the name above a panel, and the least width for it; for the title of the figure.
GAP, NAME, MIN_NAME, TITLE = 0.1, 0.26, 0.75, 0.3
ROW, BAR = 0.21, 0.52  # heights in the strip: of a row of legend entries, of a colour bar with its label
FONT = 9.0  # points
POINTS = 72.0  # in an inch

PAIR = ("source", "target")  # names of two photos whose files are not known
Photo = UInt8[np.ndarray, "_ _ 3"]
Box = tuple[float, float, float, float]  # left, bottom, right, top


@dataclass(frozen=True)
class Entry:
    """An entry of a legend: a sample of a line or mark, and what it means."""

    text: str
    sample: dict[str, Any]  # arguments of Line2D
    number: str = ""  # in the mark


@dataclass(frozen=True)
class Label:
    """Text beside a mark; ``ha`` is the side of the text that lies at x, which is measured in points, as is y."""

    text: str
    x: float
    y: float
    ha: str


class Canvas:
    """A figure with one panel for each photo, and a strip of ``strip`` inches below them."""

    def __init__(self, names: Sequence[str], photos: Sequence[Photo], title: str = "", *, strip: float) -> None:
        rows = arrange_rows([_ratio(photo) for photo in photos])
        heights = [_row_height(row) for row in rows]
        slots = [[max(height * ratio, MIN_NAME) for ratio in row] for height, row in zip(heights, rows, strict=True)]
        self.strip, self.width = strip, figure_width(photos)
        above = TITLE if title else 0.03
        self.height = above + sum(heights) + NAME * len(rows) + (strip or GAP)
        self.figure = Figure(figsize=(self.width, self.height), dpi=110)
        self.axes: list[Axes] = []
        bottom, panels = self.height - above, iter(zip(names, photos, strict=True))
        for row, height, row_slots in zip(rows, heights, slots, strict=True):
            left, bottom = (self.width - _row_width(row_slots)) / 2, bottom - NAME - height
            for ratio, slot in zip(row, row_slots, strict=True):
                name, photo = next(panels)
                box = (left + (slot - height * ratio) / 2, bottom, height * ratio, height)
                self.axes.append(self._add_panel(photo, box))
                self.text(left + slot / 2, bottom + height + 0.45 * NAME, fit_text(name, slot))
                left += slot + GAP
        if title:
            text = fit_text(title, self.width, FONT + 1)
            self.text(self.width / 2, self.height - 0.55 * TITLE, text, fontsize=FONT + 1, color="0.3")

    def _add_panel(self, photo: Photo, box: Box) -> Axes:
        left, bottom, width, height = box
        size = (left / self.width, bottom / self.height, width / self.width, height / self.height)
        axis = self.figure.add_axes(size)
        h, w = photo.shape[:2]
        axis.imshow(_downscaled(photo), extent=(0, w, h, 0), aspect="auto")  # (0, 0) is the corner of the photo
        axis.set_autoscale_on(False)
        axis.set_axis_off()
        return axis

    def text(self, x: float, y: float, text: str, **style: Any) -> None:
        """Text around a point of the figure, in inches; a dollar sign in it is a dollar sign."""
        style = {"ha": "center", "va": "center", "fontsize": FONT, **style}
        text = "\n".join(map(printable, text.split("\n")))  # half characters cannot be drawn
        self.figure.text(x, y, text, transform=self.figure.dpi_scale_trans, parse_math=False, **style)

    def label(self, label: Label) -> None:
        """Text that can be read on any photo: white with a black rim."""
        effects = [Stroke(linewidth=2.2, foreground="black"), Normal()]
        x, y = label.x / POINTS, label.y / POINTS
        self.text(x, y, label.text, ha=label.ha, color="white", path_effects=effects, zorder=5)

    def bounds(self, axis: Axes) -> Box:
        """Where a photo lies in the figure: (left, bottom, right, top) in points (1/72 inch)."""
        box = axis.get_position()
        across, up = self.width * POINTS, self.height * POINTS
        return box.x0 * across, box.y0 * up, box.x1 * across, box.y1 * up

    def to_points(self, axis: Axes, points_px: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
        """Pixels of a photo → points (1/72 inch) of the figure, y upwards."""
        return axis.transData.transform(points_px.reshape(-1, 2)) / self.figure.dpi * POINTS

    def colourbar(self, norm: Normalize, label: str, colours: str, *, ticks: int = 5, percent: bool = False) -> None:
        """A colour bar in the left half of the strip, with a number of ticks at equal distances."""
        box = (0.05, (self.strip - 0.17) / self.height, 0.4, 0.11 / self.height)
        axis = self.figure.add_axes(box)
        values = norm.inverse(np.linspace(0, 1, ticks))
        bar = self.figure.colorbar(ScalarMappable(norm, colours), cax=axis, orientation="horizontal", ticks=values)
        bar.ax.set_xticklabels([f"{100 * value:.2g} %" if percent else f"{value:.2g}" for value in values])
        bar.ax.minorticks_off()
        bar.ax.tick_params(labelsize=FONT - 1, pad=1, length=2)
        bar.set_label(label, fontsize=FONT, labelpad=1)

    def legend(self, entries: Sequence[Entry], *, left: float = 0.0, top: float = 0.0) -> None:
        """Entries in columns, from ``left`` inches to the right border, ``top`` inches below the photos."""
        columns, column_width = legend_columns(entries, self.width - left)
        n = min(columns, len(entries))
        start = left + max((self.width - left - n * column_width) / 2, 0)
        rows = -(-len(entries) // columns)
        lines = any(_has_line(entry) for entry in entries)
        for index, entry in enumerate(entries):
            column, row = divmod(index, rows)
            x, y = start + column * column_width, self.strip - top - (row + 0.5) * ROW
            half = 0.18 if _has_line(entry) else 0.0
            transform = self.figure.dpi_scale_trans
            line = Line2D([x + 0.19 - half, x + 0.19, x + 0.19 + half], [y] * 3, transform=transform, **entry.sample)
            line.set_markevery([1])
            self.figure.add_artist(line)
            if entry.number:
                filling = entry.sample["markerfacecolor"]
                colour = "black" if filling == "none" else number_colour(filling)
                bold = {"fontsize": FONT - 3, "weight": "bold", "va": "center_baseline"}
                self.text(x + 0.19, y, entry.number, color=colour, **bold)
            self.text(x + (0.45 if lines else 0.33), y, entry.text, ha="left")


def _has_line(entry: Entry) -> bool:
    return bool(entry.sample["linestyle"] != "none")


def figure_width(photos: Sequence[Photo]) -> float:
    """Width in inches of a figure with these photos."""
    rows = arrange_rows([_ratio(photo) for photo in photos])
    widths = [_row_width([max(_row_height(row) * ratio, MIN_NAME) for ratio in row]) for row in rows]
    return max(*widths, WIDTH / 2) + 2 * GAP


def legend_columns(entries: Sequence[Entry], width: float) -> tuple[int, float]:
    """Number of columns of a legend of some width in inches, and the width of a column."""
    column_width = max((0.55 + text_width(entry.text) for entry in entries), default=1.0)
    return max(min(int(width / column_width), len(entries)), 1), column_width


def legend_height(entries: Sequence[Entry], width: float) -> float:
    """Height in inches of a legend of some width."""
    return ROW * -(-len(entries) // legend_columns(entries, width)[0]) if entries else 0.0


def arrange_rows(ratios: Sequence[float]) -> list[list[float]]:
    """Widths over heights → rows of them: one row if all are then high enough, else the layout with the highest."""
    n = len(ratios)
    layouts = [[list(ratios[i : i + k]) for i in range(0, n, k)] for k in (n, (n + 1) // 2)]
    layouts += [[[ratios[0]], list(ratios[1:])], [[ratio] for ratio in ratios]]
    fitting = [rows for rows in layouts if len(rows) == 1 or sum(map(_row_height, rows)) <= MAX_TOTAL]
    return max(fitting, key=lambda rows: min(MIN_HEIGHT, *map(_row_height, rows)))  # the first of the best


def _ratio(photo: Photo) -> float:
    return photo.shape[1] / photo.shape[0]


def _row_height(ratios: Sequence[float]) -> float:
    return min(WIDTH / sum(ratios), MAX_HEIGHT)


def _row_width(slots: Sequence[float]) -> float:
    return sum(slots) + GAP * (len(slots) - 1)


def _downscaled(photo: Photo) -> Photo:
    h, w = photo.shape[:2]
    if max(h, w) <= MAX_PIXELS:
        return photo
    size = (max(round(w * MAX_PIXELS / max(h, w)), 1), max(round(h * MAX_PIXELS / max(h, w)), 1))
    return np.array(Image.fromarray(photo).resize(size, Image.Resampling.BOX))


# ---------------------------------------------------------------- text


def text_width(text: str, fontsize: float = FONT) -> float:
    """About how many inches a line of text takes; letters of East Asian scripts are as wide as high."""
    return sum(1.0 if ord(letter) > 0x2E7F else 0.62 for letter in text) * fontsize / POINTS


def fit_text(text: str, width: float, fontsize: float = FONT) -> str:
    """The text if it fits into some inches, else its beginning and its end with an ellipsis between."""
    text = printable(" ".join(text.split()))
    if text_width(text, fontsize) <= width:
        return text
    room = max(int(width / text_width("m", fontsize)) - 1, 2)
    return f"{text[: room - room // 2]}…{text[len(text) - room // 2 :]}"


def no_math(text: str) -> str:
    """A name from outside for titles, ticks and legends of plots: matplotlib reads two dollar signs as a formula."""
    return "\n".join(map(printable, text.split("\n"))).replace("$", r"\$")


def wrap_text(text: str, width: float) -> list[str]:
    """Lines of text that fit into some inches."""
    return textwrap.wrap(text, max(int(width / text_width("m")), 1))


def place_labels(
    anchors: Float[np.ndarray, "n 2"],
    texts: Sequence[str],
    bounds: Box,
    *,
    radius: float,
    side: str,
    avoid: Float[np.ndarray, "m 2"],
) -> list[Label] | None:
    """Where to write a name beside each of some marks: inside the photo, and over no mark and no other name.

    Args:
        anchors: centres of the marks, in points, y upwards.
        texts: the names.
        bounds: of the photo, in points.
        radius: of the marks, in points.
        side: ``"left"`` or ``"right"``: where to try first.
        avoid: points along lines; of the free positions, the one over the fewest of them is taken.

    Returns:
        A label for each mark, or None where they do not all fit.
    """
    taken: list[Box] = [(x - radius, y - radius, x + radius, y + radius) for x, y in anchors]
    labels: list[Label] = []
    for (x, y), text in zip(anchors, texts, strict=True):
        width, high = POINTS * text_width(text), 0.62 * FONT
        up, near = radius + high, 0.7 * radius
        left = [(-radius - 2, 0.0, "right"), (-near, up, "right"), (-near, -up, "right")]
        right = [(radius + 2, 0.0, "left"), (near, up, "left"), (near, -up, "left")]
        first, second = (left, right) if side == "left" else (right, left)
        choices = [first[0], second[0], (0.0, up, "center"), (0.0, -up, "center"), *first[1:], *second[1:]]
        free: list[tuple[Label, Box]] = []
        for dx, dy, ha in choices:
            start = x + dx - {"left": 0.0, "center": width / 2, "right": width}[ha]
            box = (start, y + dy - high, start + width, y + dy + high)
            if _inside(box, bounds) and not any(_overlap(box, other) for other in taken):
                free.append((Label(text, float(x + dx), float(y + dy), ha), box))
        if not free:
            return None
        label, box = min(free, key=lambda item: _count_inside(avoid, item[1]))  # the first of the best
        taken.append(box)
        labels.append(label)
    return labels


def _inside(box: Box, bounds: Box) -> bool:
    return bool(box[0] >= bounds[0] and box[1] >= bounds[1] and box[2] <= bounds[2] and box[3] <= bounds[3])


def _count_inside(points: Float[np.ndarray, "m 2"], box: Box) -> int:
    return int(((points >= box[:2]) & (points <= box[2:])).all(axis=1).sum())


def _overlap(a: Box, b: Box) -> bool:
    return bool(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3])


# ---------------------------------------------------------------- marks


def lightness(colour: ColorType) -> float:
    """Of a colour, between 0 (black) and 1 (white)."""
    return float(np.dot(mpl.colors.to_rgb(colour), (0.299, 0.587, 0.114)))


def number_colour(colour: ColorType) -> str:
    """Black or white: what can be read on a colour."""
    return "black" if colour != "none" and lightness(colour) > 0.45 else "white"


def outline(colour: ColorType, width: float) -> list[Any]:
    """Path effects that set a line off from any photo: a dark rim around light colours, a light one around dark."""
    rim = "black" if lightness(colour) > 0.35 else "white"
    return [Stroke(linewidth=width + 1.6, foreground=rim, alpha=0.75), Normal()]


def draw_mark(
    axis: Axes,
    point: Float[np.ndarray, "2"],
    colour: ColorType,
    number: str = "",
    *,
    diameter: float,
    shape: str = "o",
    zorder: float = 3.0,
) -> None:
    """A mark with a rim that shows on light and on dark, and a number in it; the colour "none" is hollow.

    Marks are artists of the figure, not of the axes: so they lie above lines that go from one photo to another.
    """
    figure, (x, y), hollow = axis.figure, point, colour == "none"
    size = 0.85 * diameter if shape == "D" else diameter  # a diamond is a square on its corner, and looks larger
    thick = 0.9 + size / 5 if hollow else min(2.4, 0.3 * size)
    rims = (("black", thick), ("white", thick / 2)) if hollow else (("white", thick), ("black", 0.9))
    for rim, width in rims:
        style: dict[str, Any] = {"markeredgecolor": rim, "markeredgewidth": width, "markerfacecolor": colour}
        mark = Line2D([x], [y], marker=shape, markersize=size, transform=axis.transData, zorder=zorder, **style)
        figure.add_artist(mark)
    if number:
        style = {"fontsize": 0.6 * diameter, "weight": "bold", "color": number_colour(colour), "zorder": zorder}
        text = figure.text(x, y, number, ha="center", va="center_baseline", transform=axis.transData, **style)
        if hollow:
            text.set_path_effects([Stroke(linewidth=1.5, foreground="black"), Normal()])


def mark_sample(shape: str, colour: ColorType, **line: Any) -> dict[str, Any]:
    """A mark for a legend entry, as arguments of Line2D; without a ``linestyle``, no line goes through it."""
    mark = {"marker": shape, "markersize": 8, "markerfacecolor": colour, "markeredgecolor": "black"}
    return {"linestyle": "none", **mark, **line}

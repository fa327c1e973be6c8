"""Matches → both photos with a line for each match, legible for one match or hundreds and for any eyes."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from jaxtyping import Bool, Float, UInt8
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch
from matplotlib.typing import ColorType, LineStyleType

from transformatcher.schema import Matches
from transformatcher.viz.canvas import (
    BAR,
    PAIR,
    ROW,
    Canvas,
    Entry,
    Label,
    draw_mark,
    figure_width,
    fit_text,
    legend_height,
    mark_sample,
    outline,
    place_labels,
)

COLOURS = "plasma"  # monotone in lightness, and more vivid on photos than cividis
LOWEST_CONFIDENCE = 0.5  # where the scale of calibrated confidence begins
MAX_NUMBERED = 60  # points; where there are more, they are small dots
LABEL_DIAMETER = 9.0  # of marks with a name beside them, in points
MANY_WIDTH = 1.0  # of lines, in points, where there are many
NAME_WIDTH = 2.2  # inches: longer names are cut


@dataclass(frozen=True)
class Band:
    """How matches in a range of confidence are drawn, besides their colour."""

    start: float  # of the range, on the colour scale from 0 to 1
    shape: str
    dashes: LineStyleType
    width: float  # of the line, in points
    alpha: float


BANDS = (
    Band(0.8, "o", "solid", 2.2, 1.0),
    Band(0.4, "s", (0.0, (4.0, 1.5)), 1.8, 0.9),
    Band(0.0, "D", (0.0, (1.0, 1.2)), 1.6, 0.8),
)


class ConfidenceScale:
    """Confidence → colour and band. The scale goes from 0.5 to 1 if calibrated, else from 0 to the 95th percentile."""

    def __init__(self, confidence: Float[np.ndarray, " n"], *, calibrated: bool) -> None:
        self.label = "confidence" if calibrated else "sharpness of the match"
        self.ticks = 6 if calibrated else 5
        top = float(np.percentile(confidence, 95)) if len(confidence) else 1.0
        self.norm = Normalize(LOWEST_CONFIDENCE, 1) if calibrated else Normalize(0, max(top, 1e-6))

    def colour(self, confidence: float) -> ColorType:
        """The colour of a match."""
        red, green, blue, _ = mpl.colormaps[COLOURS](float(self.norm(confidence)))
        return red, green, blue

    def band(self, confidence: float) -> Band:
        """The band that a confidence lies in."""
        value = round(float(self.norm(confidence)), 6)
        return next((band for band in BANDS if value >= band.start), BANDS[-1])

    def entries(self, *, dashed: bool) -> list[Entry]:
        """A legend of the bands, with the lines of each or, where there are many matches, with solid ones."""
        entries = []
        for band, end in zip(BANDS, (1.0, *(band.start for band in BANDS)), strict=False):
            low, high = (float(value) for value in self.norm.inverse(np.array([band.start, end])))
            colour = self.colour((low + high) / 2)
            line = (band.dashes, band.width) if dashed else ("solid", MANY_WIDTH)
            sample = mark_sample(band.shape, colour, linestyle=line[0], linewidth=line[1], color=colour)
            entries.append(Entry(f"{low:.2g} to {high:.2g}", sample))
        return entries


def draw_matches(
    src: UInt8[np.ndarray, "h w 3"],
    trg: UInt8[np.ndarray, "h2 w2 3"],
    matches: Matches,
    title: str = "",
    *,
    names: Sequence[str] = PAIR,
    point_names: Sequence[str] = (),
    calibrated: bool = False,
    threshold: float | None = None,
    notes: Sequence[str] = (),
) -> Figure:
    """Both photos side by side and a line for each match; colours, lines and shapes of marks show the confidence.

    Names of points are written beside them where they fit. Else up to 60 points are numbered, and a legend below the
    photos lists the names.

    Args:
        src, trg: the photos.
        matches: in their pixels.
        title: a line above.
        names: of the photos, such as their files.
        point_names: one for each match, or none.
        calibrated: the confidences are probabilities, on a scale from 0.5 to 1; else it ends at their 95th percentile.
        threshold: a point of lower confidence has no match: a hollow mark on the source, nothing on the target.
        notes: lines about the pair as a whole, at the bottom.
    """
    n = len(matches.keypoints0)
    if list(point_names) == [str(number) for number in range(1, n + 1)]:
        point_names = ()  # the numbers in the marks say as much
    has_match = np.full(n, True) if threshold is None else matches.confidence >= threshold
    points = _Points(matches, ConfidenceScale(matches.confidence, calibrated=calibrated), has_match, point_names)
    bands = points.scale.entries(dashed=points.numbered)
    if not has_match.all():
        bands.append(Entry(f"no match (< {threshold:.3g}): {n - has_match.sum()} of {n}", mark_sample("o", "none")))
    width = figure_width([src, trg])
    strip = max(BAR, legend_height(bands, width / 2) + 0.06)
    notes_height = ROW * len(notes) + 0.05 if notes else 0.0
    canvas = Canvas(names, [src, trg], title, strip=strip + notes_height)
    labels = points.place_names(canvas)
    if point_names and points.numbered and labels is None:
        entries = points.entries()
        below = strip + legend_height(entries, width) + 0.05
        canvas = Canvas(names, [src, trg], title, strip=below + notes_height)
        canvas.legend(entries, top=strip)
    canvas.colourbar(points.scale.norm, points.scale.label, COLOURS, ticks=points.scale.ticks)
    canvas.legend(bands, left=width / 2)
    for row, note in enumerate(reversed(notes)):
        canvas.text(width / 2, 0.05 + (row + 0.5) * ROW, fit_text(note, width))
    for rank, index in enumerate(np.argsort(matches.confidence)):  # the most confident on top
        points.draw(canvas, int(index), with_names=labels is not None, zorder=3 + rank / n)
    for label in labels or []:
        canvas.label(label)
    return canvas.figure


@dataclass(frozen=True)
class _Points:
    """The points of one picture, and how they are drawn."""

    matches: Matches
    scale: ConfidenceScale
    has_match: Bool[np.ndarray, " n"]
    names: Sequence[str]

    @property
    def numbered(self) -> bool:
        return len(self.has_match) <= MAX_NUMBERED

    def place_names(self, canvas: Canvas) -> list[Label] | None:
        """The names on both photos; None where they do not fit, or there are none.

        Source names go to the left of a point and target names to the right where possible: lines go between.
        """
        if not self.names or not self.numbered:
            return None
        src_pt = canvas.to_points(canvas.axes[0], self.matches.keypoints0)
        trg_pt = canvas.to_points(canvas.axes[1], self.matches.keypoints1)
        steps = np.linspace(0, 1, 100)[:, None, None]
        lines_pt = ((1 - steps) * src_pt + steps * trg_pt)[:, self.has_match].reshape(-1, 2)
        on_source = [self._name(i) + (" (no match)" if not has else "") for i, has in enumerate(self.has_match)]
        on_target = [self._with_confidence(int(index)) for index in np.flatnonzero(self.has_match)]
        labels: list[Label] = []
        for axis, anchors, texts, side in (
            (canvas.axes[0], src_pt, on_source, "left"),
            (canvas.axes[1], trg_pt[self.has_match], on_target, "right"),
        ):
            bounds = canvas.bounds(axis)
            placed = place_labels(anchors, texts, bounds, radius=LABEL_DIAMETER / 2 + 1, side=side, avoid=lines_pt)
            if placed is None:
                return None
            labels += placed
        return labels

    def entries(self) -> list[Entry]:
        """A legend of the named points: number, name and confidence."""
        entries = []
        for index, value in enumerate(self.matches.confidence):
            shape, colour = self.scale.band(value).shape, self.scale.colour(value)
            sample = mark_sample(shape, colour) if self.has_match[index] else mark_sample("o", "none")
            entries.append(Entry(self._with_confidence(index), sample | {"markersize": 11}, str(index + 1)))
        return entries

    def _name(self, index: int) -> str:
        return fit_text(self.names[index], NAME_WIDTH)

    def _with_confidence(self, index: int) -> str:
        return f"{self._name(index)} · {self.matches.confidence[index]:.2f}"

    def draw(self, canvas: Canvas, index: int, *, with_names: bool, zorder: float) -> None:
        """One match: a line and two marks; of a point without a match, a hollow mark on the source."""
        value, n = self.matches.confidence[index], len(self.has_match)
        ends = (self.matches.keypoints0[index], self.matches.keypoints1[index])
        number = str(index + 1) if self.numbered and not with_names else ""
        diameter = LABEL_DIAMETER if with_names else 4.5 if not self.numbered else 13.0 if n <= 25 else 11.0
        if not self.has_match[index]:
            draw_mark(canvas.axes[0], ends[0], "none", number, diameter=diameter, zorder=zorder)
            return
        colour, band = self.scale.colour(value), self.scale.band(value)
        for axis, point in zip(canvas.axes, ends, strict=True):
            draw_mark(axis, point, colour, number, diameter=diameter, shape=band.shape, zorder=zorder)
        (x0, y0), (x1, y1) = ends
        line = ConnectionPatch((x0, y0), (x1, y1), "data", "data", axesA=canvas.axes[0], axesB=canvas.axes[1])
        line.shrinkA = line.shrinkB = diameter / 2  # up to the rim, not over the number
        if self.numbered:
            line.set(color=colour, linewidth=band.width, linestyle=band.dashes, alpha=band.alpha)
            line.set_path_effects(outline(colour, band.width))
        else:  # rims and dashes of many lines would only blur each other
            line.set(color=colour, linewidth=MANY_WIDTH, alpha=0.8 * band.alpha)
        canvas.figure.add_artist(line)

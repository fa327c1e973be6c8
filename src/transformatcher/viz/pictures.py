"""Matches, flow and scores → pictures of photos, legible at any image size and for any eyes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, ConnectionPatch, Ellipse
from matplotlib.patheffects import Normal, Stroke
from matplotlib.typing import ColorType
from PIL import Image

from transformatcher.coords import cell_to_norm, norm_to_px
from transformatcher.files import atomic_write
from transformatcher.schema import Matches, Size

SEQUENTIAL = "cividis"  # even in lightness, and the same to most colour-blind eyes
# Okabe and Ito's colours, which the common kinds of colour-blindness tell apart; their black would vanish in shadows.
QUALITATIVE = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
SHAPES = "osD^v"  # with the eighth point the colours begin again, in another shape
# A colour for every position: blue to yellow along x and light to dark along y, the two axes that all eyes share.
CORNERS = {"top left": "#8fdcff", "top right": "#fff07a", "bottom left": "#1a10a8", "bottom right": "#963c00"}

RENDERED, OVERLAY = 1200, 600  # pixels: the most of a photo that is drawn; the longer side of what is laid over it
# Inches. Of a row of pictures; of one picture at the most, and at the least if another layout can help; of all rows.
WIDTH, TALLEST, LOWEST, HIGHEST = 10.0, 5.0, 1.8, 9.0
# Between pictures; for the word above one, and its width; for a legend under them all, and for a colour bar.
GAP, LABEL, WORD, LEGEND, BAR = 0.1, 0.22, 0.6, 0.3, 0.54


def draw_matches(
    src: UInt8[np.ndarray, "h w 3"],
    trg: UInt8[np.ndarray, "h2 w2 3"],
    matches: Matches,
    title: str = "",
    *,
    calibrated: bool = False,
    threshold: float | None = None,
) -> Figure:
    """Both images side by side, a line for each match, coloured by confidence; few points are numbered as well.

    Args:
        src, trg: the photos.
        matches: in their pixels.
        title: a line above.
        calibrated: the confidences are probabilities, on a scale from 0 to 1; else it ends at their 95th percentile.
        threshold: matches less sure than this are none: a hollow mark on the source, nothing on the target.
    """
    canvas = _canvas({"source": src, "target": trg}, title, strip=BAR)
    n = len(matches.keypoints0)
    numbered = n <= 30
    top = float(np.percentile(matches.confidence, 95)) if n and not calibrated else 1.0
    norm = Normalize(0, max(top, 1e-6))
    diameter, width = (9.0, 1.8) if numbered else (3.5, 0.8)  # in points, as are line widths
    lost = matches.confidence < threshold if threshold is not None else np.zeros(n, dtype=bool)
    for index in np.argsort(matches.confidence):  # the surest on top
        ends, number = (matches.keypoints0[index], matches.keypoints1[index]), str(index + 1) if numbered else ""
        if lost[index]:
            _mark(canvas.axes[0], ends[0], "none", number, diameter=diameter)
            continue
        colour = mpl.colormaps[SEQUENTIAL](norm(matches.confidence[index]))
        for axis, point in zip(canvas.axes, ends, strict=True):
            _mark(axis, point, colour, number, diameter=diameter)
        line = ConnectionPatch(
            *ends, "data", "data", axesA=canvas.axes[0], axesB=canvas.axes[1], color=colour, lw=width
        )
        line.shrinkA = line.shrinkB = diameter / 2  # up to the rim, not over the number
        line.set_path_effects([Stroke(linewidth=width + 1.2, foreground="black", alpha=0.6), Normal()])
        canvas.figure.add_artist(line)
    canvas.colourbar(norm, "confidence" if calibrated else "sharpness of the match")
    if lost.any():
        ring = _sample("o", "none", f"no match: {lost.sum()} of {n} under {threshold:.3g}")
        canvas.legend([ring], beside=True)
    return canvas.figure


def draw_errors(
    src: UInt8[np.ndarray, "h w 3"],
    trg: UInt8[np.ndarray, "h2 w2 3"],
    keypoints0: Float[np.ndarray, "n 2"],
    predicted: Float[np.ndarray, "n 2"],
    true: Float[np.ndarray, "n 2"],
    title: str = "",
    *,
    radius_px: float | tuple[float, float] | None = None,
) -> Figure:
    """The paper's figure A1: each keypoint in its own colour; on the target the truth, the prediction, the error.

    Args:
        src, trg: the photos.
        keypoints0: annotated points of the source, in its pixels.
        predicted, true: where they lie on the target, in its pixels.
        title: a line above.
        radius_px: α·s, within which PCK counts a prediction as right: a circle around each true point; or (x, y) of
            an ellipse, where PCK is taken in a frame that the target was stretched to.
    """
    canvas = _canvas({"source": src, "target": trg}, title, strip=LEGEND)
    left, right = canvas.axes
    styles = [(QUALITATIVE[i % 7], SHAPES[i // 7 % 5]) for i in range(len(keypoints0))]
    for (colour, _), guess, truth in zip(styles, predicted, true, strict=True):  # under every mark
        if radius_px is not None:
            for paint, width in (("black", 2.4), (colour, 1.2)):
                right.add_patch(_ring(tuple(truth), radius_px, fill=False, lw=width, color=paint))
        (line,) = right.plot(*zip(guess, truth, strict=True), color=colour, lw=2.2)
        line.set_path_effects([Stroke(linewidth=3.6, foreground="black"), Normal()])
    for index, (colour, shape) in enumerate(styles):
        for axis, point in ((left, keypoints0[index]), (right, true[index])):
            _mark(axis, point, colour, str(index + 1), diameter=10.0, shape=shape)
    for (colour, _), guess in zip(styles, predicted, strict=True):
        right.scatter(
            guess[0],
            guess[1],
            s=45,
            color=colour,
            marker="X",
            edgecolors="black",
            linewidths=0.9,
            zorder=4,
            clip_on=False,
        )
    samples = [_sample("o", "0.75", "true point"), _sample("X", "0.75", "prediction")]
    if radius_px is not None:
        right_ones = int((np.linalg.norm((predicted - true) / np.maximum(radius_px, 1e-9), axis=1) <= 1).sum())
        pixels = " × ".join(f"{side:.3g}" for side in np.atleast_1d(radius_px))
        within = f"within {pixels} pixels: {right_ones} of {len(true)}"
        samples.append(Line2D([], [], ls="", marker="o", ms=12, mfc="none", mec="0.4", mew=1.2, label=within))
    canvas.legend(samples)
    return canvas.figure


def draw_flow(
    src: UInt8[np.ndarray, "h w 3"],
    trg: UInt8[np.ndarray, "h2 w2 3"],
    flow_norm: Float[np.ndarray, "hs ws 2"],
    confidence: Float[np.ndarray, "hs ws"] | None = None,
    title: str = "",
    *,
    calibrated: bool = False,
) -> Figure:
    """Dense flow: the target under a map of colours and a straight grid; the source in the colours it lands on.

    Args:
        src, trg: the photos, drawn in grey.
        flow_norm: where each cell of the source lands on the target, in [-1, 1]².
        confidence: fades what is unsure, down to white.
        title: a line above.
        calibrated: as for :func:`draw_matches`.
    """
    canvas = _canvas({"source": _grey(src), "target": _grey(trg)}, title, strip=LEGEND)
    sizes = [_overlay_size(image) for image in (src, trg)]
    landed = _stretched(flow_norm, sizes[0])
    opacity = np.ones(sizes[0])
    if confidence is not None:
        top = 1.0 if calibrated else max(float(np.percentile(confidence, 95)), 1e-6)
        opacity = _stretched(confidence[..., None] / top, sizes[0])[..., 0].clip(0, 1)
    ys, xs = (np.linspace(-1, 1, n) for n in sizes[1])
    places = np.stack(np.meshgrid(xs, ys), axis=-1)
    layers = ((canvas.axes[0], landed, opacity), (canvas.axes[1], places, np.ones(sizes[1])))
    for axis, norm, shown in layers:
        extent = axis.get_images()[0].get_extent()
        axis.imshow(position_colours(norm), extent=extent, alpha=0.7)
        unsure = np.concatenate([np.ones((*shown.shape, 3)), 0.85 * (1 - shown[..., None])], axis=2)
        axis.imshow(unsure, extent=extent)
        h, w = shown.shape
        column_px, row_px = (np.arange(w) + 0.5) / w * extent[1], (np.arange(h) + 0.5) / h * extent[2]
        for channel, dashes in ((0, "solid"), (1, (0, (4, 2)))):  # lines of equal x, lines of equal y
            line = np.where(shown > 0.2, norm[..., channel], np.nan)
            levels = [level for level in np.linspace(-0.8, 0.8, 9) if (line < level).any() and (line > level).any()]
            if levels:
                axis.contour(column_px, row_px, line, levels, colors="black", linewidths=0.8, linestyles=[dashes])
    canvas.note("equal colours and lines: equal places" + ("; pale: unsure" if confidence is not None else ""))
    return canvas.figure


def draw_heatmap(
    src: UInt8[np.ndarray, "h w 3"],
    trg: UInt8[np.ndarray, "h2 w2 3"],
    point_px: tuple[float, float] | Float[np.ndarray, "2"],
    distribution: Float[np.ndarray, "ht wt"],
    title: str = "",
) -> Figure:
    """One point of the source, and the probability of each place on the target, with its peak and its expectation.

    Args:
        src, trg: the photos.
        point_px: the point, in pixels of the source.
        distribution: over the cells of the target grid, whose outermost centres lie on the image's border.
        title: a line above.
    """
    canvas = _canvas({"source": src, "target": trg}, title, strip=BAR)
    left, right = canvas.axes
    size, grid = (trg.shape[0], trg.shape[1]), (distribution.shape[0], distribution.shape[1])
    p = distribution / distribution.sum()
    rows, columns = np.indices(grid)
    cells = np.stack([columns, rows], axis=-1).astype(np.float64)
    row, column = np.unravel_index(p.argmax(), grid)
    peak = norm_to_px(cell_to_norm(cells[row, column], grid), size)
    expected = norm_to_px(cell_to_norm((p[..., None] * cells).sum(axis=(0, 1)), grid), size)
    norm = PowerNorm(0.5, 0, float(p.max()))  # a root, that the second and third choices show
    heat = norm(_stretched(p[..., None], _overlay_size(trg))[..., 0]).filled()
    rgba = mpl.colormaps["inferno"](heat)
    rgba[..., 3] = 0.35 + 0.5 * heat  # where it is cold, the photo, darkened
    right.imshow(rgba, extent=right.get_images()[0].get_extent())
    _mark(left, np.asarray(point_px, dtype=float), QUALITATIVE[1], "", diameter=10.0)
    _mark(right, expected, "none", "", diameter=13.0)
    _mark(right, peak, "none", "", diameter=8.0, shape="X")
    canvas.colourbar(norm, "probability of a cell", "inferno")
    canvas.legend([_sample("X", "none", "peak"), _sample("o", "none", "expectation")], beside=True)
    return canvas.figure


def draw_warp(
    src: UInt8[np.ndarray, "h w 3"],
    trg: UInt8[np.ndarray, "h2 w2 3"],
    warped: UInt8[np.ndarray, "h2 w2 3"],
    mask: Bool[np.ndarray, "h2 w2"] | None = None,
    title: str = "",
) -> Figure:
    """The paper's figure 5, and a blend: source, target, the source warped onto the target, half of each.

    Args:
        src, trg: the photos.
        warped: see :func:`transformatcher.viz.warp.thin_plate_warp`.
        mask: the pixels of ``warped`` that are there; elsewhere the third picture is blank, the fourth the target.
        title: a line above.
    """
    there = np.ones(trg.shape[:2], dtype=bool) if mask is None else mask
    alone = np.where(there[..., None], warped, np.uint8(232))
    both = np.where(there[..., None], (warped.astype(np.uint16) + trg) // 2, trg).astype(np.uint8)
    pictures = {"source": src, "target": trg, "warped": alone, "both": both}
    return _canvas(pictures, title, strip=0.0).figure


def position_colours(norm: Float[np.ndarray, "*n 2"]) -> Float[np.ndarray, "*n 3"]:
    """Positions in [-1, 1]² → the colours of :func:`draw_flow`: blue to yellow along x, light to dark along y."""
    corners = np.array([mpl.colors.to_rgb(colour) for colour in CORNERS.values()]).reshape(2, 2, 3)
    x, y = np.moveaxis((norm.clip(-1, 1) + 1) / 2, -1, 0)[..., None]
    top, bottom = ((1 - x) * left + x * right for left, right in corners)
    return (1 - y) * top + y * bottom


@dataclass(frozen=True)
class _Canvas:
    """Pictures in rows, a word above each, and under them all a strip of some inches."""

    figure: Figure
    axes: list[Axes]
    strip: float

    def colourbar(self, norm: Normalize, label: str, colours: str = SEQUENTIAL) -> None:
        """A colour bar in the left half of the strip."""
        total = self.figure.get_figheight()
        axis = self.figure.add_axes((0.04, (self.strip - 0.15) / total, 0.42, 0.09 / total))
        ticks = norm.inverse(np.linspace(0, 1, 5))
        bar = self.figure.colorbar(ScalarMappable(norm, colours), cax=axis, orientation="horizontal", ticks=ticks)
        bar.ax.set_xticklabels([f"{tick:.2g}" for tick in ticks])
        bar.ax.minorticks_off()
        bar.ax.tick_params(labelsize=7, pad=1, length=2)
        bar.set_label(label, fontsize=8, labelpad=1)

    def legend(self, samples: Sequence[Artist], *, beside: bool = False) -> None:
        """Samples of marks in the middle of the strip, or to the right of its colour bar."""
        place = (0.74 if beside else 0.5, self.strip / 2 / self.figure.get_figheight())
        options: dict[str, Any] = {"fontsize": 8, "frameon": False, "handletextpad": 0.3}
        self.figure.legend(handles=samples, loc="center", bbox_to_anchor=place, ncols=len(samples), **options)

    def note(self, text: str) -> None:
        """A line in the middle of the strip."""
        self.figure.text(0.5, self.strip / 2 / self.figure.get_figheight(), text, ha="center", va="center", fontsize=8)


def _canvas(images: Mapping[str, UInt8[np.ndarray, "_ _ 3"]], title: str, *, strip: float) -> _Canvas:
    """Images with their names, each in its own pixel coordinates, in rows that leave none of them too small."""
    items = iter(images.items())
    rows = _rows([image.shape[1] / image.shape[0] for image in images.values()])
    heights = [_row_height(row) for row in rows]
    slots = [[max(height * ratio, WORD) for ratio in row] for height, row in zip(heights, rows, strict=True)]
    row_widths = [sum(row) + GAP * (len(row) - 1) for row in slots]
    above = 0.3 if title else 0.05
    width = max(*row_widths, WIDTH / 2) + 2 * GAP
    total = above + sum(heights) + LABEL * len(rows) + (strip or GAP)
    figure, axes, bottom = Figure(figsize=(width, total), dpi=110), [], total - above
    for row, height, row_slots, row_width in zip(rows, heights, slots, row_widths, strict=True):
        left, bottom = (width - row_width) / 2, bottom - LABEL - height
        for ratio, slot in zip(row, row_slots, strict=True):
            name, image = next(items)
            h, w = image.shape[:2]
            x = left + (slot - height * ratio) / 2
            axis = figure.add_axes((x / width, bottom / total, height * ratio / width, height / total))
            axis.imshow(_shrunk(image), extent=(0, w, h, 0), aspect="auto")  # as everywhere here: (0, 0) is the corner
            axis.set_autoscale_on(False)
            axis.set_axis_off()
            axis.set_title(name, fontsize=8, pad=3)
            axes.append(axis)
            left += slot + GAP
    if title:
        figure.text(0.5, 1 - 0.17 / total, title, ha="center", va="center", fontsize=10)
    return _Canvas(figure, axes, strip)


def _rows(ratios: Sequence[float]) -> list[list[float]]:
    """Widths over heights → rows: one if all are then high enough to be seen well, else what makes them highest."""
    n = len(ratios)
    splits = [[list(ratios[i : i + k]) for i in range(0, n, k)] for k in (n, (n + 1) // 2)]
    splits += [[[ratios[0]], list(ratios[1:])], [[ratio] for ratio in ratios]]
    fitting = [rows for rows in splits if len(rows) == 1 or sum(map(_row_height, rows)) <= HIGHEST]
    return max(fitting, key=lambda rows: min(LOWEST, *map(_row_height, rows)))  # the first of the best


def _row_height(ratios: Sequence[float]) -> float:
    return min(WIDTH / sum(ratios), TALLEST)


def _overlay_size(image: UInt8[np.ndarray, "h w 3"]) -> Size:
    """(h, w) of what is laid over an image: smooth on a small one, quick on a large one."""
    h, w = image.shape[:2]
    return max(round(h * OVERLAY / max(h, w)), 2), max(round(w * OVERLAY / max(h, w)), 2)


def _shrunk(image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h2 w2 3"]:
    """Scaled down to what can be seen: a photo of 24 megapixels takes seconds to draw otherwise."""
    h, w = image.shape[:2]
    if max(h, w) <= RENDERED:
        return image
    size = (max(round(w * RENDERED / max(h, w)), 1), max(round(h * RENDERED / max(h, w)), 1))
    return np.array(Image.fromarray(image).resize(size, Image.Resampling.BOX))


def _grey(image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h w 3"]:
    return np.array(Image.fromarray(image).convert("L").convert("RGB"))


def _stretched(field: Float[np.ndarray, "h w c"], size: Size) -> Float[np.ndarray, "h2 w2 c"]:
    """Bilinear, the outermost cells on the border, as :mod:`transformatcher.coords` has it."""
    tensor = torch.from_numpy(np.ascontiguousarray(field)).double().permute(2, 0, 1)[None]
    return F.interpolate(tensor, size=size, mode="bilinear", align_corners=True)[0].permute(1, 2, 0).numpy()


def _mark(
    axis: Axes,
    point: Float[np.ndarray, "2"],
    colour: ColorType,
    number: str,
    *,
    diameter: float,
    shape: str = "o",
) -> None:
    """A mark with a rim that shows on light and on dark, and a number in it; "none" is hollow."""
    x, y = point
    thick = 0.9 + diameter / 5
    rims = [("black", thick), ("white", thick / 2)] if colour == "none" else [("black", 0.9)]
    for rim, width in rims:
        axis.scatter(
            x, y, s=diameter**2, c=[colour], marker=shape, edgecolors=rim, linewidths=width, clip_on=False, zorder=3
        )
    if number:
        lightness = np.dot(mpl.colors.to_rgb(colour), (0.299, 0.587, 0.114))
        hollow = colour == "none"
        text = axis.annotate(number, (x, y), ha="center", va="center_baseline", fontsize=6, zorder=5)
        text.set_color("black" if lightness > 0.45 and not hollow else "white")
        if hollow:
            text.set_path_effects([Stroke(linewidth=1.5, foreground="black"), Normal()])


def _ring(centre: tuple[float, float], radius: float | tuple[float, float], **style: Any) -> Ellipse:
    if isinstance(radius, tuple):
        return Ellipse(centre, 2 * radius[0], 2 * radius[1], **style)
    return Circle(centre, radius, **style)


def _sample(shape: str, colour: str, label: str) -> Line2D:
    return Line2D([], [], ls="", marker=shape, ms=7, mfc=colour, mec="black", mew=0.9, label=label)


def save_figure(figure: Figure, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a figure, in the format its ending names and with ``metadata`` of that format, whole or not at all."""
    atomic_write(path, lambda new: figure.savefig(new, format=path.suffix[1:].lower(), metadata=metadata))

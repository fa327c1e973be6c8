"""Errors, flow, heat maps and warps → pictures of photos, legible at any image size and for any eyes."""

import warnings
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Ellipse
from matplotlib.patheffects import Normal, Stroke
from PIL import Image

from transformatcher.coords import cell_to_norm, norm_to_px
from transformatcher.errors import InputError
from transformatcher.files import write_bytes
from transformatcher.schema import Size
from transformatcher.viz.canvas import (
    BAR,
    PAIR,
    QUALITATIVE,
    ROW,
    Canvas,
    Entry,
    Label,
    draw_mark,
    figure_width,
    legend_height,
    mark_sample,
    wrap_text,
)

SUFFIXES = ("png", "jpg", "jpeg", "pdf", "svg", "webp")  # that figures are written as
SHAPES = "osD^v"  # with the eighth point the colours begin again, in another shape
# A colour for every position: blue to yellow along x and light to dark along y, the two axes that all eyes share.
CORNERS = {"top left": "#8fdcff", "top right": "#fff07a", "bottom left": "#1a10a8", "bottom right": "#963c00"}
HEAT = "inferno"  # monotone in lightness
OVERLAY = 600  # pixels: the longer side of what is laid over a photo


def draw_errors(
    src: UInt8[np.ndarray, "h w 3"],
    trg: UInt8[np.ndarray, "h2 w2 3"],
    keypoints0: Float[np.ndarray, "n 2"],
    predicted: Float[np.ndarray, "n 2"],
    true: Float[np.ndarray, "n 2"],
    title: str = "",
    *,
    names: Sequence[str] = PAIR,
    radius_px: float | tuple[float, float] | None = None,
) -> Figure:
    """The paper's figure A1: each keypoint in its own colour; on the target the truth, the prediction, the error.

    Args:
        src, trg: the photos.
        keypoints0: annotated points of the source, in its pixels.
        predicted, true: where they lie on the target, in its pixels.
        title: a line above.
        names: of the photos, such as their files.
        radius_px: α·s, within which PCK counts a prediction as right: a circle around each true point; or (x, y) of
            an ellipse, where PCK is taken in a frame that the target was stretched to.
    """
    entries = [Entry("true point", mark_sample("o", "0.75")), Entry("prediction", mark_sample("X", "0.75"))]
    if radius_px is not None:
        correct = int((np.linalg.norm((predicted - true) / np.maximum(radius_px, 1e-9), axis=1) <= 1).sum())
        pixels = " × ".join(f"{side:.3g}" for side in np.atleast_1d(radius_px))
        ring = mark_sample("o", "none", markersize=12, markeredgecolor="0.4")
        entries.append(Entry(f"within {pixels} pixels: {correct} of {len(true)}", ring))
    strip = legend_height(entries, figure_width([src, trg])) + 0.1
    canvas = Canvas(names, [src, trg], title, strip=strip)
    left, right = canvas.axes
    styles = [(QUALITATIVE[i % 7], SHAPES[i // 7 % 5]) for i in range(len(keypoints0))]
    for (colour, _), guess, truth in zip(styles, predicted, true, strict=True):  # under every mark
        if radius_px is not None:
            for paint, width in (("black", 2.4), (colour, 1.2)):
                right.add_patch(_ring(tuple(truth), radius_px, fill=False, lw=width, color=paint))
        (line,) = right.plot(*zip(guess, truth, strict=True), color=colour, lw=2.2)
        line.set_path_effects([Stroke(linewidth=3.6, foreground="black"), Normal()])
    for index, (colour, shape) in enumerate(styles):
        draw_mark(left, keypoints0[index], colour, str(index + 1), diameter=12.0, shape=shape)
        draw_mark(right, true[index], colour, diameter=8.0, shape=shape)
        ((x, y),) = canvas.to_points(right, true[[index]])
        canvas.label(Label(str(index + 1), x + 4, y + 8, "left"))  # beside the mark: a close prediction would hide it
    for (colour, _), guess in zip(styles, predicted, strict=True):
        draw_mark(right, guess, colour, diameter=8.0, shape="X")
    canvas.legend(entries, top=0.05)
    return canvas.figure


def draw_flow(
    src: UInt8[np.ndarray, "h w 3"],
    trg: UInt8[np.ndarray, "h2 w2 3"],
    flow_norm: Float[np.ndarray, "hs ws 2"],
    confidence: Float[np.ndarray, "hs ws"] | None = None,
    title: str = "",
    *,
    names: Sequence[str] = PAIR,
    calibrated: bool = False,
) -> Figure:
    """Dense flow: the target under a map of colours and a straight grid; the source in the colours it lands on.

    Args:
        src, trg: the photos, drawn in grey.
        flow_norm: where each cell of the source lands on the target, in [-1, 1]².
        confidence: of each cell; low confidence fades to white.
        title: a line above.
        names: of the photos, such as their files.
        calibrated: the confidences are probabilities; else they are taken relative to their 95th percentile.
    """
    note = "Places of the same colour and between the same grid lines correspond"
    lines = wrap_text(note + ("; white: low confidence." if confidence is not None else "."), figure_width([src, trg]))
    canvas = Canvas(names, [_grey(src), _grey(trg)], title, strip=ROW * len(lines) + 0.1)
    src_size, trg_size = _overlay_size(src), _overlay_size(trg)
    opacity = np.ones(src_size)
    if confidence is not None:
        top = 1.0 if calibrated else max(float(np.percentile(confidence, 95)), 1e-6)
        opacity = _resized(confidence[..., None] / top, src_size)[..., 0].clip(0, 1)
    ys, xs = (np.linspace(-1, 1, n) for n in trg_size)
    _draw_positions(canvas.axes[0], _resized(flow_norm, src_size), opacity)
    _draw_positions(canvas.axes[1], np.stack(np.meshgrid(xs, ys), axis=-1), np.ones(trg_size))
    canvas.text(canvas.width / 2, canvas.strip / 2, "\n".join(lines))
    return canvas.figure


def _draw_positions(axis: Axes, positions_norm: Float[np.ndarray, "h w 2"], opacity: Float[np.ndarray, "h w"]) -> None:
    """Lay the colours of positions in [-1, 1]² over a photo, with the grid lines of x (solid) and of y (dashed)."""
    extent = axis.get_images()[0].get_extent()
    axis.imshow(position_colours(positions_norm), extent=extent, alpha=0.7)
    white = np.concatenate([np.ones((*opacity.shape, 3)), 0.85 * (1 - opacity[..., None])], axis=2)
    axis.imshow(white, extent=extent)
    h, w = opacity.shape
    column_px, row_px = (np.arange(w) + 0.5) / w * extent[1], (np.arange(h) + 0.5) / h * extent[2]
    for channel, dashes in ((0, "solid"), (1, (0, (4, 2)))):
        line = np.where(opacity > 0.4, positions_norm[..., channel], np.nan)
        levels = [level for level in np.linspace(-0.8, 0.8, 9) if (line < level).any() and (line > level).any()]
        if levels:
            axis.contour(column_px, row_px, line, levels, colors="black", linewidths=0.9, linestyles=[dashes])


def draw_heatmap(
    src: UInt8[np.ndarray, "h w 3"],
    trg: UInt8[np.ndarray, "h2 w2 3"],
    point_px: tuple[float, float] | Float[np.ndarray, "2"],
    distribution: Float[np.ndarray, "ht wt"],
    title: str = "",
    *,
    names: Sequence[str] = PAIR,
) -> Figure:
    """One point of the source, and the probability of each cell of the target, with its peak and its expectation.

    Args:
        src, trg: the photos.
        point_px: the point, in pixels of the source.
        distribution: over the cells of the target grid, whose outermost centres lie on the image's border.
        title: a line above.
        names: of the photos, such as their files.
    """
    samples = {"point": mark_sample("o", QUALITATIVE[1]), "peak": mark_sample("X", "none"),
               "expectation": mark_sample("o", "none", markersize=10)}  # fmt: skip
    entries = [Entry(text, sample) for text, sample in samples.items()]
    half = figure_width([src, trg]) / 2
    canvas = Canvas(names, [src, trg], title, strip=max(BAR, legend_height(entries, half) + 0.05))
    left, right = canvas.axes
    size, grid = (trg.shape[0], trg.shape[1]), (distribution.shape[0], distribution.shape[1])
    p = distribution / distribution.sum()
    rows, columns = np.indices(grid)
    cells = np.stack([columns, rows], axis=-1).astype(np.float64)
    row, column = np.unravel_index(p.argmax(), grid)
    peak = norm_to_px(cell_to_norm(cells[row, column], grid), size)
    expected = norm_to_px(cell_to_norm((p[..., None] * cells).sum(axis=(0, 1)), grid), size)
    norm = PowerNorm(0.5, 0, float(p.max()))  # a square root, so that the second and third choices show
    heat = norm(_resized(p[..., None], _overlay_size(trg))[..., 0]).filled()
    rgba = mpl.colormaps[HEAT](heat)
    rgba[..., 3] = 0.35 + 0.5 * heat  # where the probability is low, the photo shows, darkened
    right.imshow(rgba, extent=right.get_images()[0].get_extent())
    draw_mark(left, np.asarray(point_px, dtype=float), QUALITATIVE[1], diameter=12.0)
    draw_mark(right, expected, "none", diameter=14.0)
    draw_mark(right, peak, "none", diameter=8.0, shape="X")
    canvas.colourbar(norm, "probability of a cell", HEAT, percent=True)
    canvas.legend(entries, left=half)
    return canvas.figure


def draw_warp(
    src: UInt8[np.ndarray, "h w 3"],
    trg: UInt8[np.ndarray, "h2 w2 3"],
    warped: UInt8[np.ndarray, "h2 w2 3"],
    mask: Bool[np.ndarray, "h2 w2"] | None = None,
    title: str = "",
    *,
    names: Sequence[str] = PAIR,
) -> Figure:
    """The paper's figure 5, and a blend: source, target, the source warped onto the target, half of each.

    Args:
        src, trg: the photos.
        warped: see :func:`transformatcher.viz.warp.thin_plate_warp`.
        mask: the pixels of ``warped`` that are valid; elsewhere the third picture is blank, the fourth the target.
        title: a line above.
        names: of the photos, such as their files.
    """
    valid = np.ones(trg.shape[:2], dtype=bool) if mask is None else mask
    alone = np.where(valid[..., None], warped, np.uint8(232))
    blend = np.where(valid[..., None], (warped.astype(np.uint16) + trg) // 2, trg).astype(np.uint8)
    return Canvas([*names, "source, warped", "blend"], [src, trg, alone, blend], title, strip=0.0).figure


def position_colours(norm: Float[np.ndarray, "*n 2"]) -> Float[np.ndarray, "*n 3"]:
    """Positions in [-1, 1]² → the colours of :func:`draw_flow`: blue to yellow along x, light to dark along y."""
    corners = np.array([mpl.colors.to_rgb(colour) for colour in CORNERS.values()]).reshape(2, 2, 3)
    x, y = np.moveaxis((norm.clip(-1, 1) + 1) / 2, -1, 0)[..., None]
    top, bottom = ((1 - x) * left + x * right for left, right in corners)
    return (1 - y) * top + y * bottom


def _overlay_size(image: UInt8[np.ndarray, "h w 3"]) -> Size:
    """(h, w) of what is laid over an image: smooth on a small one, quick on a large one."""
    h, w = image.shape[:2]
    return max(round(h * OVERLAY / max(h, w)), 2), max(round(w * OVERLAY / max(h, w)), 2)


def _grey(image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h w 3"]:
    return np.array(Image.fromarray(image).convert("L").convert("RGB"))


def _resized(field: Float[np.ndarray, "h w c"], size: Size) -> Float[np.ndarray, "h2 w2 c"]:
    """Bilinear, the outermost cells on the border, as :mod:`transformatcher.coords` has it."""
    tensor = torch.from_numpy(np.ascontiguousarray(field)).double().permute(2, 0, 1)[None]
    return F.interpolate(tensor, size=size, mode="bilinear", align_corners=True)[0].permute(1, 2, 0).numpy()


def _ring(centre: tuple[float, float], radius: float | tuple[float, float], **style: Any) -> Ellipse:
    if isinstance(radius, tuple):
        return Ellipse(centre, 2 * radius[0], 2 * radius[1], **style)
    return Circle(centre, radius, **style)


def save_figure(figure: Figure, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a figure in the format of the suffix, with ``metadata`` of that format; an interruption leaves no half."""
    suffix = path.suffix[1:].lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{path}: a picture's name ends in .{', .'.join(SUFFIXES[:-1])} or .{SUFFIXES[-1]}")
    buffer = BytesIO()  # in a file, a full disk would be an error of zlib
    render_figure(figure, buffer, suffix, metadata=metadata)
    write_bytes(path, buffer.getvalue())


def render_figure(figure: Figure, file: BytesIO, suffix: str, **options: Any) -> None:
    """Draw a figure into a file; letters that the font does not have become boxes without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(file, format=suffix, **options)

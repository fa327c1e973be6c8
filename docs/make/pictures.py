"""The example photos, the shipped model and the saved tables of studies → pictures of the documentation.

Usage: python docs/make/pictures.py [FOLDER]; by default they go to docs/images. It needs no dataset and no GPU.
"""

import json
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Ellipse, Rectangle
from PIL import Image, ImageFilter

from transformatcher import Matcher
from transformatcher.coords import norm_to_px, rescale_px
from transformatcher.evaluation.analysis.attention_figure import attention_maps, draw_attention
from transformatcher.evaluation.metrics import (
    PCK_THRESHOLDS,
    correct_points,
    pck_per_pair,
    pck_per_point,
    point_errors,
    reference_length,
)
from transformatcher.images import read_image
from transformatcher.inference.crops import CropFrame
from transformatcher.inference.matched_pair import MatchedPair
from transformatcher.viz.canvas import (
    GAP,
    QUALITATIVE,
    Canvas,
    Entry,
    draw_mark,
    figure_width,
    legend_height,
    mark_sample,
)
from transformatcher.viz.pictures import draw_warp, save_figure
from transformatcher.viz.plots import plot_ablation
from transformatcher.viz.warp import thin_plate_warp

EXAMPLES = Path(str(files("transformatcher") / "examples"))
STUDIES = Path(__file__).parents[1] / "report" / "data"
ALPHA = 0.1
# Six points of cat_b.jpg and the box of its head, annotated by us. The page on PCK has the same numbers.
TRUTH = np.array([[213.0, 315], [366, 303], [295, 427], [283, 205], [296, 452], [165, 385]])
HEAD = np.array([72.0, 12, 490, 470])
CORRECT, WRONG, LENGTH = "#0072B2", "#D55E00", "#F0E442"  # Okabe and Ito's, safe for colour-blind readers


def main(out: Path) -> None:
    """Write all pictures."""
    named = json.loads((EXAMPLES / "cat_a.json").read_text(encoding="utf-8"))
    matcher = Matcher.from_pretrained(device="cpu")
    cats = EXAMPLES / "cat_a.jpg", EXAMPLES / "cat_b.jpg"
    points = matcher.match(*cats, list(named.values()))
    points.draw(out / "demo.png", point_names=list(named))
    points.pair.draw_heatmap(named["forehead"], out / "tutorial-heat.webp", "forehead")
    pair = next(matcher.pairs(cats[0], [cats[1]]))  # without points
    pair.draw_flow(out / "tutorial-flow.webp")
    save_figure(warped(pair), out / "tutorial-warp.webp")
    save_figure(coarse_to_fine(matcher, np.array(list(named.values()))), out / "coarse-to-fine.webp")
    maps = attention_maps(matcher.model, pair.src.pixels, pair.trg.pixels, matcher.config.image_size)
    save_figure(draw_attention(pair.src.pixels, pair.trg.pixels, maps), out / "attention.webp")
    save_figure(thresholds(pair.trg.pixels, points.keypoints1), out / "pck-thresholds.webp")
    save_figure(frames(read_image(EXAMPLES / "cat_c.jpg")), out / "pck-frames.webp")
    save_figure(averages(), out / "pck-averages.svg")
    for path in STUDIES.glob("*.json"):
        table = json.loads(path.read_text(encoding="utf-8"))
        if "pck_thresholds" in table:  # a study; the others are timings
            save_figure(plot_ablation(table), out / f"ablate-{path.stem}.png")


def warped(pair: MatchedPair) -> Figure:
    """What ``transformatcher warp`` draws."""
    matches = pair.consistent()
    ends = matches.keypoints0[matches.reliable], matches.keypoints1[matches.reliable]
    pixels, mask = thin_plate_warp(pair.src.pixels, *ends, pair.trg.size, smoothing=0.05, margin=0.2)
    return draw_warp(pair.src.pixels, pair.trg.pixels, pixels, mask, names=pair.names)


def coarse_to_fine(matcher: Matcher, points: np.ndarray) -> Figure:
    """Small objects: whole photos with the crops of the second pass, and these crops with what each pass finds."""
    src, shrink, src_corner = _small(read_image(EXAMPLES / "cat_a.jpg"), (0.5, 0.5))
    trg, _, trg_corner = _small(read_image(EXAMPLES / "cat_b.jpg"), (0.8, 0.7))
    points, truth = points * shrink + src_corner, TRUTH * shrink + trg_corner
    matches = matcher.match(src, trg, points)
    assert matches.pair.passes is not None
    last = matches.pair.passes.last
    once = Matcher.from_pretrained(device="cpu", settings={"coarse_to_fine.passes": 1})
    first = once.match(src, trg, points).keypoints1
    boxes = [_box_px(last.src_frame, src.shape[:2]), _box_px(last.trg_frame, trg.shape[:2])]
    crops = [photo[y0:y1, x0:x1] for photo, (x0, y0, x1, y1) in zip((src, trg), boxes, strict=True)]
    errors = [float(np.linalg.norm(found - truth, axis=1).mean()) for found in (first, matches.keypoints1)]
    entries = [
        Entry("crop of the second pass", {"linestyle": "solid", "color": LENGTH, "linewidth": 2}),
        Entry("source points, and where they are (annotated)", mark_sample("D", "white", markersize=6)),
        Entry(f"one pass: {errors[0]:.0f} pixels off, on average", mark_sample("X", "white")),
        Entry(f"two passes: {errors[1]:.0f} pixels off", mark_sample("o", "white")),
    ]
    photos = [src, trg, *crops]
    strip = legend_height(entries, figure_width(photos)) + 2 * GAP
    canvas = Canvas(["source", "target", "crop of the source", "crop of the target"], photos, strip=strip)
    for axis, (x0, y0, x1, y1) in zip(canvas.axes[:2], boxes, strict=True):
        axis.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, color=LENGTH, lw=2))
    for row, colour in zip(range(len(points)), QUALITATIVE, strict=False):
        draw_mark(canvas.axes[2], points[row] - boxes[0][:2], colour, diameter=7.0, shape="D")
        for found, shape in ((truth, "D"), (first, "X"), (matches.keypoints1, "o")):
            draw_mark(canvas.axes[3], found[row] - boxes[1][:2], colour, diameter=7.0, shape=shape)
    canvas.legend(entries, top=GAP)
    return canvas.figure


def _small(photo: np.ndarray, at: tuple[float, float], shrink: float = 0.4) -> tuple[np.ndarray, float, np.ndarray]:
    """A photo pasted, smaller, into a blurred copy of itself; the factor, and the corner it was pasted to."""
    h, w = photo.shape[:2]
    picture = Image.fromarray(photo)
    small = picture.resize((round(w * shrink), round(h * shrink)), Image.Resampling.LANCZOS)
    corner = round(at[0] * (w - small.width)), round(at[1] * (h - small.height))
    canvas = picture.filter(ImageFilter.GaussianBlur(40))
    canvas.paste(small, corner)
    return np.asarray(canvas), shrink, np.array(corner)


def _box_px(frame: CropFrame, size: tuple[int, int]) -> np.ndarray:
    """Left, top, right and bottom of a crop, in whole pixels of its photo."""
    corners = torch.stack([frame.centre[0] - frame.half[0], frame.centre[0] + frame.half[0]])
    return norm_to_px(corners.double().numpy(), size).round().astype(int).ravel()


def thresholds(photo: np.ndarray, predicted: np.ndarray) -> Figure:
    """The same six predictions under the four PCK thresholds; the reference length is drawn in yellow."""
    figure = Figure(figsize=(8, 8.7), dpi=100, layout="constrained")
    size = photo.shape[0], photo.shape[1]
    for axis, kind in zip(np.ravel(figure.subplots(2, 2)), PCK_THRESHOLDS, strict=True):
        length = reference_length(kind, size=size, kps=TRUTH, bbox=HEAD)
        assert length is not None
        correct = correct_points(point_errors(predicted, TRUTH), length, ALPHA)
        _show(axis, photo, f"{kind}: s = {length:.0f} pixels\n{correct.sum()} of {len(correct)} correct")
        _draw_length(axis, kind, size)
        for guess, truth, ok in zip(predicted, TRUTH, correct, strict=True):
            colour = CORRECT if ok else WRONG
            axis.add_patch(Circle(tuple(truth), ALPHA * length, color="white", fill=False, lw=2.6, alpha=0.8))
            axis.add_patch(Circle(tuple(truth), ALPHA * length, color=colour, fill=False, lw=1.4))
            axis.plot(*guess, marker="X", ms=7, color=colour, mec="white", mew=0.8)
    return figure


def _draw_length(axis: Axes, kind: str, size: tuple[int, int]) -> None:
    low, high = {
        "img": ((0, 0), (size[1], size[0])),
        "bbox": (HEAD[:2], HEAD[2:]),
        "bbox-kp": (TRUTH.min(axis=0), TRUTH.max(axis=0)),
        "bbox-padded": ((-2, -2), TRUTH.max(axis=0)),
    }[kind]
    (x0, y0), (x1, y1) = low, high
    axis.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, color=LENGTH, lw=1.2, clip_on=False))
    side = ((x0, x1), (y1, y1)) if x1 - x0 > y1 - y0 else ((x0, x0), (y0, y1))
    axis.plot(*side, color=LENGTH, lw=4, clip_on=False, solid_capstyle="butt")


def frames(photo: np.ndarray, frame: int = 240, point: tuple[float, float] = (335.0, 290.0)) -> Figure:
    """A tolerance in pixels of the original, and one in the published frame, each drawn in both."""
    figure = Figure(figsize=(8.8, 3.6), dpi=110, layout="constrained")
    h, w = photo.shape[:2]
    left, right = figure.subplots(1, 2, width_ratios=(w / h, 1))
    squeezed = np.asarray(Image.fromarray(photo).resize((frame, frame)))
    middle = rescale_px(np.array([point]), (h, w), (frame, frame))[0]
    _show(left, photo, f"original: {w} × {h} pixels")
    _show(right, squeezed, f"published frame: {frame} × {frame}")
    for axis, centre, scale in ((left, point, (1.0, 1.0)), (right, tuple(middle), (frame / w, frame / h))):
        radii = {"--": (ALPHA * w, ALPHA * w), "-": (ALPHA * w, ALPHA * h)}  # in the original's pixels
        for style, (rx, ry) in radii.items():
            for paint, thick in (("black", 3.4), ("white" if style == "--" else LENGTH, 1.8)):
                shape = (2 * rx * scale[0], 2 * ry * scale[1])
                axis.add_patch(
                    Ellipse(centre, *shape, fill=False, color=paint, lw=thick, ls=style if thick < 3 else "-")
                )
        axis.plot(*centre, marker="+", ms=9, mew=2, color="white")
    return figure


def averages() -> Figure:
    """Two pairs, one with many keypoints and one with few, and the two ways to average them."""
    pairs = [np.array([True] * 9 + [False]), np.array([True, False])]
    figure = Figure(figsize=(8, 1.9), layout="constrained")
    axis = figure.subplots()
    for row, correct in enumerate(pairs):
        axis.text(-0.8, -row, f"pair {row + 1}", ha="right", va="center", fontsize=11)
        for column, ok in enumerate(correct):
            axis.plot(column, -row, marker="o" if ok else "X", ms=13, color=CORRECT if ok else WRONG)
        share = f"{correct.sum()} of {len(correct)} = {100 * correct.mean():.0f} %"
        axis.text(10.2, -row, share, va="center", fontsize=11)
    means = f"mean over pairs: {pck_per_pair(pairs):.0f} %        mean over points: {pck_per_point(pairs):.0f} %"
    axis.text(4.5, -2, means, ha="center", va="center", fontsize=12, weight="bold")
    axis.set(xlim=(-2.2, 14), ylim=(-2.5, 0.5))
    axis.axis("off")
    return figure


def _show(axis: Axes, photo: np.ndarray, title: str) -> None:
    h, w = photo.shape[:2]
    axis.imshow(photo, extent=(0, w, h, 0))
    axis.set(xlim=(0, w), ylim=(h, 0))
    axis.set_title(title, fontsize=10)
    axis.axis("off")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "images")

"""What a layer listens to → a picture: the strongest matches of every head, and heat maps on both photos."""

from collections.abc import Mapping
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import torch
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch
from PIL import Image

from transformatcher.coords import cell_to_norm, norm_to_px
from transformatcher.errors import InputError
from transformatcher.evaluation.analysis.attention_hooks import Layer, observe
from transformatcher.images import to_tensor
from transformatcher.models.rotary import Grid4
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.schema import Size

Photo = UInt8[np.ndarray, "_ _ 3"]
HEAT = "PuOr_r"  # purple below the mean, orange above: apart for all common kinds of colour-blindness
DRAWN = 360  # pixels of the longer side of a photo: the pictures are small
HALF, GAP, LABEL = 4.8, 0.06, 0.28  # inches: of one pair of photos, between them, and above them


@dataclass(frozen=True)
class Listening:
    """Weights of one layer over the matches of ``grid``, for one pair of photos."""

    layer: int  # from 1
    depth: int
    grid: Grid4
    query: Float[np.ndarray, "heads t"]
    key: Float[np.ndarray, "heads t"]


def listen(model: TransforMatcher, src: Photo, trg: Photo, image_size: Size, layer: int | None = None) -> Listening:
    """Two photos → what a layer (counted from 1) listens to; None takes the one that is most selective."""
    device = next(model.parameters()).device
    images = [to_tensor(photo, image_size)[None].to(device) for photo in (src, trg)]
    with torch.inference_mode():
        corr = model.correlation(*model.encode_pair(images[0], images[1]))
        _, layers = observe(model.refiner, corr, _weights)
    if layer is not None and not 1 <= layer <= len(layers):
        raise InputError(f"--layer {layer}: this model has layers 1 to {len(layers)}")
    if layer is None:
        layer = 1 + int(np.argmax([selectivity(query) + selectivity(key) for _, query, key in layers]))
    grid, query, key = layers[layer - 1]
    return Listening(layer, len(layers), grid, query, key)


def _weights(layer: Layer) -> tuple[Grid4, np.ndarray, np.ndarray]:
    query, key = (weights[0].double().cpu().numpy() for weights in (layer.alpha, layer.beta))
    return layer.grid, query / query.sum(axis=1, keepdims=True), key / key.sum(axis=1, keepdims=True)


def selectivity(weights: Float[np.ndarray, "heads t"]) -> float:
    """The divergence from uniform weights, in nats, averaged over the heads; 0 where all matches count alike."""
    t = weights.shape[1]
    return float((weights * np.log(np.maximum(weights, 1e-300) * t)).sum(axis=1).mean())


def marginals(
    weights: Float[np.ndarray, "heads t"], grid: Grid4
) -> tuple[Float[np.ndarray, "heads hs ws"], Float[np.ndarray, "heads ht wt"]]:
    """How much each cell of the source, and of the target, is listened to, as a multiple of the mean cell."""
    hs, ws, ht, wt = grid
    maps = weights.reshape(-1, hs * ws, ht * wt)
    return (hs * ws * maps.sum(axis=2)).reshape(-1, hs, ws), (ht * wt * maps.sum(axis=1)).reshape(-1, ht, wt)


def draw_attention(src: Photo, trg: Photo, heard: Listening, title: str = "", most: int = 20) -> Figure:
    """A row for each head: on the left what the global query listens to, on the right the global key.

    Args:
        src, trg: the photos, drawn small and grey.
        heard: the weights.
        title: a line above.
        most: matches drawn in each panel: the strongest, without close neighbours of stronger ones.
    """
    weights = {"global query": heard.query, "global key": heard.key}
    maps = {name: marginals(values, heard.grid) for name, values in weights.items()}
    norm = _heat_scale(maps)
    loudest = max(values.max() for values in weights.values())
    photos = [_small_grey(photo) for photo in (src, trg)]
    ratios = [photo.shape[1] / photo.shape[0] for photo in photos]
    height = min((HALF - GAP) / sum(ratios), 2.4)
    heads, width = len(heard.query), 2 * HALF + 3 * GAP
    total = 0.55 + heads * (height + LABEL) + 0.5
    figure = Figure(figsize=(width, total), dpi=100)
    for head in range(heads):
        bottom = total - 0.55 - (head + 1) * (height + LABEL)
        for side, (name, values) in enumerate(weights.items()):
            left = GAP + side * (HALF + GAP) + (HALF - GAP - height * sum(ratios)) / 2
            axes = []
            for photo, ratio, heat in zip(photos, ratios, (maps[name][0][head], maps[name][1][head]), strict=True):
                place = (left / width, bottom / total, height * ratio / width, height / total)
                axes.append(_heated(figure.add_axes(place), photo, heat, norm))
                left += height * ratio + GAP
            _connect(figure, axes, values[head], heard.grid, most, loudest)
            label = f"head {head + 1}, {name}: {_in_words(values[head])}"
            figure.text((GAP + (side + 0.5) * (HALF + GAP)) / width, (bottom + height + 0.04) / total, label,
                        ha="center", va="bottom", fontsize=8)  # fmt: skip
    times = loudest * heard.query.shape[1]
    _legend(figure, norm, f"lines: the {most} strongest matches of a head, boldest at {times:.3g}× the mean", total)
    what = f"layer {heard.layer} of {heard.depth}: which matches it listens to"
    figure.text(0.5, 1 - 0.2 / total, " · ".join(filter(None, (title, what))), ha="center", va="center", fontsize=10)
    return figure


def _heat_scale(maps: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Normalize:
    """One scale for all panels, even around the mean (1 ×) and wide enough for the largest departure from it."""
    logs = np.concatenate([np.log2(np.maximum(heat, 1e-9)).ravel() for pair in maps.values() for heat in pair])
    reach = float(np.clip(np.abs(logs).max(), 0.05, 4))
    return Normalize(-reach, reach)


def _heated(axis: Axes, photo: Photo, heat: Float[np.ndarray, "h w"], norm: Normalize) -> Axes:
    """A photo under a heat map, in its own pixels; outermost cells lie on the border (see coords.py)."""
    h, w = photo.shape[:2]
    (rows, columns) = heat.shape
    dx, dy = w / max(columns - 1, 1) / 2, h / max(rows - 1, 1) / 2
    axis.imshow(photo, extent=(0, w, h, 0), aspect="auto")
    logs = np.log2(np.maximum(heat, 1e-9))
    opacity = 0.15 + 0.6 * np.abs(norm(logs) * 2 - 1).clip(0, 1)
    rgba = mpl.colormaps[HEAT](norm(logs))
    rgba[..., 3] = opacity
    extent = (-dx, w + dx, h + dy, -dy)
    axis.imshow(rgba, extent=extent, aspect="auto", interpolation="bilinear")
    axis.set(xlim=(0, w), ylim=(h, 0))
    axis.set_axis_off()
    return axis


def _connect(
    figure: Figure, axes: list[Axes], weights: Float[np.ndarray, " t"], grid: Grid4, most: int, loudest: float
) -> None:
    """Lines between both ends of the strongest matches: faint at the mean weight, bold at the largest of all panels."""
    chosen = strongest(weights, grid, most)[::-1]
    mean = 1 / len(weights)
    strength = 0.25 + 0.75 * ((weights[chosen] - mean) / max(loudest - mean, 1e-12)).clip(0, 1)
    ys, xs, yt, xt = np.unravel_index(chosen, grid)
    ends = []
    for axis, (row, column), cells in zip(axes, ((ys, xs), (yt, xt)), (grid[:2], grid[2:]), strict=True):
        size = (round(axis.get_ylim()[0]), round(axis.get_xlim()[1]))
        points = np.stack([column, row], axis=1).astype(np.float64)
        ends.append(norm_to_px(cell_to_norm(points, cells), size))
    for a, b, bold in zip(*ends, strength, strict=True):
        for colour, width in (("white", 1 + 2 * bold), ("black", 1.8 * bold)):
            line = ConnectionPatch(a, b, "data", "data", axesA=axes[0], axesB=axes[1], color=colour, lw=width)
            line.set_alpha(bold)
            figure.add_artist(line)
        for axis, point in ((axes[0], a), (axes[1], b)):
            axis.plot(*point, "o", ms=2 + 3 * bold, mfc="black", mec="white", mew=0.8, alpha=bold, clip_on=False)


def strongest(weights: Float[np.ndarray, " t"], grid: Grid4, most: int) -> np.ndarray:
    """Indices of matches by falling weight; one is left out if it lies within a cell of a stronger one on all axes."""
    order = np.argsort(weights)[::-1][: 200 * most]
    cells = np.stack(np.unravel_index(order, grid), axis=1)  # (n, 4)
    kept: list[int] = []
    for index, cell in enumerate(cells):
        if len(kept) == most:
            break
        if not kept or np.abs(cells[kept] - cell).max(axis=1).min() > 1:
            kept.append(index)
    return order[kept]


def _in_words(weights: Float[np.ndarray, " t"]) -> str:
    """How few matches hold half of the weight; of uniform weights it is half of them."""
    falling = np.sort(weights)[::-1].cumsum()
    count = int(np.searchsorted(falling, 0.5)) + 1
    return f"half of the weight on {100 * count / len(weights):.2g} % of the matches"


def _legend(figure: Figure, norm: Normalize, words: str, total: float) -> None:
    axis = figure.add_axes((0.08, 0.34 / total, 0.4, 0.09 / total))
    ticks = np.linspace(norm.vmin or 0, norm.vmax or 0, 5)
    bar = figure.colorbar(ScalarMappable(norm, HEAT), cax=axis, orientation="horizontal", ticks=ticks)
    bar.ax.set_xticklabels([f"{2**tick:.2g}×" for tick in ticks])
    bar.ax.tick_params(labelsize=7, pad=1, length=2)
    bar.set_label("weight on a cell against the mean cell", fontsize=8, labelpad=1)
    figure.text(0.75, 0.25 / total, words, ha="center", va="center", fontsize=8)


def _small_grey(photo: Photo) -> Photo:
    image = Image.fromarray(photo).convert("L").convert("RGB")
    image.thumbnail((DRAWN, DRAWN))
    return np.array(image)

"""Attention weights of a layer → a picture: the strongest matches of every head, and heat maps on both photos."""

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
from transformatcher.evaluation.analysis.attention_hooks import AttentionRecord, record_attention
from transformatcher.images import to_tensor
from transformatcher.models.rotary import Grid4
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.schema import Size

Photo = UInt8[np.ndarray, "_ _ 3"]
HEAT = "PuOr_r"  # purple below the mean, orange above: apart for all common kinds of colour-blindness
DRAWN = 360  # pixels of the longer side of a photo: the pictures are small
HALF, GAP, LABEL = 4.8, 0.06, 0.28  # inches: width of one pair of photos, gap between photos, height of a label
ABOVE, BELOW = 0.55, 0.5  # inches: for the title, for the colour bar


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights of one layer over the t matches of ``grid``, for one pair of photos; each head sums to one."""

    layer: int  # from 1
    depth: int
    grid: Grid4
    query: Float[np.ndarray, "heads t"]  # weights of the global query (Eq. 5)
    key: Float[np.ndarray, "heads t"]  # weights of the global key (Eq. 6)


def attention_maps(
    model: TransforMatcher, src: Photo, trg: Photo, image_size: Size, layer: int | None = None
) -> AttentionMaps:
    """Two photos → the attention weights of a layer (counted from 1); None takes the most selective layer."""
    device = next(model.parameters()).device
    images = [to_tensor(photo, image_size)[None].to(device) for photo in (src, trg)]
    with torch.inference_mode():
        corr = model.correlation(*model.encode_pair(images[0], images[1]))
        _, layers = record_attention(model.refiner, corr, _weights)
    if layer is not None and not 1 <= layer <= len(layers):
        raise InputError(f"--layer {layer}: this model has layers 1 to {len(layers)}")
    if layer is None:
        layer = 1 + int(np.argmax([selectivity(query) + selectivity(key) for _, query, key in layers]))
    grid, query, key = layers[layer - 1]
    return AttentionMaps(layer, len(layers), grid, query, key)


def _weights(layer: AttentionRecord) -> tuple[Grid4, np.ndarray, np.ndarray]:
    query, key = (weights[0].double().cpu().numpy() for weights in (layer.alpha, layer.beta))
    return layer.grid, query / query.sum(axis=1, keepdims=True), key / key.sum(axis=1, keepdims=True)


def selectivity(weights: Float[np.ndarray, "heads t"]) -> float:
    """The divergence from uniform weights, in nats, averaged over the heads; 0 for uniform weights."""
    t = weights.shape[1]
    return float((weights * np.log(np.maximum(weights, 1e-300) * t)).sum(axis=1).mean())


def marginals(
    weights: Float[np.ndarray, "heads t"], grid: Grid4
) -> tuple[Float[np.ndarray, "heads hs ws"], Float[np.ndarray, "heads ht wt"]]:
    """Weight on each cell of the source, and on each cell of the target, as a multiple of the mean cell."""
    hs, ws, ht, wt = grid
    maps = weights.reshape(-1, hs * ws, ht * wt)
    return (hs * ws * maps.sum(axis=2)).reshape(-1, hs, ws), (ht * wt * maps.sum(axis=1)).reshape(-1, ht, wt)


def draw_attention(src: Photo, trg: Photo, maps: AttentionMaps, title: str = "", most: int = 20) -> Figure:
    """A row for each head: the weights of the global query on the left, those of the global key on the right.

    Args:
        src, trg: the photos, drawn small and grey.
        maps: the weights of one layer.
        title: a line above.
        most: lines in each panel: the strongest matches, without close neighbours of stronger ones.
    """
    weights = {"global query": maps.query, "global key": maps.key}
    heatmaps = {name: marginals(values, maps.grid) for name, values in weights.items()}
    largest = float(max(values.max() for values in weights.values()))
    panels = _Panels(_small_grey(src), _small_grey(trg), heads=len(maps.query))
    norm = _heatmap_scale(heatmaps)
    for head in range(len(maps.query)):
        for side, (name, values) in enumerate(weights.items()):
            axes = panels.add(head, side, f"head {head + 1}, {name}: {format_concentration(values[head])}")
            for axis, photo, heatmap in zip(axes, (panels.src, panels.trg), heatmaps[name], strict=True):
                _draw_heatmap(axis, photo, heatmap[head], norm)
            _connect(panels.figure, axes, values[head], maps.grid, most, largest)
    times = largest * maps.query.shape[1]
    note = f"lines: the {most} strongest matches of a head; the boldest has {times:.3g}× the mean weight"
    _legend(panels, norm, note)
    what = f"attention weights over the matches, layer {maps.layer} of {maps.depth}"
    panels.title(" · ".join(filter(None, (title, what))))
    return panels.figure


class _Panels:
    """A figure with a row for each head and two pairs of photos in each row."""

    def __init__(self, src: Photo, trg: Photo, heads: int) -> None:
        self.src, self.trg = src, trg
        self.ratios = [photo.shape[1] / photo.shape[0] for photo in (src, trg)]
        self.height = min((HALF - GAP) / sum(self.ratios), 2.4)
        self.width, self.total = 2 * HALF + 3 * GAP, ABOVE + heads * (self.height + LABEL) + BELOW
        self.figure = Figure(figsize=(self.width, self.total), dpi=100)

    def add(self, row: int, side: int, label: str) -> list[Axes]:
        """Axes of source and target in one row, on the left (side 0) or on the right (side 1), with a label above."""
        bottom = self.total - ABOVE - (row + 1) * (self.height + LABEL)
        left = GAP + side * (HALF + GAP) + (HALF - GAP - self.height * sum(self.ratios)) / 2
        axes = []
        for ratio in self.ratios:
            width = self.height * ratio
            box = (left / self.width, bottom / self.total, width / self.width, self.height / self.total)
            axes.append(self.figure.add_axes(box))
            left += width + GAP
        middle, above = GAP + (side + 0.5) * (HALF + GAP), bottom + self.height + 0.04
        x, y = middle / self.width, above / self.total
        self.figure.text(x, y, label, ha="center", va="bottom", fontsize=8)
        return axes

    def title(self, text: str) -> None:
        """A line above all panels."""
        y = 1 - 0.2 / self.total
        self.figure.text(0.5, y, text, ha="center", va="center", fontsize=10, parse_math=False)


def _heatmap_scale(heatmaps: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Normalize:
    """One scale for all panels, even around the mean (1 ×) and wide enough for the largest departure from it."""
    logs = np.concatenate(
        [np.log2(np.maximum(heatmap, 1e-9)).ravel() for pair in heatmaps.values() for heatmap in pair]
    )
    reach = float(np.clip(np.abs(logs).max(), 0.05, 4))
    return Normalize(-reach, reach)


def _draw_heatmap(axis: Axes, photo: Photo, heatmap: Float[np.ndarray, "h w"], norm: Normalize) -> None:
    """A photo under a heat map, in its own pixels; the outermost cells lie on the border (see coords.py)."""
    h, w = photo.shape[:2]
    rows, columns = heatmap.shape
    dx, dy = w / max(columns - 1, 1) / 2, h / max(rows - 1, 1) / 2
    axis.imshow(photo, extent=(0, w, h, 0), aspect="auto")
    logs = np.log2(np.maximum(heatmap, 1e-9))
    opacity = 0.15 + 0.6 * np.abs(norm(logs) * 2 - 1).clip(0, 1)
    rgba = mpl.colormaps[HEAT](norm(logs))
    rgba[..., 3] = opacity
    extent = (-dx, w + dx, h + dy, -dy)
    axis.imshow(rgba, extent=extent, aspect="auto", interpolation="bilinear")
    axis.set(xlim=(0, w), ylim=(h, 0))
    axis.set_axis_off()


def _connect(
    figure: Figure, axes: list[Axes], weights: Float[np.ndarray, " t"], grid: Grid4, most: int, largest: float
) -> None:
    """Lines between both ends of the strongest matches: faint at the mean weight, bold at the largest of all panels."""
    chosen = strongest_matches(weights, grid, most)[::-1]
    mean = 1 / len(weights)
    strength = 0.25 + 0.75 * ((weights[chosen] - mean) / max(largest - mean, 1e-12)).clip(0, 1)
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


def strongest_matches(weights: Float[np.ndarray, " t"], grid: Grid4, most: int) -> np.ndarray:
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


def format_concentration(weights: Float[np.ndarray, " t"]) -> str:
    """How few matches hold half of the weight, as text; of uniform weights it is half of them."""
    cumulative = np.sort(weights)[::-1].cumsum()
    count = int(np.searchsorted(cumulative, 0.5)) + 1
    return f"half of the weight on {100 * count / len(weights):.2g} % of the matches"


def _legend(panels: _Panels, norm: Normalize, note: str) -> None:
    axis = panels.figure.add_axes((0.08, 0.34 / panels.total, 0.4, 0.09 / panels.total))
    ticks = np.linspace(norm.vmin or 0, norm.vmax or 0, 5)
    bar = panels.figure.colorbar(ScalarMappable(norm, HEAT), cax=axis, orientation="horizontal", ticks=ticks)
    bar.ax.set_xticklabels([f"{2**tick:.2g}×" for tick in ticks])
    bar.ax.tick_params(labelsize=7, pad=1, length=2)
    bar.set_label("weight on a cell, relative to the mean cell", fontsize=8, labelpad=1)
    panels.figure.text(0.75, 0.25 / panels.total, note, ha="center", va="center", fontsize=8)


def _small_grey(photo: Photo) -> Photo:
    image = Image.fromarray(photo).convert("L").convert("RGB")
    image.thumbnail((DRAWN, DRAWN))
    return np.array(image)

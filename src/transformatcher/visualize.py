"""Matches and scores → pictures that are legible at any image size and for any eyes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import UInt8
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch
from matplotlib.patheffects import Normal, Stroke

from transformatcher.errors import InputError
from transformatcher.files import make_folder
from transformatcher.schema import Matches

COLOURS = "cividis"  # even in lightness, and the same to most colour-blind eyes


def draw_matches(
    src: UInt8[np.ndarray, "h w 3"], trg: UInt8[np.ndarray, "h2 w2 3"], matches: Matches, title: str = ""
) -> Figure:
    """Both images side by side, a line for each match, coloured by confidence; few points are numbered as well."""
    ratios = [image.shape[1] / image.shape[0] for image in (src, trg)]
    height = 4.0
    figure = Figure(figsize=(height * sum(ratios) + 0.9, height + 0.35), dpi=110, layout="constrained")
    axes = figure.subplots(1, 2, width_ratios=ratios)
    for axis, image in zip(axes, (src, trg), strict=True):
        h, w = image.shape[:2]
        axis.imshow(image, extent=(0, w, h, 0))  # pixel coordinates as everywhere here: (0, 0) is the corner
        axis.set_autoscale_on(False)
        axis.set_axis_off()
    n = len(matches.keypoints0)
    top = float(np.percentile(matches.confidence, 95)) if n else 1.0
    norm = mpl.colors.Normalize(0, max(top, 1e-6))
    diameter, width = (9.0, 1.8) if n <= 30 else (3.5, 0.8)  # in points, as are line widths
    for index in np.argsort(matches.confidence):  # the surest on top
        colour = mpl.colormaps[COLOURS](norm(matches.confidence[index]))
        ends = matches.keypoints0[index], matches.keypoints1[index]
        for axis, (x, y) in zip(axes, ends, strict=True):
            axis.scatter(x, y, s=diameter**2, color=colour, edgecolors="black", linewidths=0.8, clip_on=False)
            if n <= 30:
                ink = "black" if np.mean(colour[:3]) > 0.45 else "white"
                axis.annotate(str(index + 1), (x, y), ha="center", va="center", fontsize=6, color=ink)
        line = ConnectionPatch(*ends, "data", "data", axesA=axes[0], axesB=axes[1], color=colour, lw=width)
        line.shrinkA = line.shrinkB = diameter / 2  # up to the rim, not over the number
        line.set_path_effects([Stroke(linewidth=width + 1.2, foreground="black", alpha=0.6), Normal()])
        line.set_in_layout(False)
        figure.add_artist(line)
    bar = figure.colorbar(mpl.cm.ScalarMappable(norm, COLOURS), ax=axes, fraction=0.03, pad=0.01)
    bar.set_label("sharpness of the match", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    if title:
        figure.suptitle(title, fontsize=9)
    return figure


def plot_curves(metrics: Sequence[Mapping[str, Any]], title: str = "") -> Figure:
    """Loss and validation PCK of a training run against the pairs it has seen."""
    figure = Figure(figsize=(9, 3.4), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    pairs = [row["pairs"] for row in metrics]
    left.plot(pairs, [row["loss"] for row in metrics], color="black", marker=".")
    left.set_ylabel("training loss")
    names = list(metrics[0]["pck"]) if metrics else []
    colours = [mpl.colormaps[COLOURS](x) for x in np.linspace(0, 0.85, max(len(names), 1))]
    for name, colour in zip(names, colours, strict=False):
        for alpha, style in (("0.1", "-"), ("0.05", "--")):
            values = [row["pck"][name][alpha] for row in metrics]
            right.plot(pairs, values, style, color=colour, marker=".", label=f"{name} @ {alpha}")
    right.set_ylabel("validation PCK (%)")
    right.legend(fontsize=7)
    for axis in (left, right):
        axis.set_xlabel("pairs seen")
        axis.grid(alpha=0.3)
    if title:
        figure.suptitle(title, fontsize=9)
    return figure


def plot_scores(scores: Mapping[str, Any], kind: str, alpha: str, title: str = "") -> Figure:
    """PCK against α with its 95 % interval for each threshold kind; beside it, the categories at one kind and α."""
    figure = Figure(figsize=(11, 4.2), dpi=110, layout="constrained")
    curve, bars = figure.subplots(1, 2, width_ratios=[1, 1.7])
    colours = mpl.colormaps[COLOURS](np.linspace(0, 0.9, len(scores["pck"])))
    for colour, marker, (name, cells) in zip(colours, "osD^", scores["pck"].items(), strict=False):
        alphas = [float(alpha) for alpha in cells]
        values = np.array([cell["per_pair"] for cell in cells.values()])
        low, high = np.array([cell["ci95"] for cell in cells.values()]).T
        curve.plot(alphas, values, marker=marker, color=colour, label=name)
        curve.fill_between(alphas, low, high, color=colour, alpha=0.2, lw=0)
    curve.set(xlabel="α", ylabel="PCK, mean over pairs (%)", ylim=(0, 100))
    curve.legend(fontsize=8, title=f"threshold, frame {scores['frame']}", title_fontsize=8)
    cells = {name: table[kind][alpha] for name, table in scores["per_category"].items()}
    values = np.array([cell["per_pair"] for cell in cells.values()])
    errors = np.abs(np.array([cell["ci95"] for cell in cells.values()]).T - values)
    bars.bar(range(len(cells)), values, yerr=errors, color=mpl.colormaps[COLOURS](0.35), ecolor="0.25", capsize=2)
    bars.axhline(scores["pck"][kind][alpha]["per_pair"], color="black", lw=1, ls="--", label="all pairs")
    bars.set_xticks(range(len(cells)), list(cells), rotation=60, ha="right", fontsize=8)
    bars.set(ylabel=f"PCK @ {alpha}, {kind} (%)", ylim=(0, 100))
    bars.legend(fontsize=8)
    for axis in (curve, bars):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
    figure.suptitle(f"{title}  ({scores['n_pairs']} pairs, {scores['n_points']} points)".strip(), fontsize=10)
    return figure


def plot_costs(report: Mapping[str, Any]) -> Figure:
    """Time and memory of each path against the number of candidate matches."""
    figure = Figure(figsize=(10, 4), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in report["rows"]:
        groups.setdefault((row["path"], row["batch"]), []).append(row)
    colours = mpl.colormaps[COLOURS](np.linspace(0, 0.85, len(groups)))
    for colour, marker, ((path, batch), rows) in zip(colours, "osD^vPX*" * 4, groups.items(), strict=False):
        matches = [row["matches"] for row in rows]
        label = f"{path}, batch {batch}"
        left.plot(matches, [row["ms_per_pair"] for row in rows], marker=marker, color=colour, label=label)
        right.plot(matches, [row["peak_gib"] for row in rows], marker=marker, color=colour, label=label)
    first = next(iter(groups.values()))
    left.plot([r["matches"] for r in first], [r["floor_ms"] for r in first], color="0.4", ls="--", label="floor")
    left.set(xlabel="candidate matches", ylabel="ms/pair", xscale="log", yscale="log")
    right.set(xlabel="candidate matches", ylabel="peak memory (GiB)", xscale="log", yscale="log")
    for axis in (left, right):
        axis.grid(alpha=0.3, which="both")
        axis.legend(fontsize=8)
    row = report["rows"][0]
    figure.suptitle(f"{row['mode']}, {row['backbone']}, {row['variant']}, {report['device']}", fontsize=10)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure, in the format its ending names."""
    make_folder(path.parent)
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error

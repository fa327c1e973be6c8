"""Summary of nonlocality → the paper's Figures 6 and 7, for this model."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from transformatcher.evaluation.analysis.nonlocality_run import FORMS
from transformatcher.evaluation.predict import LEVELS
from transformatcher.viz.canvas import QUALITATIVE, SEQUENTIAL, no_math

NAMES = {"pairwise": "query-key pairs", "query": "global query", "key": "global key"}
PAPER_ATTENTION, PAPER_CONVOLUTION = 12.5, 8.0  # cells: numbers of section 5.2 on Figure 6
ORANGE, BLUE, VERMILION = QUALITATIVE[0], QUALITATIVE[1], QUALITATIVE[5]


def plot_nonlocality(summary: Mapping[str, Any], title: str = "") -> Figure:
    """Figure 6: √Φ of convolutions, √Φ of each attention layer, and how far Φ is from uniform attention.

    Shown are square roots of Φ, in cells: the paper's numbers (below 8, about 12.5) are lengths, not squares.
    """
    figure = Figure(figsize=(12, 4.4), dpi=100, layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=[1.1, 1, 1])
    top = 1.12 * max(summary["uniform"], summary["convolutions"][-1]["quantiles"][-1]) ** 0.5
    _convolutions(left, summary["convolutions"])
    _layers(middle, summary)
    for axis in (left, middle):
        axis.set(ylim=(0, top), ylabel="√Φ (cells)")
    _departure(right, summary)
    for axis in (left, middle, right):
        axis.grid(axis="y", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    hs, ws, ht, wt = summary["grid"]
    what = f"nonlocality on {summary['n_pairs']} pairs, {hs}×{ws} × {ht}×{wt} matches"
    figure.suptitle(no_math(" · ".join(filter(None, (title, what)))), fontsize=10)
    return figure


def _convolutions(axis: Axes, convolutions: Sequence[Mapping[str, Any]]) -> None:
    for offset, (dims, colour) in enumerate(((4, BLUE), (6, ORANGE))):
        rows = [row for row in convolutions if row["dims"] == dims]
        positions = 3 * np.arange(len(rows)) + offset
        _boxes(axis, positions, [np.sqrt(row["quantiles"]) for row in rows], colour)
        axis.plot(
            positions, [row["phi"] ** 0.5 for row in rows], "D", color=colour, mec="black", ms=5, label=f"{dims}-D"
        )
    kernels = sorted({row["kernel"] for row in convolutions})
    axis.axhline(PAPER_CONVOLUTION, color="0.4", ls=":", lw=1, label="the paper: all below 8")
    axis.set_xticks(3 * np.arange(len(kernels)) + 0.5, list(map(str, kernels)))
    axis.set(xlabel="kernel size", title="convolutions as attention")
    axis.legend(fontsize=7, loc="upper left", title="diamond: closed form; box: its offsets", title_fontsize=7)


def _layers(axis: Axes, summary: Mapping[str, Any]) -> None:
    rows = summary["layers"]["pairwise"]
    positions = np.arange(1, len(rows) + 1)
    _boxes(axis, positions, [np.sqrt(row["quantiles"]) for row in rows], BLUE)
    axis.axhline(summary["uniform"] ** 0.5, color=VERMILION, ls="--", lw=1.2, label="uniform attention")
    axis.axhline(PAPER_ATTENTION, color="0.4", ls=":", lw=1, label="the paper: about 12.5 (15 cells a side)")
    axis.set_xticks(positions)
    axis.set(xlabel="layer", title="attention layers, query-key pairs")
    note = f"heads differ from uniform by {departure(summary, 'pairwise'):.1g} % at most"
    axis.legend(fontsize=7, loc="lower left", title=note, title_fontsize=7)


def _departure(axis: Axes, summary: Mapping[str, Any]) -> None:
    """Φ of the global query and key relative to uniform attention; the difference is small, so it has its own scale."""
    forms, depth = FORMS[1:], len(summary["layers"]["query"])
    for offset, (form, colour) in enumerate(zip(forms, (ORANGE, BLUE), strict=True)):
        rows = summary["layers"][form]
        departures = [100 * (np.array(row["quantiles"]) / summary["uniform"] - 1) for row in rows]
        _boxes(axis, 3 * np.arange(depth) + offset, departures, colour)
        axis.plot([], [], "s", color=colour, mec="black", label=NAMES[form])
    axis.axhline(0, color=VERMILION, ls="--", lw=1.2)
    axis.set_xticks(3 * np.arange(depth) + 0.5, list(map(str, range(1, depth + 1))))
    axis.set(xlabel="layer", ylabel="Φ relative to uniform attention (%)", title="global query and global key")
    axis.legend(fontsize=7)


def departure(summary: Mapping[str, Any], form: str) -> float:
    """The largest difference, in percent, between a head's mean Φ and that of uniform attention."""
    heads = [phi for row in summary["layers"][form] for phi in row["heads"]]
    return max(100 * abs(phi / summary["uniform"] - 1) for phi in heads)


def _boxes(axis: Axes, positions: np.ndarray, quantiles: Sequence[np.ndarray], colour: Any) -> None:
    """Boxes from the 25th to the 75th percentile, whiskers from the 5th to the 95th."""
    keys = ("whislo", "q1", "med", "q3", "whishi")
    stats = [dict(zip(keys, map(float, row), strict=True)) for row in quantiles]
    axis.bxp(
        stats,
        positions=positions,
        widths=0.75,
        showfliers=False,
        manage_ticks=False,
        patch_artist=True,
        boxprops={"facecolor": colour, "edgecolor": "black"},
        medianprops={"color": "black"},
    )


def plot_difficulty(summary: Mapping[str, Any], title: str = "") -> Figure | None:
    """Figure 7: shares of easy, medium and hard pairs in groups of rising nonlocality; None without difficulties."""
    factors = list(summary["difficulty"]["pairwise"])
    if not factors:
        return None
    figure = Figure(figsize=(12, 7.2), dpi=100, layout="constrained")
    axes = figure.subplots(len(FORMS), len(factors), sharex=True, sharey=True, squeeze=False)
    colours = mpl.colormaps[SEQUENTIAL]([0.95, 0.5, 0.0])  # light is easy
    for form, row in zip(FORMS, axes, strict=True):
        for factor, axis in zip(factors, row, strict=True):
            _shares(axis, summary["difficulty"][form][factor], colours)
            axis.set_title(factor + _trend(summary["difficulty"][form][factor]), fontsize=8)
        row[0].set_ylabel(f"by Φ of {NAMES[form]}\nshare of pairs (%)", fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("group, from local to nonlocal", fontsize=8)
    handles = [mpl.patches.Patch(color=colour, label=level) for level, colour in zip(LEVELS, colours, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(LEVELS), fontsize=8, frameon=False)
    what = f"difficulty of {summary['n_pairs']} pairs by nonlocality (ρ: rank correlation of a pair's Φ and its level)"
    figure.suptitle(no_math(" · ".join(filter(None, (title, what)))), fontsize=10)
    return figure


def _shares(axis: Axes, groups: Mapping[str, Any], colours: np.ndarray) -> None:
    shares = 100 * np.array(groups["shares"])  # (groups, levels)
    positions, bottom = np.arange(1, len(shares) + 1), np.zeros(len(shares))
    for level, colour in enumerate(colours):
        axis.bar(positions, shares[:, level], bottom=bottom, width=0.95, color=colour)
        bottom += shares[:, level]
    axis.set(ylim=(0, 100))
    axis.spines[["top", "right"]].set_visible(False)


def _trend(groups: Mapping[str, Any]) -> str:
    if groups["rank_correlation"] is None:
        return ""
    p = groups["p_value"]
    return f"  ρ = {groups['rank_correlation']:+.2f}, p {'< 0.001' if p < 0.001 else f'= {p:.3f}'}"

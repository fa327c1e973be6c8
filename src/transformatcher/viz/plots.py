"""Numbers of training, evaluation, studies and costs → plots, for any eyes."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from transformatcher.viz.canvas import SEQUENTIAL, no_math


def plot_curves(metrics: Sequence[Mapping[str, Any]], title: str = "") -> Figure:
    """Loss and validation PCK of a training run against the pairs it has seen; dotted: PCK of what it started from."""
    figure = Figure(figsize=(9, 3.4), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    pairs = [row["pairs"] for row in metrics]
    left.plot(pairs, [np.nan if row["loss"] is None else row["loss"] for row in metrics], color="black", marker=".")
    left.set_ylabel("training loss")
    names = list(metrics[0]["pck"]) if metrics else []
    colours = [mpl.colormaps[SEQUENTIAL](x) for x in np.linspace(0, 0.85, max(len(names), 1))]
    for name, colour in zip(names, colours, strict=False):
        for alpha, style in (("0.1", "-"), ("0.05", "--")):
            values = [row["pck"][name][alpha] for row in metrics]
            right.plot(pairs, values, style, color=colour, marker=".", label=no_math(f"{name} @ {alpha}"))
            if metrics[0]["pairs"] == 0:
                right.axhline(values[0], color=colour, ls=":", lw=1)
    right.set_ylabel("validation PCK (%)")
    if names:
        right.legend(fontsize=7)
    for axis in (left, right):
        axis.set_xlabel("pairs seen")
        axis.locator_params(axis="x", nbins=5)  # six digits each: more would run into each other
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.grid(alpha=0.3)
    if title:
        figure.suptitle(no_math(title), fontsize=9)
    return figure


def plot_confidence(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]]],
    with_absent: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    title: str = "",
) -> Figure:
    """Reliability diagram of the confidence, and ROC curves of telling correct matches from wrong ones.

    Args:
        curves: for each set of matches, (confidence, accuracy) of its reliability and (false positive rate, true
            positive rate) of its ROC.
        with_absent: for some sets, the ROC that includes points that the target does not show; drawn dashed.
        title: a line above.
    """
    figure = Figure(figsize=(9, 4.2), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    colours = [mpl.colormaps[SEQUENTIAL](x) for x in np.linspace(0, 0.85, max(len(curves), 1))]
    for (name, curve), colour in zip(curves.items(), colours, strict=True):
        confidence, accuracy, false_positives, true_positives = curve
        left.plot(confidence, accuracy, color=colour, marker="o", label=name)
        right.plot(false_positives, true_positives, color=colour, label=name)
        if with_absent and name in with_absent:
            right.plot(*with_absent[name], color=colour, ls="--")
    roc = "ROC: correct or wrong?" + (" (dashed: with absent points)" if with_absent else "")
    left.set(xlabel="confidence", ylabel="share of matches that are correct", title="reliability")
    right.set(xlabel="wrong matches kept (false positive rate)", ylabel="correct matches kept", title=roc)
    for axis in (left, right):
        axis.plot([0, 1], [0, 1], color="grey", linestyle=":", zorder=0)
        axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axis.grid(alpha=0.3)
    if curves:
        right.legend(fontsize=8, loc="lower right")
    if title:
        figure.suptitle(title, fontsize=9)
    return figure


def plot_scores(scores: Mapping[str, Any], pck_threshold: str, alpha: str, title: str = "") -> Figure:
    """PCK against α with its 95 % interval for each threshold; beside it, the categories at one threshold and α."""
    figure = Figure(figsize=(11, 4.2), dpi=110, layout="constrained")
    curve, bars = figure.subplots(1, 2, width_ratios=[1, 1.7])
    colours = mpl.colormaps[SEQUENTIAL](np.linspace(0, 0.9, len(scores["pck"])))
    for colour, marker, (name, cells) in zip(colours, "osD^", scores["pck"].items(), strict=False):
        alphas = [float(alpha) for alpha in cells]
        values = np.array([cell["per_pair"] for cell in cells.values()])
        low, high = np.array([cell["ci95"] for cell in cells.values()]).T
        curve.plot(alphas, values, marker=marker, color=colour, label=name)
        curve.fill_between(alphas, low, high, color=colour, alpha=0.2, lw=0)
    curve.set(xlabel="α", ylabel="PCK, mean over pairs (%)", ylim=(0, 100))
    curve.legend(fontsize=8, title=f"threshold, frame {scores['frame']}", title_fontsize=8)
    cells = {name: table[pck_threshold][alpha] for name, table in scores["per_category"].items()}
    values = np.array([cell["per_pair"] for cell in cells.values()])
    errors = np.abs(np.array([cell["ci95"] for cell in cells.values()]).T - values)
    bars.bar(range(len(cells)), values, yerr=errors, color=mpl.colormaps[SEQUENTIAL](0.35), ecolor="0.25", capsize=2)
    bars.axhline(scores["pck"][pck_threshold][alpha]["per_pair"], color="black", lw=1, ls="--", label="all pairs")
    bars.set_xticks(range(len(cells)), [no_math(name) for name in cells], rotation=60, ha="right", fontsize=8)
    bars.set(ylabel=f"PCK @ {alpha}, {pck_threshold} (%)", ylim=(0, 100))
    bars.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), frameon=False, borderaxespad=0)
    for axis in (curve, bars):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
    counts = f"({scores['n_pairs']} pairs, {scores['n_points']} points)"
    figure.suptitle(f"{no_math(title)}  {counts}".strip(), fontsize=10)
    return figure


def plot_groups(scores: Mapping[str, Any], pck_threshold: str, alpha: str, title: str = "") -> Figure:
    """PCK of the groups of pairs by difficulty and other factors, with 95 % intervals; beside it, left/right twins."""
    factors = {name: dict(levels) for name, levels in scores["difficulty"].items()}
    factors |= {name: {key: cell["pck"] for key, cell in levels.items()} for name, levels in scores["groups"].items()}
    rows = [
        (name, level, table[pck_threshold][alpha])
        for name, levels in factors.items()
        for level, table in levels.items()
    ]
    twins = scores["twins"]
    figure = Figure(figsize=(7 if twins is None else 10, 1.4 + 0.24 * max(len(rows), 6)), dpi=110, layout="constrained")
    panels = figure.subplots(
        1, 1 if twins is None else 2, width_ratios=None if twins is None else [1.6, 1], squeeze=False
    )
    left = panels[0, 0]
    colours = mpl.colormaps[SEQUENTIAL](np.linspace(0, 0.85, max(len(factors), 1)))
    for position, (name, _, cell) in enumerate(rows):
        low, high = cell["ci95"]
        colour = colours[list(factors).index(name)]
        left.plot([low, high], [position, position], color=colour, lw=2)
        left.plot(cell["per_pair"], position, "o", color=colour)
    left.axvline(scores["pck"][pck_threshold][alpha]["per_pair"], color="black", lw=1, ls="--")
    left.set_yticks(range(len(rows)), [no_math(f"{name}: {level}") for name, level, _ in rows], fontsize=8)
    left.invert_yaxis()
    left.set(xlabel=f"PCK @ {alpha}, {pck_threshold} (%); dashed: all pairs", xlim=(0, 100))
    left.grid(axis="x", alpha=0.3)
    if not rows:
        left.text(50, 0, "no groups are known of these pairs", ha="center")
    if twins is not None:
        _plot_twins(panels[0, 1], twins["pck"][pck_threshold][alpha], f"{twins['n_points']} points with a visible twin")
    figure.suptitle(no_math(title), fontsize=10)
    return figure


def _plot_twins(axis: Axes, cell: Mapping[str, float | None], label: str) -> None:
    """Shares of points that are on the true point, on its twin and elsewhere, as bars."""
    names = {"correct": "on the true point", "on_twin": "on its twin", "elsewhere": "elsewhere"}
    values = [cell[key] or 0.0 for key in names]
    colours = mpl.colormaps[SEQUENTIAL]([0.35, 0.65, 0.9])
    axis.bar_label(axis.bar(range(len(names)), values, color=colours), fmt="%.1f", fontsize=9)
    axis.set_xticks(range(len(names)), list(names.values()), fontsize=8)
    axis.set(ylim=(0, 105), ylabel="% of points")
    axis.set_title(f"left/right: {label}", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)


def plot_comparison(comparison: Mapping[str, Any], pck_threshold: str, alpha: str) -> Figure:
    """PCK of every pair by both methods, as circles of an area by the number of pairs; beside it, groups of pairs."""
    a, b = (no_math(comparison[key]) for key in "ab")
    groups = list(comparison["groups"].items())
    figure = Figure(figsize=(11, max(4.6, 1.2 + 0.2 * len(groups))), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    pairs = comparison["pairs"][pck_threshold][alpha]
    points, counts = np.unique([(row["b"], row["a"]) for row in pairs], axis=0, return_counts=True)
    colours = mpl.colormaps[SEQUENTIAL]([0.2, 0.6])
    left.plot([0, 100], [0, 100], color="grey", ls=":")
    left.scatter(*points.T, s=14 * counts, color=colours[0], alpha=0.45, lw=0)
    left.set(
        xlabel=f"{b}: PCK of a pair (%)",
        ylabel=f"{a}: PCK of a pair (%)",
        aspect="equal",
        xlim=(-4, 104),
        ylim=(-4, 104),
    )
    wins = [sum(row["a"] > row["b"] for row in pairs), sum(row["a"] < row["b"] for row in pairs)]
    left.set_title(f"{a} better on {wins[0]} pairs, {b} on {wins[1]}, equal on {len(pairs) - sum(wins)}", fontsize=9)
    left.grid(alpha=0.3)
    total = comparison["pck"][pck_threshold][alpha]
    rows = [("all pairs", total), *((no_math(name), group[pck_threshold][alpha]) for name, group in groups)]
    for position, (_, cell) in enumerate(rows):
        right.plot(cell["ci95"], [position, position], color=colours[1], lw=2)
        right.plot(cell["difference"], position, "o", color="black" if position == 0 else colours[1], ms=4)
    right.axvline(0, color="grey", ls=":")
    right.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=7)
    right.invert_yaxis()
    right.set_xlabel(f"{a} minus {b}, PCK @ {alpha}, {pck_threshold} (points)")
    right.grid(axis="x", alpha=0.3)
    return figure


def plot_layers(data: Mapping[str, Any]) -> Figure:
    """PCK of each two layers of a backbone as a map, its diagonal the layers alone; beside it, these with intervals.

    Args:
        data: what ``layers.json`` holds.
    """
    pck, names = np.array(data["pck"]), [str(layer) for layer in data["layers"]]
    figure = Figure(figsize=(11, 4.4), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    image = left.imshow(pck, cmap=SEQUENTIAL)
    middle = (pck.min() + pck.max()) / 2
    for (row, column), value in np.ndenumerate(pck) if len(names) <= 14 else ():
        colour = "black" if value > middle else "white"
        left.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=7, color=colour)
    left.set_xticks(range(len(names)), names)
    left.set_yticks(range(len(names)), names)
    left.set(xlabel="layer", ylabel="layer", title="two layers; on the diagonal, one")
    figure.colorbar(image, ax=left, label="PCK (%)")
    own, (low, high) = pck.diagonal(), np.array(data["ci95"])[range(len(names)), range(len(names))].T
    right.errorbar(range(len(names)), own, yerr=[own - low, high - own], fmt="o", color="black", capsize=2)
    right.axhline(data["all_layers"], color="black", ls="--", lw=1, label="all layers")
    right.axhline(pck.max(), color="tab:red", ls=":", lw=1, label="the best two")
    right.set_xticks(range(len(names)), names)
    right.set(xlabel="layer", ylabel="PCK (%)", title="one layer", ylim=(0, None))
    right.grid(axis="y", alpha=0.3)
    right.legend(fontsize=8)
    size = "×".join(map(str, data["image_size"]))
    title = f"{data['backbone']}, {size}, {data['data']}, {data['n_pairs']} pairs, "
    title += f"{data['pck_threshold']} @ {data['alpha']:g}"
    figure.suptitle(no_math(title), fontsize=10)
    return figure


def plot_ablation(table: Mapping[str, Any]) -> Figure:
    """Mean PCK of every row with its spread over seeds: a column of panels for each set, a row for each tolerance.

    Args:
        table: as :func:`transformatcher.training.ablation_table.write_table` makes it.
    """
    names, rows = list(table["pck_thresholds"]), table["rows"]
    alphas = ("0.05", "0.1")
    labels = [no_math(textwrap.fill(str(row["label"]), 36)) for row in rows]
    lines = sum(1 + label.count("\n") for label in labels)
    size = (3 + 2.6 * len(names), 1 + 2 * (0.5 + 0.24 * lines))
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    panels = figure.subplots(len(alphas), len(names), sharey=True, squeeze=False)
    positions = np.arange(len(rows))
    for line, alpha, colour in zip(panels, alphas, mpl.colormaps[SEQUENTIAL]([0.2, 0.55]), strict=True):
        for panel, name in zip(line, names, strict=True):
            cells = [row.get(f"{name} @ {alpha}", {"mean": np.nan, "spread": 0}) for row in rows]
            means, spreads = [cell["mean"] for cell in cells], [cell["spread"] for cell in cells]
            panel.errorbar(means, positions, xerr=spreads, fmt="o", ms=5, capsize=2, color=colour)
            panel.set_title(no_math(f"{name} ({table['pck_thresholds'][name]}) @ {alpha}"), fontsize=9)
            panel.grid(axis="both", alpha=0.3)
            panel.tick_params(labelsize=8)
    for panel in panels[-1]:
        panel.set_xlabel("PCK (%)", fontsize=9)
    panels[0, 0].set_yticks(positions, labels)
    panels[0, 0].invert_yaxis()
    return figure


def plot_costs(report: Mapping[str, Any]) -> Figure:
    """Time and memory of each backend against the number of candidate matches; of one size of images, as bars."""
    figure = Figure(figsize=(10, 4), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in report["rows"]:
        groups.setdefault((row["backend"], row["batch"]), []).append(row)
    if len({row["matches"] for row in report["rows"]}) > 1:
        _cost_lines(left, right, groups)
    else:
        _cost_bars(left, right, groups)
    row = report["rows"][0]
    title = f"{row['mode']}, {row['backbone']}, {row['variant']}, {report['device']}"
    figure.suptitle(no_math(title), fontsize=10)
    return figure


CostGroups = Mapping[tuple[str, int], Sequence[Mapping[str, Any]]]  # (backend, batch) → rows


def _cost_lines(left: Axes, right: Axes, groups: CostGroups) -> None:
    colours = mpl.colormaps[SEQUENTIAL](np.linspace(0, 0.85, len(groups)))
    for colour, marker, ((backend, batch), rows) in zip(colours, "osD^vPX*" * 4, groups.items(), strict=False):
        matches = [row["matches"] for row in rows]
        label = no_math(f"{backend}, batch {batch}")
        left.plot(matches, [row["ms_per_pair"] for row in rows], marker=marker, color=colour, label=label)
        right.plot(matches, [row["peak_gib"] for row in rows], marker=marker, color=colour, label=label)
    first = next(iter(groups.values()))
    left.plot([r["matches"] for r in first], [r["floor_ms"] for r in first], color="0.4", ls="--", label="floor")
    left.set(xlabel="candidate matches", ylabel="ms/pair", xscale="log", yscale="log")
    right.set(xlabel="candidate matches", ylabel="peak memory (GiB)", xscale="log", yscale="log")
    for axis in (left, right):
        axis.grid(alpha=0.3, which="both")
        axis.legend(fontsize=8)


def _cost_bars(left: Axes, right: Axes, groups: CostGroups) -> None:
    labels = [no_math(f"{backend}, batch {batch}") for backend, batch in groups]
    rows = [rows[-1] for rows in groups.values()]
    colours = mpl.colormaps[SEQUENTIAL](np.linspace(0, 0.85, len(groups)))
    floors = [row["floor_ms"] for row in rows]
    for axis, key, label in ((left, "ms_per_pair", "ms/pair"), (right, "peak_gib", "peak memory (GiB)")):
        values = [row[key] for row in rows]
        bars = axis.barh(labels, values, color=colours)
        axis.bar_label(bars, fmt="%.3g", padding=3, fontsize=9)
        axis.invert_yaxis()
        axis.set(xlabel=label, xlim=(0, 1.15 * max(values)))
    left.set(xscale="log", xlim=(0.5 * min(floors), 3 * max(row["ms_per_pair"] for row in rows)))
    left.plot(floors, labels, ls="", marker="|", ms=16, color="tab:red", label="floor")
    left.legend(fontsize=8)
    right.set_yticks([])

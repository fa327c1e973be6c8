"""Report of simulated annotation → curves of clicks against photos finished, a panel for each category."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from transformatcher.viz.canvas import QUALITATIVE, no_math

COLUMNS = 4
COLOURS = {"suggested": QUALITATIVE[4], "random": QUALITATIVE[5], "least_like": QUALITATIVE[2]}
STYLES = ("-", (0, (4, 1.5)), (0, (1, 1)), "-.")  # of the tolerances
BY_HAND = "0.4"
LINE = 0.075  # height of a label, as a part of the panel


def plot_clicks(report: Mapping[str, Any], title: str = "") -> Figure:
    """Clicks against photos finished for each way of work, with the share of all clicks by hand at the ends.

    Args:
        report: as :func:`transformatcher.annotation.simulation_report.make_report` makes it.
        title: a line above.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for run in report["runs"]:
        groups.setdefault(run["category"], []).append(run)
    tolerances = sorted({run["tolerance"] for run in report["runs"]}, reverse=True)
    columns = min(COLUMNS, len(groups))
    rows = -(-len(groups) // columns)
    size = (max(3.2 * columns, 6.4), 2.9 * rows + 0.2 + 0.3 * bool(title))
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel, (category, runs) in zip(panels.flat, groups.items(), strict=False):
        _draw_category(panel, category, runs, tolerances)
    for panel in panels.flat[len(groups) :]:
        panel.set_axis_off()
    for row in panels:
        row[0].set_ylabel("clicks", fontsize=9)
    figure.supxlabel("photos finished", fontsize=9)
    if title:
        figure.suptitle(no_math(title), fontsize=10)
    return figure


def _draw_category(panel: Axes, category: str, runs: Sequence[Mapping[str, Any]], tolerances: Sequence[float]) -> None:
    n, total = runs[0]["photos"], max(run["by_hand"][-1] for run in runs)
    ends: list[tuple[int, str, str]] = [(total, "by hand", BY_HAND)]  # clicks, label, colour
    panel.plot(range(n + 1), [0, *runs[0]["by_hand"]], color=BY_HAND, lw=1.2)
    for run in runs:
        colour, style = COLOURS[run["first"]], STYLES[tolerances.index(run["tolerance"]) % len(STYLES)]
        panel.plot(range(n + 1), [0, *run["clicks"]], color=colour, ls=style, lw=1.6)
        name = run["first"].replace("_", " ") + (f" ±{run['tolerance']:g}" if len(tolerances) > 1 else "")
        ends.append((run["clicks"][-1], f"{run['share']:.0%} {name}", colour))
    panel.set_xlim(0, n)
    panel.set_ylim(0, 1.12 * max([total, *(run["clicks"][-1] for run in runs)]))
    _label_ends(panel, n, ends)
    panel.set_title(no_math(f"{category}, {n} photos"), fontsize=9, loc="left", pad=19)
    if runs[0]["unreviewed"]:
        first = runs[0]["unreviewed"][0]
        note = f"one reference, no review: {first['clicks']} clicks, finds {first['found_share']:.0%}"
        panel.text(0, 1.035, note, transform=panel.transAxes, fontsize=7.5, color="0.35")
    panel.spines[["top", "right"]].set_visible(False)
    panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    panel.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    panel.tick_params(labelsize=8)
    panel.grid(alpha=0.25)


def _label_ends(panel: Axes, x: int, ends: Sequence[tuple[int, str, str]]) -> None:
    """Names beside the ends of the curves; those that would cover each other are moved apart."""
    top = panel.get_ylim()[1]
    ordered = sorted(ends)
    heights = np.array([y / top for y, _, _ in ordered])
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + LINE)
    if (over := heights[-1] - 1.0) > 0:  # from the top down again
        heights[-1] -= over
        for i in range(len(heights) - 2, -1, -1):
            heights[i] = min(heights[i], heights[i + 1] - LINE)
    for (_, label, colour), height in zip(ordered, heights, strict=True):
        panel.annotate(
            no_math(label), (x, height), xycoords=("data", "axes fraction"), xytext=(4, 0),
            textcoords="offset points", va="center", fontsize=7.5, color=colour, annotation_clip=False,
        )  # fmt: skip

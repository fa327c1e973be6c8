"""Simulated runs → the share of clicks that the studio needs, by category and on average, as data for JSON."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from transformatcher.annotation.simulate import SimulatedRun, Unreviewed


def make_report(runs: Collection[SimulatedRun]) -> dict[str, Any]:
    """All runs → their curves and totals.

    Returns:
        ``runs``, a row for each run: category, first, tolerance, photos, ``by_hand`` and ``clicks`` (both cumulative, a
        number for each photo finished, in the order of the work), ``share`` (all clicks, of those by hand), the
        decisions ``placed``, ``moved`` and ``removed``, ``unreviewed`` (see :class:`Unreviewed`, with the shares that
        follow from it), ``mean_error``, ``within_fine``, ``seconds``. ``means``, a row for each way of work: the mean
        of the categories' shares, with the least and the largest, and how many of the visible keypoints are found
        without review after ``one_reference`` and after ``all_references``.
    """
    rows = [_row(run) for run in runs]
    ways = list(dict.fromkeys((row["first"], row["tolerance"]) for row in rows))
    means = []
    for first, tolerance in ways:
        group = [row for row in rows if (row["first"], row["tolerance"]) == (first, tolerance)]
        shares = [row["share"] for row in group]
        means.append({
            "first": first, "tolerance": tolerance, "categories": len(group), "share": float(np.mean(shares)),
            "least": min(shares), "most": max(shares),
            "one_reference": _mean([row["unreviewed"][0]["found_share"] for row in group if row["unreviewed"]]),
            "all_references": _mean([row["unreviewed"][-1]["found_share"] for row in group if row["unreviewed"]]),
        })  # fmt: skip
    return {"runs": rows, "means": means}


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _row(run: SimulatedRun) -> dict[str, Any]:
    return {
        "category": run.category,
        "first": run.rules.first,
        "tolerance": run.rules.tolerance,
        "photos": len(run.steps),
        "references": run.rules.references,
        "clicks": np.cumsum([step.clicks for step in run.steps]).tolist(),
        "by_hand": np.cumsum([step.by_hand for step in run.steps]).tolist(),
        "share": run.clicks / run.by_hand,
        "placed": sum(step.placed for step in run.steps),
        "moved": sum(step.moved for step in run.steps),
        "removed": sum(step.removed for step in run.steps),
        "untouched": sum(step.clicks == 1 for step in run.steps),
        "unreviewed": [asdict(row) | _shares(row) for row in run.unreviewed],
        "mean_error": run.mean_error,
        "within_fine": run.within_fine,
        "seconds": round(run.seconds, 1),
    }


def _shares(row: Unreviewed) -> dict[str, float]:
    """Of all keypoints, those that are shown where they are, or rightly not shown; of the visible ones, those found."""
    return {
        "right": (row.found + row.left_out) / max(row.visible + row.absent, 1),
        "found_share": row.found / max(row.visible, 1),
    }

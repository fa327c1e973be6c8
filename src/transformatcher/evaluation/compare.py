"""Predictions of two methods on the same pairs → by how much one is better, with intervals, and on which pairs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from transformatcher.data.benchmarks import PckThreshold
from transformatcher.errors import InputError
from transformatcher.evaluation.metrics import ALPHAS, bootstrap_ci95, bootstrap_weights
from transformatcher.evaluation.predict import Prediction
from transformatcher.evaluation.scores import (
    PUBLISHED_FRAME,
    correct_by_pair,
    pair_groups,
    thresholds_of,
)
from transformatcher.schema import Size

MOVED = 0.01  # pixels; true keypoints that differ by more are not the same


def compare(
    ours: Sequence[Prediction],
    theirs: Sequence[Prediction],
    *,
    frame: Size | None = PUBLISHED_FRAME,
    alphas: Sequence[float] = ALPHAS,
    names: tuple[str, str] = ("A", "B"),
    benchmark: str = "",
) -> dict[str, Any]:
    """Differences in PCK, ours minus theirs, with paired bootstrap intervals: both are resampled by the same pairs.

    Args:
        ours, theirs: predictions of the same points, in any order.
        frame, alphas: as for :func:`transformatcher.evaluation.scores.score`.
        names: of both.
        benchmark: of the pairs, which has a threshold of its own.

    Returns:
        ``pck``: threshold → α → cell with ``a``, ``b``, ``difference``, ``ci95`` (per pair) and ``per_point`` with the
        same keys; ``groups``: name of a group → threshold → α → cell; ``pairs``: threshold → α → PCK of each pair by
        both, those that differ most first.
    """
    theirs = _aligned(ours, theirs, names)
    thresholds = [name for name in thresholds_of(ours, frame) if name in thresholds_of(theirs, frame)]
    groups = pair_groups(ours)
    result: dict[str, Any] = {
        "a": names[0],
        "b": names[1],
        "benchmark": benchmark,
        "n_pairs": len(ours),
        "frame": "original" if frame is None else f"{frame[0]}x{frame[1]}",
        "pck": {},
        "groups": {name: {"n_pairs": len(index)} for name, index in groups.items()},
        "pairs": {},
    }
    everything = np.arange(len(ours))
    for threshold in thresholds:
        for alpha in alphas:
            key = f"{alpha:g}"
            right = [correct_by_pair(item, threshold, alpha, frame) for item in (ours, theirs)]
            result["pck"].setdefault(threshold, {})[key] = _cell(right, everything)
            for name, index in groups.items():
                result["groups"][name].setdefault(threshold, {})[key] = _cell(right, index)
            result["pairs"].setdefault(threshold, {})[key] = _ranked(ours, right)
    return result


def paired_difference(
    ours: Float[np.ndarray, " n"], theirs: Float[np.ndarray, " n"], weights: Float[np.ndarray, "resamples n"]
) -> tuple[float, float, float]:
    """Mean of ours minus theirs over the pairs, and its 95 % interval over the resamples.

    Args:
        ours, theirs: PCK of each pair.
        weights: of the pairs in each resample, from :func:`transformatcher.evaluation.metrics.bootstrap_weights`.
    """
    differences = ours - theirs
    return float(differences.mean()), *bootstrap_ci95(differences, weights)


def verdict(comparison: Mapping[str, Any], pck_threshold: PckThreshold, alpha: str) -> str:
    """The comparison in one sentence: ``A is better than B by 1.3 ± 0.6 …``."""
    cell = comparison["pck"][pck_threshold][alpha]
    low, high = cell["ci95"]
    a, b = comparison["a"], comparison["b"]
    better, worse = (a, b) if cell["difference"] > 0 else (b, a)
    size = f"{abs(cell['difference']):.1f} ± {(high - low) / 2:.1f}"
    where = f"PCK @ {alpha}, {pck_threshold}, per pair, {comparison['n_pairs']} pairs; 95 % interval "
    where += f"{low:+.1f} to {high:+.1f}"
    if low <= 0 <= high:
        return f"{a} and {b} cannot be told apart: they differ by {size} ({where})"
    return f"{better} is better than {worse} by {size} ({where})"


def is_comparison(data: Any) -> bool:
    """Whether this is what :func:`compare` returns."""
    return isinstance(data, dict) and {"a", "b", "n_pairs", "frame", "pck", "groups", "pairs"} <= set(data)


def _cell(right: Sequence[Sequence[np.ndarray]], index: np.ndarray) -> dict[str, Any]:
    """Both PCKs and their difference on some pairs, per pair and per point."""
    chosen = [[pairs[i] for i in index] for pairs in right]
    ours, theirs = (np.array([100 * pair.mean() for pair in pairs]) for pairs in chosen)
    weights = bootstrap_weights(len(index))
    counts = np.array([len(pair) for pair in chosen[0]])
    resampled = (weights @ ((ours - theirs) * counts)) / (weights @ counts)
    a, b = (float((pck * counts).sum() / counts.sum()) for pck in (ours, theirs))
    low, high = (float(value) for value in np.percentile(resampled, [2.5, 97.5]))
    return {
        **_rounded(float(ours.mean()), float(theirs.mean()), paired_difference(ours, theirs, weights)),
        "per_point": _rounded(a, b, (a - b, low, high)),
    }


def _rounded(ours: float, theirs: float, difference: tuple[float, float, float]) -> dict[str, Any]:
    mean, low, high = (round(float(value), 3) for value in difference)
    return {"a": round(ours, 3), "b": round(theirs, 3), "difference": mean, "ci95": [low, high]}


def _ranked(ours: Sequence[Prediction], right: Sequence[Sequence[np.ndarray]]) -> list[dict[str, Any]]:
    rows = [
        {"name": item.name, "category": item.category, "a": round(100 * a.mean(), 1), "b": round(100 * b.mean(), 1)}
        for item, a, b in zip(ours, *right, strict=True)
    ]
    return sorted(rows, key=lambda row: (-abs(row["a"] - row["b"]), row["name"]))


def _aligned(ours: Sequence[Prediction], theirs: Sequence[Prediction], names: tuple[str, str]) -> list[Prediction]:
    """Theirs in the order of ours; an error names what only one of both has."""
    by_name = {item.name: item for item in theirs}
    lacking = [item.name for item in ours if item.name not in by_name]
    surplus = sorted(set(by_name) - {item.name for item in ours})
    for absent, here, there in ((lacking, *names), (surplus, names[1], names[0])):
        if absent:
            raise InputError(
                f"{there}: has no predictions for {len(absent)} pairs of {here}, such as {absent[0]}; compare results "
                "of the same benchmark, split and --limit"
            )
    aligned = [by_name[item.name] for item in ours]
    for a, b in zip(ours, aligned, strict=True):
        same = a.kp_index == b.kp_index and np.allclose(a.trg_kps, b.trg_kps, rtol=0, atol=MOVED)
        if not same:
            raise InputError(f"pair {a.name}: its true keypoints differ in {names[0]} and {names[1]}")
    return aligned

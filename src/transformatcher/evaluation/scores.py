"""Predictions → PCK in any protocol: by threshold and α, in total, by category and by difficulty."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Bool, Float, Int

from transformatcher.coords import rescale_px
from transformatcher.data.benchmarks import BENCHMARKS, PckThreshold
from transformatcher.errors import InputError
from transformatcher.evaluation.groups import LEVELS_OF, groups_of, twin_targets
from transformatcher.evaluation.metrics import (
    ALPHAS,
    PCK_THRESHOLDS,
    bootstrap_ci95,
    bootstrap_weights,
    correct_points,
    pck_per_pair,
    pck_per_point,
    point_errors,
    reference_length,
)
from transformatcher.evaluation.predict import LEVELS, Prediction
from transformatcher.files import write_text
from transformatcher.schema import Size

SCORES = "scores.json"
PUBLISHED_FRAME: Size = (240, 240)


@dataclass(frozen=True)
class _ScoredPair:
    """One pair in the chosen frame: the errors of its points, and the length of each threshold that it has."""

    category: str
    difficulty: Mapping[str, int]
    groups: Mapping[str, str]  # factor → level, see evaluation/groups.py
    errors: Float[np.ndarray, " n"]
    twin_errors: Float[np.ndarray, " n"]  # distances from the twins of the true points; NaN without a visible twin
    lengths: Mapping[PckThreshold, float]


def score(
    predictions: Sequence[Prediction], *, frame: Size | None = PUBLISHED_FRAME, alphas: Sequence[float] = ALPHAS
) -> dict[str, Any]:
    """PCK for every threshold and α, in total, by category and by difficulty.

    Args:
        predictions: of any benchmark. A threshold is left out where a pair has no box for it.
        frame: the (h, w) that every target is resized to before distances are taken, boxes included (published numbers
            use 240 × 240), or None for the original pixels.
        alphas: tolerances, as parts of the threshold's length.

    Returns:
        What ``scores.json`` holds. Each ``pck`` table is threshold → α → ``per_pair``, ``per_point`` and their
        intervals ``ci95`` and ``per_point_ci95``. ``twins`` is None where no twins are known.
    """
    pairs = [_in_frame(prediction, frame) for prediction in predictions]
    thresholds = [threshold for threshold in PCK_THRESHOLDS if all(threshold in pair.lengths for pair in pairs)]
    factors = sorted({factor for pair in pairs for factor in pair.difficulty})

    def table(group: Sequence[_ScoredPair]) -> dict[str, Any]:
        weights = bootstrap_weights(len(group))
        return {
            threshold: {f"{alpha:g}": _cell(group, threshold, alpha, weights) for alpha in alphas}
            for threshold in thresholds
        }

    def by_group(key: Callable[[_ScoredPair], str | None]) -> dict[str, Any]:
        names = sorted({name for pair in pairs if (name := key(pair)) is not None}, key=_level_order)
        return {name: table([pair for pair in pairs if key(pair) == name]) for name in names}

    return {
        "n_pairs": len(pairs),
        "n_points": sum(len(pair.errors) for pair in pairs),
        "frame": "original" if frame is None else f"{frame[0]}x{frame[1]}",
        "pck": table(pairs),
        "per_category": by_group(lambda pair: pair.category),
        "difficulty": {factor: by_group(partial(_level, factor)) for factor in factors},
        "groups": {
            factor: {level: {"n_pairs": len(group), "pck": table(group)} for level, group in levels.items()}
            for factor in LEVELS_OF
            if (levels := _by_level(pairs, factor))
        },
        "twins": _twins(pairs, thresholds, alphas),
    }


def _by_level(pairs: Sequence[_ScoredPair], factor: str) -> dict[str, list[_ScoredPair]]:
    levels = {level: [pair for pair in pairs if pair.groups.get(factor) == level] for level in LEVELS_OF[factor]}
    return {level: group for level, group in levels.items() if group}


def _twins(
    pairs: Sequence[_ScoredPair], thresholds: Sequence[PckThreshold], alphas: Sequence[float]
) -> dict[str, Any] | None:
    """Of the points whose twin on the other side is visible: the shares that are correct, on the twin, elsewhere."""
    has_twin = np.concatenate([np.isfinite(pair.twin_errors) for pair in pairs])
    if not has_twin.any():
        return None

    def cell(threshold: PckThreshold, alpha: float) -> dict[str, float | None]:
        correct, on_twin = (
            np.concatenate([correct_points(errors(pair), pair.lengths[threshold], alpha) for pair in pairs])
            for errors in (attrgetter("errors"), attrgetter("twin_errors"))
        )
        right = 100 * float(correct[has_twin].mean())
        taken = 100 * float((on_twin & ~correct)[has_twin].mean())
        others = None if has_twin.all() else round(100 * float(correct[~has_twin].mean()), 3)
        return {
            "correct": round(right, 3), "on_twin": round(taken, 3), "elsewhere": round(100 - right - taken, 3),
            "without_twin_correct": others,
        }  # fmt: skip

    return {
        "n_points": int(has_twin.sum()),
        "pck": {threshold: {f"{alpha:g}": cell(threshold, alpha) for alpha in alphas} for threshold in thresholds},
    }


def thresholds_of(predictions: Sequence[Prediction], frame: Size | None = PUBLISHED_FRAME) -> list[PckThreshold]:
    """The thresholds that every pair has the boxes for."""
    pairs = [_in_frame(prediction, frame) for prediction in predictions]
    return [threshold for threshold in PCK_THRESHOLDS if all(threshold in pair.lengths for pair in pairs)]


def correct_by_pair(
    predictions: Sequence[Prediction], pck_threshold: PckThreshold, alpha: float, frame: Size | None = PUBLISHED_FRAME
) -> list[Bool[np.ndarray, " _"]]:
    """For each pair, which of its points are correct."""
    pairs = [_in_frame(prediction, frame) for prediction in predictions]
    _check_boxes(predictions, pairs, pck_threshold)
    return [correct_points(pair.errors, pair.lengths[pck_threshold], alpha) for pair in pairs]


def pair_groups(predictions: Sequence[Prediction]) -> dict[str, Int[np.ndarray, " _"]]:
    """Indices of the predictions in each group: every category, and every level of every factor."""
    names: dict[str, list[int]] = {}
    for index, prediction in enumerate(predictions):
        levels = {factor: LEVELS[level] for factor, level in prediction.difficulty.items()} | groups_of(prediction)
        for name in (prediction.category, *(f"{factor}: {level}" for factor, level in levels.items())):
            names.setdefault(name, []).append(index)
    order = sorted(names, key=lambda name: (": " in name, *_group_order(name)))
    return {name: np.array(names[name]) for name in order}


def _group_order(name: str) -> tuple[str, int, str]:
    factor, _, level = name.partition(": ")
    levels = LEVELS_OF.get(factor, LEVELS)
    return (factor, levels.index(level) if level in levels else 0, name)


def labelled_points(
    predictions: Sequence[Prediction], pck_threshold: PckThreshold, alpha: float, frame: Size | None = PUBLISHED_FRAME
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Peak, cycle error and correctness of every predicted point of every pair."""
    if any(len(prediction.cycle_error) != len(prediction.peak) for prediction in predictions):
        raise InputError("these predictions have no cycle errors; run transformatcher eval again with --overwrite")
    pairs = [_in_frame(prediction, frame) for prediction in predictions]
    _check_boxes(predictions, pairs, pck_threshold)
    return (
        np.concatenate([prediction.peak for prediction in predictions]),
        np.concatenate([prediction.cycle_error for prediction in predictions]),
        np.concatenate([correct_points(pair.errors, pair.lengths[pck_threshold], alpha) for pair in pairs]),
    )


def absent_points(predictions: Sequence[Prediction]) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Peak and cycle error of every point that its target does not show; whatever was predicted for it is wrong."""
    peaks = np.concatenate([prediction.absent_peak for prediction in predictions])
    cycle_errors = np.concatenate([prediction.absent_cycle_error for prediction in predictions])
    return peaks.astype(np.float64), cycle_errors.astype(np.float64)


def pair_scores(
    predictions: Sequence[Prediction], pck_threshold: PckThreshold, alpha: float, frame: Size | None = PUBLISHED_FRAME
) -> Float[np.ndarray, " n"]:
    """PCK of each pair, in percent."""
    return np.array([100 * pair.mean() for pair in correct_by_pair(predictions, pck_threshold, alpha, frame)])


def tolerance_px(
    prediction: Prediction, pck_threshold: PckThreshold, alpha: float, frame: Size | None = PUBLISHED_FRAME
) -> tuple[float, float]:
    """The largest error along x and along y, in pixels of the original target, with which a prediction is correct."""
    h, w = prediction.trg_size
    radius = alpha * _in_frame(prediction, frame).lengths[pck_threshold]
    frame_h, frame_w = frame or (h, w)
    return radius * w / frame_w, radius * h / frame_h


def rank_by_error(
    predictions: Sequence[Prediction], pck_threshold: PckThreshold, alpha: float, frame: Size | None = PUBLISHED_FRAME
) -> list[int]:
    """Indices of the predictions, lowest PCK first; of equal PCK, the larger mean error first."""
    scores = pair_scores(predictions, pck_threshold, alpha, frame)
    errors = []
    for prediction in predictions:
        radius = np.maximum(tolerance_px(prediction, pck_threshold, alpha, frame), 1e-9)
        offsets = (np.array(prediction.pred_kps) - prediction.trg_kps) / radius  # (n, 2), in tolerances
        errors.append(np.linalg.norm(offsets, axis=1).mean())
    return [int(index) for index in np.lexsort((-np.array(errors), scores))]


def _in_frame(prediction: Prediction, frame: Size | None) -> _ScoredPair:
    size = (prediction.trg_size[0], prediction.trg_size[1])
    new = frame or size
    true, predicted, twins = (
        rescale_px(np.array(kps), size, new)
        for kps in (prediction.trg_kps, prediction.pred_kps, twin_targets(prediction))
    )
    bbox = None
    if prediction.trg_bbox is not None:
        bbox = rescale_px(np.array(prediction.trg_bbox).reshape(2, 2), size, new).reshape(4)
    lengths = {threshold: reference_length(threshold, size=new, kps=true, bbox=bbox) for threshold in PCK_THRESHOLDS}
    return _ScoredPair(
        category=prediction.category,
        difficulty=prediction.difficulty,
        groups=groups_of(prediction),
        errors=point_errors(predicted, true),
        twin_errors=point_errors(predicted, twins),
        lengths={threshold: length for threshold, length in lengths.items() if length is not None},
    )


def _check_boxes(predictions: Sequence[Prediction], pairs: Sequence[_ScoredPair], pck_threshold: PckThreshold) -> None:
    for prediction, pair in zip(predictions, pairs, strict=True):
        if pck_threshold not in pair.lengths:
            raise InputError(f"pair {prediction.name} has no object box, which the threshold {pck_threshold!r} needs")


def _cell(
    group: Sequence[_ScoredPair], pck_threshold: PckThreshold, alpha: float, weights: Float[np.ndarray, "resamples n"]
) -> dict[str, Any]:
    correct = [correct_points(pair.errors, pair.lengths[pck_threshold], alpha) for pair in group]
    by_pair = np.array([100 * pair.mean() for pair in correct])
    counts = np.array([len(pair) for pair in correct])
    by_point = (weights @ (by_pair * counts)) / (weights @ counts)
    return {
        "per_pair": round(pck_per_pair(correct), 3),
        "per_point": round(pck_per_point(correct), 3),
        "ci95": [round(value, 3) for value in bootstrap_ci95(by_pair, weights)],
        "per_point_ci95": [round(float(value), 3) for value in np.percentile(by_point, [2.5, 97.5])],
    }


def _level(factor: str, pair: _ScoredPair) -> str | None:
    level = pair.difficulty.get(factor)
    return None if level is None else LEVELS[level]


def _level_order(name: str) -> tuple[int, str]:
    return (LEVELS.index(name) if name in LEVELS else 0, name)


def published_threshold(benchmark: str) -> PckThreshold:
    """The threshold of a benchmark's published PCK; ``img`` where the benchmark is not known."""
    return BENCHMARKS[benchmark].pck_threshold if benchmark in BENCHMARKS else "img"


def primary_metric(
    scores: Mapping[str, Any], arguments: Mapping[str, Any], pck_threshold: str = "auto"
) -> tuple[PckThreshold, str]:
    """The threshold and α to show where there is room for one number only.

    Args:
        scores: from :func:`score`.
        arguments: of the run that predicted, which name the benchmark.
        pck_threshold: one of those in ``scores``; ``auto`` for the published one of the benchmark, or ``img`` where
            that needs boxes that are missing.

    Returns:
        The threshold, and the α 0.1 or else the largest.
    """
    thresholds = list(scores["pck"])
    if pck_threshold == "auto":
        published = published_threshold(arguments.get("benchmark", ""))
        pck_threshold = published if published in thresholds else "img"
    if pck_threshold not in thresholds:
        raise InputError(
            f"threshold {pck_threshold!r}: not every pair has the object box that it needs; "
            f"choose one of {', '.join(thresholds)}"
        )
    alphas = list(scores["pck"][pck_threshold])
    return cast(PckThreshold, pck_threshold), "0.1" if "0.1" in alphas else alphas[-1]


def score_warnings(predictions: Sequence[Prediction], arguments: Mapping[str, Any]) -> list[str]:
    """What a reader of the scores should know: how crops were made, missing pairs or boxes, points outside an image."""
    found = []
    expected = arguments.get("n_pairs", len(predictions))
    if expected != len(predictions):
        found.append(f"unfinished: {len(predictions)} of {expected} pairs are predicted so far")
    if arguments.get("model", {}).get("coarse_to_fine", {}).get("region") == "points":
        which = "all keypoints of the source" if arguments.get("all_points") else "the points that both photos show"
        found.append(
            f"the crops of later passes are made around {which}; "
            "--set coarse_to_fine.region=object makes them without any points"
        )
    if arguments.get("unrelated"):
        found.append("the photos of each pair show different things: every match is wrong, and PCK means nothing")
    if arguments.get("try_mirrored"):
        mirrored = sum(prediction.mirrored for prediction in predictions)
        share = f"{100 * mirrored / len(predictions):.1f} %"
        found.append(f"matched with the mirrored source: {mirrored} of {len(predictions)} pairs, {share}")
    without = sum(prediction.trg_bbox is None for prediction in predictions)
    if without:
        found.append(f"no bbox threshold: {without} of {len(predictions)} pairs have no object box")
    outside = sum(
        not (0 <= x <= prediction.trg_size[1] and 0 <= y <= prediction.trg_size[0])
        for prediction in predictions
        for x, y in prediction.trg_kps
    )
    if outside:
        found.append(f"{outside} true keypoints lie outside their image (transformatcher data check names them)")
    return found


def write_scores(path: Path, scores: Mapping[str, Any]) -> Path:
    """Scores → a JSON file."""
    write_text(path, json.dumps(scores, indent=2) + "\n")
    return path


def scores_name(frame: Size | None, alphas: Sequence[float]) -> str:
    """The file name for scores in a protocol: ``scores.json`` for the published one, another for any other."""
    parts = ["scores"]
    if frame != PUBLISHED_FRAME:
        parts.append("original" if frame is None else f"{frame[0]}x{frame[1]}")
    if list(alphas) != list(ALPHAS):
        parts.append("alpha-" + "-".join(f"{alpha:g}" for alpha in alphas))
    return "-".join(parts) + ".json"


def parse_frame(text: str) -> Size | None:
    """``original`` → None, ``240`` → (240, 240), ``240x320`` → (240, 320), as (h, w)."""
    if text == "original":
        return None
    parts = text.lower().split("x")
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() and len(part) < 10 and int(part) > 0 for part in parts):
        raise InputError(f"frame {text!r}: expected 'original', a side such as 240, or HEIGHTxWIDTH")
    return int(parts[0]), int(parts[-1])


def parse_frames(text: str) -> list[Size | None]:
    """``all`` → the published frame and the original pixels; else one frame."""
    return [PUBLISHED_FRAME, None] if text == "all" else [parse_frame(text)]


def parse_alphas(values: Iterable[float]) -> list[float]:
    """Tolerances in rising order, each once; an error for one outside (0, 1]."""
    alphas = sorted(set(values))
    if not alphas or not all(0 < alpha <= 1 for alpha in alphas):
        raise InputError(f"alpha {', '.join(f'{alpha:g}' for alpha in alphas)}: tolerances lie between 0 and 1")
    return alphas

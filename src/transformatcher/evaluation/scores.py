"""Predictions → PCK in any protocol: by threshold and α, in total, by category and by difficulty."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Bool, Float

from transformatcher.coords import rescale_px
from transformatcher.data.benchmarks import BENCHMARKS, PckThreshold
from transformatcher.errors import InputError
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
from transformatcher.evaluation.stored import read_eval_arguments
from transformatcher.files import write_text
from transformatcher.schema import Size

SCORES = "scores.json"
PUBLISHED_FRAME: Size = (240, 240)


@dataclass(frozen=True)
class _ScoredPair:
    """One pair in the chosen frame: the errors of its points, and the length of each threshold that it has."""

    category: str
    difficulty: Mapping[str, int]
    errors: Float[np.ndarray, " n"]
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
        What ``scores.json`` holds. Each ``pck`` table is threshold → α → ``per_pair``, ``per_point`` and ``ci95``.
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
    }


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
    pairs = [_in_frame(prediction, frame) for prediction in predictions]
    _check_boxes(predictions, pairs, pck_threshold)
    return np.array([100 * correct_points(pair.errors, pair.lengths[pck_threshold], alpha).mean() for pair in pairs])


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
    true, predicted = (rescale_px(np.array(kps), size, new) for kps in (prediction.trg_kps, prediction.pred_kps))
    bbox = None
    if prediction.trg_bbox is not None:
        bbox = rescale_px(np.array(prediction.trg_bbox).reshape(2, 2), size, new).reshape(4)
    lengths = {threshold: reference_length(threshold, size=new, kps=true, bbox=bbox) for threshold in PCK_THRESHOLDS}
    return _ScoredPair(
        category=prediction.category,
        difficulty=prediction.difficulty,
        errors=point_errors(predicted, true),
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
    low, high = bootstrap_ci95(np.array([100 * pair.mean() for pair in correct]), weights)
    return {
        "per_pair": round(pck_per_pair(correct), 3),
        "per_point": round(pck_per_point(correct), 3),
        "ci95": [round(low, 3), round(high, 3)],
    }


def _level(factor: str, pair: _ScoredPair) -> str | None:
    level = pair.difficulty.get(factor)
    return None if level is None else LEVELS[level]


def _level_order(name: str) -> tuple[int, str]:
    return (LEVELS.index(name) if name in LEVELS else 0, name)


def published_threshold(benchmark: str) -> PckThreshold:
    """The threshold of a benchmark's published PCK; ``img`` where the benchmark is not known."""
    return BENCHMARKS[benchmark].pck_threshold if benchmark in BENCHMARKS else "img"


def primary_metric(scores: Mapping[str, Any], out: Path, pck_threshold: str = "auto") -> tuple[PckThreshold, str]:
    """The threshold and α to show where there is room for one number only.

    Args:
        scores: from :func:`score`.
        out: the folder of the predictions.
        pck_threshold: one of those in ``scores``; ``auto`` for the published one of the benchmark in ``out/run.json``,
            or ``img`` where that needs boxes that are missing.

    Returns:
        The threshold, and the α 0.1 or else the largest.
    """
    thresholds = list(scores["pck"])
    if pck_threshold == "auto":
        published = published_threshold(read_eval_arguments(out).get("benchmark", ""))
        pck_threshold = published if published in thresholds else "img"
    if pck_threshold not in thresholds:
        raise InputError(
            f"threshold {pck_threshold!r}: not every pair has the object box that it needs; "
            f"choose one of {', '.join(thresholds)}"
        )
    alphas = list(scores["pck"][pck_threshold])
    return cast(PckThreshold, pck_threshold), "0.1" if "0.1" in alphas else alphas[-1]


def score_warnings(predictions: Sequence[Prediction], out: Path) -> list[str]:
    """What a reader of the scores should know: how crops were made, missing pairs or boxes, points outside an image."""
    found = []
    arguments = read_eval_arguments(out)
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


def parse_alphas(values: Iterable[float]) -> list[float]:
    """Tolerances in rising order, each once; an error for one outside (0, 1]."""
    alphas = sorted(set(values))
    if not alphas or not all(0 < alpha <= 1 for alpha in alphas):
        raise InputError(f"alpha {', '.join(f'{alpha:g}' for alpha in alphas)}: tolerances lie between 0 and 1")
    return alphas

"""Predictions on disk → scores, under any protocol."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Bool, Float

from transformatcher.coords import rescale_px
from transformatcher.errors import InputError
from transformatcher.evaluation.metrics import (
    ALPHAS,
    KINDS,
    Kind,
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
from transformatcher.run_folder import read_arguments
from transformatcher.schema import Size

SCORES = "scores.json"
PUBLISHED_FRAME: Size = (240, 240)
PUBLISHED_KIND: Mapping[str, Kind] = {"spair": "bbox", "pfpascal": "img", "pfwillow": "bbox-kp", "coco": "bbox"}


@dataclass(frozen=True)
class _Scored:
    """One pair in the chosen frame: its errors, and the lengths they are measured against."""

    category: str
    difficulty: Mapping[str, int]
    errors: np.ndarray  # (n,)
    lengths: Mapping[Kind, float]


def score(
    predictions: Sequence[Prediction], *, frame: Size | None = PUBLISHED_FRAME, alphas: Sequence[float] = ALPHAS
) -> dict[str, Any]:
    """Predictions → PCK for every threshold kind and α, in all, by category and by difficulty.

    Args:
        predictions: of any benchmark; a kind is left out where a pair has no box for it.
        frame: the (h, w) every target is resized to before distances are taken, boxes with it (published numbers use
            240 × 240), or None for the original pixels.
        alphas: tolerances.
    """
    pairs = [_in_frame(prediction, frame) for prediction in predictions]
    kinds = [kind for kind in KINDS if all(kind in pair.lengths for pair in pairs)]
    factors = sorted({factor for pair in pairs for factor in pair.difficulty})

    def table(group: Sequence[_Scored]) -> dict[str, Any]:
        weights = bootstrap_weights(len(group))
        return {kind: {f"{alpha:g}": _cell(group, kind, alpha, weights) for alpha in alphas} for kind in kinds}

    def groups(key: Callable[[_Scored], str | None]) -> dict[str, Any]:
        names = sorted({name for pair in pairs if (name := key(pair)) is not None}, key=_level_order)
        return {name: table([pair for pair in pairs if key(pair) == name]) for name in names}

    return {
        "n_pairs": len(pairs),
        "n_points": sum(len(pair.errors) for pair in pairs),
        "frame": "original" if frame is None else f"{frame[0]}x{frame[1]}",
        "pck": table(pairs),
        "per_category": groups(lambda pair: pair.category),
        "difficulty": {factor: groups(partial(_level, factor)) for factor in factors},
    }


def judged_points(
    predictions: Sequence[Prediction], kind: Kind, alpha: float, frame: Size | None = PUBLISHED_FRAME
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Every predicted point of every pair: (sharpness, drift there and back, whether it is right)."""
    if any(len(prediction.drift) != len(prediction.peak) for prediction in predictions):
        raise InputError("these predictions do not say how far points drift there and back; run eval again")
    pairs = [_in_frame(prediction, frame) for prediction in predictions]
    if any(kind not in pair.lengths for pair in pairs):
        raise InputError(f"threshold {kind!r}: not every pair has the object box that it needs")
    right = [correct_points(pair.errors, pair.lengths[kind], alpha) for pair in pairs]
    return (
        np.concatenate([prediction.peak for prediction in predictions]),
        np.concatenate([prediction.drift for prediction in predictions]),
        np.concatenate(right),
    )


def absent_points(predictions: Sequence[Prediction]) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Every point that its target does not show: (sharpness, drift there and back) of what was found all the same."""
    peaks, drifts = ([getattr(p, f"absent_{name}") for p in predictions] for name in ("peak", "drift"))
    return np.concatenate(peaks).astype(np.float64), np.concatenate(drifts).astype(np.float64)


def pair_scores(
    predictions: Sequence[Prediction], kind: Kind, alpha: float, frame: Size | None = PUBLISHED_FRAME
) -> Float[np.ndarray, " n"]:
    """The PCK of each pair alone, in percent."""
    pairs = [_in_frame(prediction, frame) for prediction in predictions]
    missing = next((p.name for p, scored in zip(predictions, pairs, strict=True) if kind not in scored.lengths), None)
    if missing is not None:
        raise InputError(f"pair {missing} has no object box, which the threshold {kind!r} needs")
    return np.array([100 * correct_points(pair.errors, pair.lengths[kind], alpha).mean() for pair in pairs])


def tolerance_px(
    prediction: Prediction, kind: Kind, alpha: float, frame: Size | None = PUBLISHED_FRAME
) -> tuple[float, float]:
    """How far along (x, y), in pixels of the original target, a prediction may lie from the truth and be right."""
    h, w = prediction.trg_size
    radius = alpha * _in_frame(prediction, frame).lengths[kind]
    frame_h, frame_w = frame or (h, w)
    return radius * w / frame_w, radius * h / frame_h


def worst_first(
    predictions: Sequence[Prediction], kind: Kind, alpha: float, frame: Size | None = PUBLISHED_FRAME
) -> list[int]:
    """Places of the predictions, the lowest PCK first; of equal PCK, that with larger errors is worse."""
    scores = pair_scores(predictions, kind, alpha, frame)
    radii = [np.maximum(tolerance_px(one, kind, alpha, frame), 1e-9) for one in predictions]
    errors = [
        np.linalg.norm((np.array(one.pred_kps) - one.trg_kps) / radius, axis=1).mean()
        for one, radius in zip(predictions, radii, strict=True)
    ]
    return [int(place) for place in np.lexsort((-np.array(errors), scores))]


def _in_frame(prediction: Prediction, frame: Size | None) -> _Scored:
    size = (prediction.trg_size[0], prediction.trg_size[1])
    new = frame or size
    true, predicted = (rescale_px(np.array(kps), size, new) for kps in (prediction.trg_kps, prediction.pred_kps))
    bbox = None
    if prediction.trg_bbox is not None:
        bbox = rescale_px(np.array(prediction.trg_bbox).reshape(2, 2), size, new).reshape(4)
    lengths = {kind: reference_length(kind, size=new, kps=true, bbox=bbox) for kind in KINDS}
    return _Scored(
        category=prediction.category,
        difficulty=prediction.difficulty,
        errors=point_errors(predicted, true),
        lengths={kind: length for kind, length in lengths.items() if length is not None},
    )


def _cell(group: Sequence[_Scored], kind: Kind, alpha: float, weights: np.ndarray) -> dict[str, Any]:
    correct = [correct_points(pair.errors, pair.lengths[kind], alpha) for pair in group]
    low, high = bootstrap_ci95(np.array([100 * pair.mean() for pair in correct]), weights)
    return {
        "per_pair": round(pck_per_pair(correct), 3),
        "per_point": round(pck_per_point(correct), 3),
        "ci95": [round(low, 3), round(high, 3)],
    }


def _level(factor: str, pair: _Scored) -> str | None:
    level = pair.difficulty.get(factor)
    return None if level is None else LEVELS[level]


def _level_order(name: str) -> tuple[int, str]:
    return (LEVELS.index(name) if name in LEVELS else 0, name)


def headline(scores: Mapping[str, Any], out: Path, kind: str = "auto") -> tuple[Kind, str]:
    """The threshold kind and α to show where there is room for one: what the benchmark's publications use, and 0.1."""
    kinds = list(scores["pck"])
    if kind == "auto":
        kind = PUBLISHED_KIND.get(read_arguments(out).get("benchmark", ""), "img")
        kind = kind if kind in kinds else "img"
    if kind not in kinds:
        raise InputError(f"threshold {kind!r}: not every pair has the box it needs; choose one of {', '.join(kinds)}")
    alphas = list(scores["pck"][kind])
    return cast(Kind, kind), "0.1" if "0.1" in alphas else alphas[-1]


def remarks(predictions: Sequence[Prediction], out: Path) -> list[str]:
    """Sentences on what a reader of the scores should know."""
    found = []
    wanted = read_arguments(out).get("n_pairs", len(predictions))
    if wanted != len(predictions):
        found.append(f"unfinished: {len(predictions)} of {wanted} pairs are predicted so far")
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
    """The file for scores under a protocol: scores.json for the published one, a name of its own for any other."""
    parts = ["scores"]
    if frame != PUBLISHED_FRAME:
        parts.append("original" if frame is None else f"{frame[0]}x{frame[1]}")
    if list(alphas) != list(ALPHAS):
        parts.append("alpha-" + "-".join(f"{alpha:g}" for alpha in alphas))
    return "-".join(parts) + ".json"


def parse_frame(text: str) -> Size | None:
    """``original``, ``240`` or ``240x320`` (h × w) → a frame."""
    if text == "original":
        return None
    parts = text.lower().split("x")
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() and len(part) < 10 and int(part) > 0 for part in parts):
        raise InputError(f"frame {text!r}: expected 'original', a side such as 240, or HEIGHTxWIDTH")
    return int(parts[0]), int(parts[-1])


def parse_alphas(values: Iterable[float]) -> list[float]:
    """Tolerances in rising order, as parts of a length."""
    alphas = sorted(set(values))
    if not alphas or not all(0 < alpha <= 1 for alpha in alphas):
        raise InputError(f"alpha {', '.join(f'{alpha:g}' for alpha in alphas)}: tolerances lie between 0 and 1")
    return alphas

"""Predictions that eval saved → labelled points → a calibration, and how well it holds on other points."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from transformatcher.data.benchmarks import PckThreshold
from transformatcher.errors import InputError
from transformatcher.evaluation.predict import Prediction, read_predictions
from transformatcher.evaluation.reliability import Reliability, Roc, reliability, roc
from transformatcher.evaluation.scores import absent_points, labelled_points, published_threshold
from transformatcher.evaluation.stored import read_eval_arguments
from transformatcher.inference.calibration import (
    MATCH_THRESHOLD,
    Calibration,
    Calibrations,
    FineCalibration,
    fit_calibration,
    fit_fine_calibration,
)
from transformatcher.inference.cues import PAIR_CUES, POINT_CUES, PairCues, PointCues

FOLDS = 5
UNRELATED_WEIGHT = 0.1  # of a match between photos of different kinds, which few people ask for
TYPICAL_VARIANCE = 500.0  # summed over the labels of a set; half as much would double the weight of unrelated pairs
KEPT = 0.85  # share of the right matches that the threshold of ``absent_found_at_85`` keeps

AnyCalibration = Calibration | FineCalibration


@dataclass(frozen=True)
class CueSet:
    """What a model that matches in several passes knows of the points and pairs of a set."""

    point: Float[np.ndarray, "n 9"]  # see POINT_CUES in inference/cues.py
    absent: Float[np.ndarray, "m 9"]
    pair: Float[np.ndarray, "p 8"]  # see PAIR_CUES
    pair_of_point: Int[np.ndarray, " n"]
    pair_of_absent: Int[np.ndarray, " m"]
    category: Sequence[str]  # of each pair


@dataclass(frozen=True)
class LabelledSet:
    """All predicted points of a set; a point is right within α times a length of its target."""

    pck_threshold: PckThreshold  # which length that is
    alpha: float
    peak: Float[np.ndarray, " n"]  # in 0…1
    cycle_error: Float[np.ndarray, " n"]
    right: Bool[np.ndarray, " n"]
    absent: tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]  # peak and cycle error of points not on the target
    cues: CueSet | None = None
    unrelated: bool = False  # the photos of each pair show different kinds of things, so every match is wrong


@dataclass(frozen=True)
class CalibrationResult:
    """How well a calibration holds on a set."""

    figures: dict[str, Any]  # shares are percentages; None for what the set cannot tell
    bins: Reliability
    roc: Roc | None
    roc_with_absent: Roc | None


@dataclass(frozen=True)
class Confidences:
    """What a calibration says of a set."""

    points: Float[np.ndarray, " n"]
    absent: Float[np.ndarray, " m"]
    same_kind: Float[np.ndarray, " p"] = field(default_factory=lambda: np.zeros(0))


def read_sets(folders: Sequence[Path], alpha: float, pck_threshold: str = "auto") -> dict[str, LabelledSet]:
    """Folders that eval wrote → their points, by the folder's name, or by its path where two have one name."""
    folders = list(dict.fromkeys(folders))
    alike = len({folder.name for folder in folders}) < len(folders)
    return {str(folder) if alike else folder.name: _read_set(folder, alpha, pck_threshold) for folder in folders}


def _read_set(folder: Path, alpha: float, pck_threshold: str) -> LabelledSet:
    arguments, predictions = read_eval_arguments(folder), read_predictions(folder)
    if pck_threshold == "object":
        pck_threshold = "bbox-kp" if any(one.trg_bbox is None for one in predictions) else "bbox"
    elif pck_threshold == "auto":
        pck_threshold = published_threshold(arguments.get("benchmark", ""))
    threshold = cast(PckThreshold, pck_threshold)
    unrelated = bool(arguments.get("unrelated"))
    peak, cycle_error, right = labelled_points(predictions, threshold, alpha)
    return LabelledSet(
        threshold,
        alpha,
        peak,
        cycle_error,
        right & (not unrelated),
        absent_points(predictions),
        _read_cues(predictions),
        unrelated,
    )


def _read_cues(predictions: Sequence[Prediction]) -> CueSet | None:
    if not any(prediction.pair_cues for prediction in predictions):
        return None
    for p in predictions:
        if not (
            _is_table(p.cues, len(p.peak), len(POINT_CUES))
            and _is_table(p.absent_cues, len(p.absent_peak), len(POINT_CUES))
            and _is_table([p.pair_cues], 1, len(PAIR_CUES))
        ):
            raise InputError(
                f"{p.name}: predicted with cues of another version, or damaged; run transformatcher eval --overwrite"
            )
    point, absent, pair = (
        np.concatenate([np.array(rows, dtype=np.float64).reshape(-1, n) for rows in lists])
        for lists, n in (
            ([p.cues for p in predictions], len(POINT_CUES)),
            ([p.absent_cues for p in predictions], len(POINT_CUES)),
            ([p.pair_cues for p in predictions], len(PAIR_CUES)),
        )
    )
    numbers = np.arange(len(predictions))
    return CueSet(
        point,
        absent,
        pair,
        np.repeat(numbers, [len(p.cues) for p in predictions]),
        np.repeat(numbers, [len(p.absent_cues) for p in predictions]),
        [p.category for p in predictions],
    )


def _is_table(rows: Any, n: int, width: int) -> bool:
    """Whether these are n rows of finite numbers."""
    try:
        table = np.array(rows, dtype=np.float64)
    except (ValueError, TypeError):
        return False
    return (table.shape == (n, width) or n == table.size == 0) and bool(np.isfinite(table).all())


# ---------------------------------------------------------------- fitting


def fit_sets(sets: Mapping[str, LabelledSet]) -> AnyCalibration:
    """The calibration that fits the points of all sets best.

    For one pass it is fitted to the points that both photos show. For several passes absent points count as wrong, and
    sets of unrelated pairs tell what photos of different kinds look like.
    """
    name, first = " + ".join(Path(name).name for name in sets), next(iter(sets.values()))
    labelled = {"alpha": first.alpha, "pck_threshold": first.pck_threshold, "fitted_on": name}
    if _cues(sets) is None:
        peak, cycle_error, right = (
            np.concatenate([getattr(one, key) for one in sets.values()]) for key in ("peak", "cycle_error", "right")
        )
        return fit_calibration(peak, cycle_error, right, **labelled)  # type: ignore[arg-type]
    return fit_fine_calibration(*_fine_cases(sets, lambda _: True), **labelled)  # type: ignore[arg-type]


def cross_validate(
    sets: Mapping[str, LabelledSet], others: Mapping[str, LabelledSet] | None = None
) -> dict[str, Confidences]:
    """What calibrations say of points that they were not fitted to: those of each fold of categories, by the others.

    Sets of one pass are not cross-validated: three numbers cannot adapt to thousands of points.

    Args:
        sets: that are fitted.
        others: that are not fitted. Their points, too, get a calibration that was not fitted to their category; those
            of a category that no fitted set has get the one that was fitted to all.
    """
    whole, judged = fit_sets(sets), {**sets, **(others or {})}
    results = {name: confidences(whole, points) for name, points in judged.items()}
    if _cues(sets) is None:
        return results
    categories = sorted({category for cues in _cues(sets) or [] for category in cues.category})
    fold_of = {category: number % FOLDS for number, category in enumerate(categories)}
    if len(categories) < FOLDS:
        raise InputError(
            f"cross-validation needs at least {FOLDS} categories; these predictions have {len(categories)}"
        )
    for fold in range(FOLDS):
        kept = {category for category, number in fold_of.items() if number != fold}
        calibration = fit_fine_calibration(*_fine_cases(sets, kept.__contains__))
        for name, points in judged.items():
            assert points.cues is not None
            values, before = confidences(calibration, points), results[name]
            chosen = np.array([fold_of.get(category) == fold for category in points.cues.category])
            results[name] = Confidences(
                np.where(chosen[points.cues.pair_of_point], values.points, before.points),
                np.where(chosen[points.cues.pair_of_absent], values.absent, before.absent),
                np.where(chosen, values.same_kind, before.same_kind),
            )
    return results


def _cues(sets: Mapping[str, LabelledSet]) -> list[CueSet] | None:
    cues = [points.cues for points in sets.values()]
    if any(one is None for one in cues) and any(one is not None for one in cues):
        without = next(name for name, points in sets.items() if points.cues is None)
        raise InputError(f"{without}: predicted in one pass, but other folders in several; calibrate them separately")
    return None if cues[0] is None else [one for one in cues if one is not None]


def _fine_cases(
    sets: Mapping[str, LabelledSet], keep: Callable[[str], bool]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The cases of both regressions, as :func:`fit_fine_calibration` takes them, of the categories to ``keep``."""
    x, right, weight, pair, same_kind = [], [], [], [], []
    for points in sets.values():
        cues = points.cues
        assert cues is not None
        kept = np.array([keep(category) for category in cues.category])
        pair_of = np.concatenate([cues.pair_of_point, cues.pair_of_absent])
        values = np.concatenate([np.concatenate([cues.point, cues.absent]), cues.pair[pair_of]], axis=1)
        labels = np.concatenate([points.right, np.zeros(len(cues.absent), dtype=bool)])
        rows = kept[pair_of]
        x.append(values[rows])
        right.append(labels[rows])
        weight.append(np.full(rows.sum(), UNRELATED_WEIGHT if points.unrelated else _set_weight(labels)))
        pair.append(cues.pair[kept])
        same_kind.append(np.full(kept.sum(), not points.unrelated))
    return tuple(np.concatenate(parts) for parts in (x, right, weight, pair, same_kind))  # type: ignore[return-value]


def _set_weight(labels: Bool[np.ndarray, " n"]) -> float:
    """The weight of each point of a set, such that the variance of its labels adds up to the same for all sets.

    Else an easy set, with few wrong matches to learn from, would be calibrated by what is found on a hard one.
    """
    return TYPICAL_VARIANCE / max(len(labels) * float(labels.var()), 1.0)


def confidences(calibration: AnyCalibration, points: LabelledSet) -> Confidences:
    """What a calibration says of the points of a set."""
    if isinstance(calibration, Calibration):
        return Confidences(calibration(points.peak, points.cycle_error), calibration(*points.absent))
    cues = points.cues
    if cues is None:
        raise InputError("predictions of one pass tell nothing about a calibration for several")
    pair = torch.from_numpy(cues.pair)
    on_target, absent = (
        calibration.right(PointCues(torch.from_numpy(values)[:, None]), PairCues(pair[pair_of]))[:, 0].numpy()
        for values, pair_of in ((cues.point, cues.pair_of_point), (cues.absent, cues.pair_of_absent))
    )
    return Confidences(on_target, absent, calibration.same_kind(PairCues(pair)).numpy())


# ---------------------------------------------------------------- measuring


def evaluate_calibration(points: LabelledSet, found: Confidences) -> CalibrationResult:
    """Calibration error and ROC curve of the confidence, beside those of the peak and of the cycle error alone."""
    right, confidence, absent = points.right, found.points, found.absent
    bins, curve = reliability(confidence, right), _roc(confidence, right)
    kept = confidence >= MATCH_THRESHOLD
    everything = np.concatenate([confidence, absent])
    labels = np.concatenate([right, np.zeros(len(absent), dtype=bool)])  # any match of an absent point is wrong
    with_absent = _roc(everything, labels) if len(absent) else None
    figures = {
        "threshold": points.pck_threshold,
        "alpha": points.alpha,
        "points": len(right),
        "right": round(100 * right.mean(), 1),
        "calibration_error": round(bins.error, 4),
        "auc": _area(curve),
        "auc_sharpness_alone": _area(_roc(points.peak, right)),
        "auc_consistency_alone": _area(_roc(-points.cycle_error, right)),
        "found": round(100 * kept.mean(), 1),
        "right_of_found": round(100 * right[kept].mean(), 1) if kept.any() else None,
        "absent": len(absent),
        "absent_found": _percent(absent >= MATCH_THRESHOLD),
        "absent_found_at_85": _percent(absent >= np.quantile(confidence[right], 1 - KEPT)) if right.any() else None,
        "calibration_error_with_absent": round(reliability(everything, labels).error, 4) if len(absent) else None,
        "auc_with_absent": _area(with_absent),
    }
    return CalibrationResult(figures, bins, curve, with_absent)


def evaluate_same_kind(sets: Mapping[str, LabelledSet], found: Mapping[str, Confidences]) -> dict[str, Any] | None:
    """How well pairs of one kind are told from unrelated ones, over all sets; None if the sets hold only one sort."""
    probability = np.concatenate([found[name].same_kind for name in sets])
    labels = np.concatenate([np.full(len(found[name].same_kind), not sets[name].unrelated) for name in sets])
    if not len(labels) or labels.all() or not labels.any():
        return None
    return {
        "pairs": int(labels.sum()),
        "unrelated": int((~labels).sum()),
        "auc": round(roc(probability, labels).area, 4),
        "calibration_error": round(reliability(probability, labels).error, 4),
        "pairs_taken_for_unrelated": _percent(probability[labels] < MATCH_THRESHOLD),
        "unrelated_taken_for_pairs": _percent(probability[~labels] >= MATCH_THRESHOLD),
    }


def _roc(confidence: np.ndarray, right: np.ndarray) -> Roc | None:
    return None if right.all() or not right.any() else roc(confidence, right)


def _area(curve: Roc | None) -> float | None:
    return None if curve is None else round(curve.area, 4)


def _percent(flags: Bool[np.ndarray, " n"]) -> float | None:
    return round(100 * flags.mean(), 1) if len(flags) else None


def with_fit(before: Calibrations, calibration: AnyCalibration) -> Calibrations:
    """A checkpoint's calibrations with one of them replaced."""
    if isinstance(calibration, Calibration):
        return replace(before, one_pass=calibration)
    return replace(before, coarse_to_fine=calibration)

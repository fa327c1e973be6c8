"""Predictions that eval saved → labelled points → how well a calibration holds on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from transformatcher.data.benchmarks import PckThreshold
from transformatcher.evaluation.predict import read_predictions
from transformatcher.evaluation.reliability import Reliability, Roc, reliability, roc
from transformatcher.evaluation.scores import absent_points, labelled_points, published_threshold
from transformatcher.inference.calibration import MATCH_THRESHOLD, Calibration, fit_calibration
from transformatcher.run_folder import read_arguments


@dataclass(frozen=True)
class LabelledSet:
    """All predicted points of a set; a point is right within α times the benchmark's published threshold."""

    pck_threshold: PckThreshold
    alpha: float
    peak: Float[np.ndarray, " n"]  # in 0…1
    cycle_error: Float[np.ndarray, " n"]
    right: Bool[np.ndarray, " n"]
    absent: tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]  # peak and cycle error of points not on the target


@dataclass(frozen=True)
class CalibrationResult:
    """How well a calibration holds on a set."""

    figures: dict[str, Any]  # shares are percentages; None for what needs absent points, where there are none
    bins: Reliability
    roc: Roc
    roc_with_absent: Roc | None


def read_sets(folders: Sequence[Path], alpha: float) -> dict[str, LabelledSet]:
    """Folders that eval wrote → their points, by the folder's name, or by its path where two have one name."""
    folders = list(dict.fromkeys(folders))
    alike = len({folder.name for folder in folders}) < len(folders)
    sets = {}
    for folder in folders:
        threshold = published_threshold(read_arguments(folder).get("benchmark", ""))
        predictions = read_predictions(folder)
        points = labelled_points(predictions, threshold, alpha)
        name = str(folder) if alike else folder.name
        sets[name] = LabelledSet(threshold, alpha, *points, absent_points(predictions))
    return sets


def fit_set(points: LabelledSet, fitted_on: str) -> Calibration:
    """The calibration that fits these points best; ``fitted_on`` is their name."""
    return fit_calibration(
        points.peak, points.cycle_error, points.right,
        alpha=points.alpha, pck_threshold=points.pck_threshold, fitted_on=fitted_on,
    )  # fmt: skip


def evaluate_calibration(calibration: Calibration, points: LabelledSet) -> CalibrationResult:
    """Calibration error and ROC curve of the confidence, beside those of the peak and of the cycle error alone."""
    right, confidence = points.right, calibration(points.peak, points.cycle_error)
    bins, curve = reliability(confidence, right), roc(confidence, right)
    kept = confidence >= MATCH_THRESHOLD
    absent = calibration(*points.absent)  # any match of a point that the target does not show is wrong
    with_absent = None
    if len(absent):
        labels = np.concatenate([right, np.zeros(len(absent), dtype=bool)])
        with_absent = roc(np.concatenate([confidence, absent]), labels)
    figures = {
        "threshold": points.pck_threshold,
        "alpha": points.alpha,
        "points": len(right),
        "right": round(100 * right.mean(), 1),
        "calibration_error": round(bins.error, 4),
        "auc": round(curve.area, 4),
        "auc_sharpness_alone": round(roc(points.peak, right).area, 4),
        "auc_consistency_alone": round(roc(-points.cycle_error, right).area, 4),
        "found": round(100 * kept.mean(), 1),
        "right_of_found": round(100 * right[kept].mean(), 1),
        "absent": len(absent),
        "absent_found": round(100 * (absent >= MATCH_THRESHOLD).mean(), 1) if len(absent) else None,
        "auc_with_absent": round(with_absent.area, 4) if with_absent else None,
    }
    return CalibrationResult(figures, bins, curve, with_absent)

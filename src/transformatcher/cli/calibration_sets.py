"""Predictions of several sets → a calibration fitted on the first, and figures of how well it holds on each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transformatcher.data.benchmarks import PckThreshold
from transformatcher.evaluation.predict import read_predictions
from transformatcher.evaluation.reliability import reliability, roc
from transformatcher.evaluation.scores import absent_points, labelled_points, published_threshold
from transformatcher.inference.calibration import MATCH_THRESHOLD, Calibration, fit_calibration
from transformatcher.run_folder import read_arguments

Reliability = tuple[list[float], list[float], list[float], list[float]]  # promised, kept, false alarms, hits
Roc = tuple[list[float], list[float]]  # false alarms, hits


@dataclass(frozen=True)
class LabelledSet:
    """All predicted points of a set; what is "right" follows the benchmark's published threshold."""

    pck_threshold: PckThreshold
    peak: np.ndarray  # (n,) in 0…1
    cycle_error: np.ndarray  # (n,) in [-1, 1]²
    right: np.ndarray  # (n,) bool
    absent: tuple[np.ndarray, np.ndarray]  # peak and cycle error of points that the target does not show


def read_sets(folders: Sequence[Path], alpha: float) -> dict[str, LabelledSet]:
    """Folders that eval wrote → their points, by the folder's name, or by its path where two have one name."""
    folders = list(dict.fromkeys(folders))
    alike = len({folder.name for folder in folders}) < len(folders)
    sets = {}
    for folder in folders:
        pck_threshold = published_threshold(read_arguments(folder).get("benchmark", ""))
        predictions = read_predictions(folder)
        points = labelled_points(predictions, pck_threshold, alpha)
        sets[str(folder) if alike else folder.name] = LabelledSet(pck_threshold, *points, absent_points(predictions))
    return sets


def fit(points: LabelledSet, alpha: float, fitted_on: str) -> Calibration:
    """The calibration that fits these points best."""
    return fit_calibration(
        points.peak,
        points.cycle_error,
        points.right,
        alpha=alpha,
        pck_threshold=points.pck_threshold,
        fitted_on=fitted_on,
    )  # fmt: skip


def evaluate_sets(
    calibration: Calibration, sets: Mapping[str, LabelledSet], alpha: float
) -> tuple[dict[str, dict[str, Any]], dict[str, Reliability], dict[str, Roc]]:
    """How well a calibration holds: figures, reliability and ROC curves, ROC curves with absent points, by set."""
    report: dict[str, dict[str, Any]] = {}
    curves: dict[str, Reliability] = {}
    curves_with_absent: dict[str, Roc] = {}
    for name, points in sets.items():
        right, confidence = points.right, calibration(points.peak, points.cycle_error)
        bins, trade_off = reliability(confidence, right), roc(confidence, right)
        kept = confidence >= MATCH_THRESHOLD
        report[name] = {
            "threshold": points.pck_threshold, "alpha": alpha,
            "points": len(right), "right": round(100 * right.mean(), 1),
            "calibration_error": round(bins.error, 4), "auc": round(trade_off.area, 4),
            "auc_sharpness_alone": round(roc(points.peak, right).area, 4),
            "auc_consistency_alone": round(roc(-points.cycle_error, right).area, 4),
            "found": round(100 * kept.mean(), 1), "right_of_found": round(100 * right[kept].mean(), 1),
        }  # fmt: skip
        curves[name] = (
            bins.confidence.tolist(), bins.accuracy.tolist(),
            trade_off.false_positive_rate.tolist(), trade_off.true_positive_rate.tolist(),
        )  # fmt: skip
        lost = calibration(*points.absent)  # any match of a point that the target does not show is wrong
        report[name] |= {"absent": len(lost), "absent_found": None, "auc_with_absent": None}
        if len(lost):
            both = roc(np.concatenate([confidence, lost]), np.concatenate([right, np.zeros(len(lost), dtype=bool)]))
            report[name] |= {
                "absent_found": round(100 * (lost >= MATCH_THRESHOLD).mean(), 1),
                "auc_with_absent": round(both.area, 4),
            }
            curves_with_absent[name] = both.false_positive_rate.tolist(), both.true_positive_rate.tolist()
    return report, curves, curves_with_absent

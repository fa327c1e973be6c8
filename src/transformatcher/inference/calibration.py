"""How sharp a match is, and whether it finds back → the probability that it is right."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from transformatcher.errors import InputError
from transformatcher.files import read_json, write_text

CALIBRATION = "calibration.json"  # beside a checkpoint's weights
MIN_CYCLE_ERROR = 0.02  # drifts below this, in [-1, 1]², are all alike: a fraction of a cell


@dataclass(frozen=True)
class Calibration:
    """``confidence = σ(bias + sharpness · log peak + consistency · log drift)``.

    ``peak`` is the probability of the best target cell; ``drift`` how far from itself, in [-1, 1]², a point arrives
    when it is carried to the target and back.
    """

    bias: float
    sharpness: float
    consistency: float
    alpha: float = 0.1  # right means: within this part of …
    kind: str = "img"  # … this length (see metrics.py)
    fitted_on: str = ""

    def __call__(self, peak: Float[np.ndarray, " n"], drift: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Sharpness and drift of matches → the probability of each to be right."""
        score = _features(peak, drift) @ np.array([self.bias, self.sharpness, self.consistency])
        return np.exp(-np.logaddexp(0, -score))  # the sigmoid, which overflows nowhere


def _features(peak: Float[np.ndarray, " n"], drift: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n 3"]:
    return np.stack([np.ones_like(peak), np.log(peak.clip(1e-6)), np.log(drift.clip(MIN_CYCLE_ERROR))], axis=1)


def fit_calibration(
    peak: Float[np.ndarray, " n"],
    drift: Float[np.ndarray, " n"],
    right: Bool[np.ndarray, " n"],
    *,
    alpha: float = 0.1,
    kind: str = "img",
    fitted_on: str = "",
) -> Calibration:
    """Logistic regression: the calibration under which what happened was likeliest."""
    if right.all() or not right.any():
        raise InputError(f"calibration needs right and wrong matches; all {len(right)} given are alike")
    from scipy.optimize import minimize  # half a second, which those who only use a calibration need not wait

    x, sign = _features(peak, drift), np.where(right, 1.0, -1.0)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        margin = sign * (x @ weights)
        gradient = -(x * (sign / (1 + np.exp(margin)))[:, None]).mean(axis=0)
        return float(np.logaddexp(0, -margin).mean()), gradient

    bias, sharpness, consistency = minimize(loss, np.zeros(3), jac=True, method="BFGS").x.tolist()
    return Calibration(bias, sharpness, consistency, alpha, kind, fitted_on)


def save_calibration(folder: Path, calibration: Calibration) -> Path:
    """Put a calibration beside the weights it belongs to."""
    write_text(folder / CALIBRATION, json.dumps(asdict(calibration), indent=2) + "\n")
    return folder / CALIBRATION


def load_calibration(folder: Path) -> Calibration | None:
    """The calibration of a checkpoint folder, if it has one."""
    path = folder / CALIBRATION
    if not path.is_file():
        return None
    values = read_json(path)
    try:
        calibration = Calibration(**values) if isinstance(values, Mapping) else Calibration(*values)
        numbers = [calibration.bias, calibration.sharpness, calibration.consistency, calibration.alpha]
        if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
            raise TypeError("not all of bias, sharpness, consistency and alpha are finite numbers")
    except (TypeError, OverflowError) as error:
        raise InputError(f"{path}: not a calibration ({error})") from error
    return calibration


# ---------------------------------------------------------------- how good a confidence is


@dataclass(frozen=True)
class Reliability:
    """Matches in bins of equal confidence: what was promised, and what came true."""

    promised: Float[np.ndarray, " bins"]  # mean confidence
    kept: Float[np.ndarray, " bins"]  # share that is right
    counts: Float[np.ndarray, " bins"]
    error: float  # mean distance of the two over all matches (ECE)


def reliability(confidence: Float[np.ndarray, " n"], right: Bool[np.ndarray, " n"], bins: int = 10) -> Reliability:
    """Confidence against the truth, in bins of equal width; empty ones are left out."""
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    counts = np.bincount(bin_of, minlength=bins).astype(float)
    filled = counts > 0
    promised = np.bincount(bin_of, confidence, bins)[filled] / counts[filled]
    kept = np.bincount(bin_of, right.astype(float), bins)[filled] / counts[filled]
    counts = counts[filled]
    return Reliability(promised, kept, counts, float((counts * abs(promised - kept)).sum() / counts.sum()))


@dataclass(frozen=True)
class Roc:
    """Right matches kept (hits) against wrong ones kept (false alarms), from the strictest threshold to none."""

    hits: Float[np.ndarray, " m"]
    false_alarms: Float[np.ndarray, " m"]
    area: float


def roc(confidence: Float[np.ndarray, " n"], right: Bool[np.ndarray, " n"]) -> Roc:
    """The trade-off of every threshold on confidence; matches of one confidence are kept or dropped together."""
    if right.all() or not right.any():
        raise InputError(f"a ROC needs right and wrong matches; all {len(right)} given are alike")
    order = np.argsort(-confidence, kind="stable")
    last_of_tie = np.append(np.diff(confidence[order]) != 0, True)
    hits = np.concatenate([[0.0], np.cumsum(right[order])[last_of_tie] / right.sum()])
    false_alarms = np.concatenate([[0.0], np.cumsum(~right[order])[last_of_tie] / (~right).sum()])
    area = float((np.diff(false_alarms) * (hits[1:] + hits[:-1]) / 2).sum())
    return Roc(hits, false_alarms, area)

"""Peak and cycle error of a match → the probability that it is right."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transformatcher.coords import Array
from transformatcher.errors import InputError
from transformatcher.files import read_json, write_text

CALIBRATION = "calibration.json"  # beside a checkpoint's weights
MATCH_THRESHOLD = 0.5  # a point whose match is more likely wrong than right counts as having no match
MIN_PEAK = 1e-6  # smaller peaks and cycle errors are raised to these values before their logarithm is taken
MIN_CYCLE_ERROR = 0.02  # in [-1, 1]²: a fraction of a cell, below which differences mean nothing


@dataclass(frozen=True)
class Calibration:
    """``confidence = σ(bias + sharpness · log peak + consistency · log cycle_error)``.

    ``peak`` is the probability of the best target cell. ``cycle_error`` is the distance in [-1, 1]² between a source
    point and its match taken back to the source.

    Example:
        >>> Calibration(bias=3.3, sharpness=2.3, consistency=-1.1)(np.array([0.4]), np.array([0.05])).round(2)
        array([0.99])
    """

    bias: float
    sharpness: float
    consistency: float
    alpha: float = 0.1  # a match is right if its error is at most this part of …
    pck_threshold: str = "img"  # … this length (see evaluation/metrics.py)
    fitted_on: str = ""

    def __call__(self, peak: Array, cycle_error: Array) -> Array:
        """Peaks and cycle errors, tensors or arrays of one shape → the probability of each match to be right."""
        if isinstance(peak, np.ndarray):
            return self(torch.tensor(peak), torch.tensor(cycle_error)).numpy()
        log_peak, log_error = _logarithms(peak, cycle_error)
        return (float(self.bias) + float(self.sharpness) * log_peak + float(self.consistency) * log_error).sigmoid()


def _logarithms(peak: Tensor, cycle_error: Tensor) -> tuple[Tensor, Tensor]:
    return peak.clamp(min=MIN_PEAK).log(), cycle_error.clamp(min=MIN_CYCLE_ERROR).log()


def is_match(confidence: Float[np.ndarray, " n"], calibration: Calibration | None) -> Bool[np.ndarray, " n"]:
    """Which points have a match: those at least as likely right as wrong. Without a calibration, all of them."""
    return confidence >= (-np.inf if calibration is None else MATCH_THRESHOLD)


def fit_calibration(
    peak: Float[np.ndarray, " n"],
    cycle_error: Float[np.ndarray, " n"],
    right: Bool[np.ndarray, " n"],
    *,
    alpha: float = 0.1,
    pck_threshold: str = "img",
    fitted_on: str = "",
) -> Calibration:
    """Logistic regression: the calibration that gives the observed matches the highest likelihood.

    Args:
        peak, cycle_error: of each match.
        right: whether its error is at most ``alpha`` times the length that ``pck_threshold`` names.
        alpha, pck_threshold: kept in the calibration.
        fitted_on: a name of the data, kept in the calibration.
    """
    if right.all() or not right.any():
        raise InputError(f"calibration needs right and wrong matches; all {len(right)} given are alike")
    from scipy.optimize import minimize  # takes half a second, and only fitting needs it

    logarithms = _logarithms(torch.tensor(peak), torch.tensor(cycle_error))
    x = np.stack([np.ones_like(peak), *(values.numpy() for values in logarithms)], axis=1)  # (n, 3)
    sign = np.where(right, 1.0, -1.0)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        margin = sign * (x @ weights)
        gradient = -(x * (sign / (1 + np.exp(margin)))[:, None]).mean(axis=0)
        return float(np.logaddexp(0, -margin).mean()), gradient

    bias, sharpness, consistency = minimize(loss, np.zeros(3), jac=True, method="BFGS").x.tolist()
    return Calibration(bias, sharpness, consistency, alpha, pck_threshold, fitted_on)


def save_calibration(folder: Path, calibration: Calibration) -> Path:
    """Write ``calibration.json`` into the folder of the checkpoint that it belongs to."""
    write_text(folder / CALIBRATION, json.dumps(asdict(calibration), indent=2) + "\n")
    return folder / CALIBRATION


def load_calibration(folder: Path) -> Calibration | None:
    """The calibration in a checkpoint folder; None if there is none."""
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

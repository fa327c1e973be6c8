"""Confidence of matches and whether they are right → calibration error and ROC curve."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from transformatcher.errors import InputError


@dataclass(frozen=True)
class Reliability:
    """Matches in bins of similar confidence: a calibrated confidence equals the accuracy in each bin."""

    confidence: Float[np.ndarray, " bins"]  # mean of the bin
    accuracy: Float[np.ndarray, " bins"]  # share of matches that are right
    counts: Float[np.ndarray, " bins"]
    error: float  # expected calibration error (ECE): the mean of |confidence - accuracy| over all matches


def reliability(confidence: Float[np.ndarray, " n"], right: Bool[np.ndarray, " n"], bins: int = 10) -> Reliability:
    """Compare confidence with accuracy, in bins of equal width; empty bins are left out.

    Example:
        >>> reliability(np.array([0.05, 0.95]), np.array([False, True])).error
        0.05
    """
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    counts = np.bincount(bin_of, minlength=bins).astype(float)
    filled = counts > 0
    means = np.bincount(bin_of, confidence, bins)[filled] / counts[filled]
    accuracy = np.bincount(bin_of, right.astype(float), bins)[filled] / counts[filled]
    counts = counts[filled]
    return Reliability(means, accuracy, counts, float((counts * abs(means - accuracy)).sum() / counts.sum()))


@dataclass(frozen=True)
class Roc:
    """The trade-off between right and wrong matches kept, from the strictest threshold on confidence to none."""

    true_positive_rate: Float[np.ndarray, " m"]
    false_positive_rate: Float[np.ndarray, " m"]
    area: float  # under the curve


def roc(confidence: Float[np.ndarray, " n"], right: Bool[np.ndarray, " n"]) -> Roc:
    """The ROC curve of confidence as a predictor of right matches; equal confidences share one threshold.

    Example:
        >>> roc(np.array([0.9, 0.2]), np.array([True, False])).area
        1.0
    """
    if right.all() or not right.any():
        raise InputError(f"a ROC curve needs right and wrong matches; all {len(right)} given are alike")
    order = np.argsort(-confidence, kind="stable")
    last_of_tie = np.append(np.diff(confidence[order]) != 0, True)
    true_positive = np.concatenate([[0.0], np.cumsum(right[order])[last_of_tie] / right.sum()])
    false_positive = np.concatenate([[0.0], np.cumsum(~right[order])[last_of_tie] / (~right).sum()])
    area = float((np.diff(false_positive) * (true_positive[1:] + true_positive[:-1]) / 2).sum())
    return Roc(true_positive, false_positive, area)

"""Predicted and true keypoints → PCK, in every protocol that publications use.

A keypoint is correct if its error is at most α · s. Publications differ in the length s, in the frame in which pixels
are counted, and in whether they average over pairs or over points; here each of these is an argument or a function.
"""

from collections.abc import Sequence
from typing import get_args

import numpy as np
from jaxtyping import Bool, Float

from transformatcher.data.benchmarks import PckThreshold
from transformatcher.schema import Size

PCK_THRESHOLDS: tuple[PckThreshold, ...] = get_args(PckThreshold)
ALPHAS = (0.01, 0.05, 0.1, 0.15)


def reference_length(
    pck_threshold: PckThreshold,
    *,
    size: Size,
    kps: Float[np.ndarray, "n 2"],
    bbox: Float[np.ndarray, "4"] | None,
) -> float | None:
    """The length s that α is a fraction of, in the pixels of the frame its arguments are given in.

    ``img``: the longer side of the target image, ``size`` (h, w).
    ``bbox``: that of the target's object box; None where the benchmark has no boxes.
    ``bbox-kp``: that of the tight box around the target's keypoints ``kps`` (all of them visible).
    ``bbox-padded``: the widely copied PF-WILLOW artefact. Code that pads the keypoint list with -2 and takes the box of
    the padded list measures from -2 to the largest coordinate; published "bbox" columns of PF-WILLOW are this.
    """
    if pck_threshold == "img":
        return float(max(size))
    if pck_threshold == "bbox":
        return None if bbox is None else float(max(bbox[2] - bbox[0], bbox[3] - bbox[1]))
    if pck_threshold == "bbox-kp":
        return float((kps.max(axis=0) - kps.min(axis=0)).max())
    return float(kps.max() + 2)


def point_errors(predicted: Float[np.ndarray, "n 2"], true: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, " n"]:
    """Euclidean distances."""
    return np.linalg.norm(predicted - true, axis=1)


def correct_points(errors: Float[np.ndarray, " n"], length: float, alpha: float) -> Bool[np.ndarray, " n"]:
    """Error ≤ α · s."""
    return errors <= alpha * length


def pck_per_pair(correct: Sequence[Bool[np.ndarray, " _"]]) -> float:
    """Share of correct points in each pair, averaged over the pairs, in percent."""
    return 100 * float(np.mean([pair.mean() for pair in correct]))


def pck_per_point(correct: Sequence[Bool[np.ndarray, " _"]]) -> float:
    """Share of correct points among all points of all pairs, in percent."""
    return 100 * float(np.concatenate(correct).mean())


def bootstrap_weights(n: int, resamples: int = 1000, seed: int = 0) -> Float[np.ndarray, "resamples n"]:
    """Row r: how often each of ``n`` items is drawn in resample r, divided by n. One matrix serves many metrics."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(n, np.full(n, 1 / n), size=resamples) / n


def bootstrap_ci95(values: Float[np.ndarray, " n"], weights: Float[np.ndarray, "resamples n"]) -> tuple[float, float]:
    """95 % percentile interval of the mean of ``values``."""
    low, high = np.percentile(weights @ values, [2.5, 97.5])
    return float(low), float(high)

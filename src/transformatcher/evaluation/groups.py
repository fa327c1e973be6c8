"""One prediction → the groups that it belongs to: by size of the object, and by how its keypoints are laid out."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float

from transformatcher.evaluation.predict import Prediction

# Longer side of the target's box, as a part of that of its photo: below 0.4, up to 0.7, above.
SIZES, SIZE_LIMITS = ("small", "medium", "large"), (0.4, 0.7)
# What is left of the keypoints' layout (see layout_change): below 0.25, up to 0.5, above.
LAYOUTS, LAYOUT_LIMITS = ("alike", "changed", "different"), (0.25, 0.5)
LEVELS_OF: Mapping[str, Sequence[str]] = {"object size": SIZES, "keypoint layout": LAYOUTS}


def groups_of(prediction: Prediction) -> dict[str, str]:
    """The level of a pair in each factor that can be computed for it.

    ``object size`` needs a box, ``keypoint layout`` at least three keypoints.

    Example:
        >>> groups_of(prediction)
        {'object size': 'small', 'keypoint layout': 'alike'}
    """
    found = {}
    if prediction.trg_bbox is not None:
        x0, y0, x1, y1 = prediction.trg_bbox
        found["object size"] = _level(max(x1 - x0, y1 - y0) / max(prediction.trg_size), SIZES, SIZE_LIMITS)
    change = layout_change(np.array(prediction.src_kps), np.array(prediction.trg_kps))
    if change is not None:
        found["keypoint layout"] = _level(change, LAYOUTS, LAYOUT_LIMITS)
    return found


def layout_change(src_kps: Float[np.ndarray, "n 2"], trg_kps: Float[np.ndarray, "n 2"]) -> float | None:
    """How differently the keypoints lie in both photos, in [0, 1]; None for fewer than three.

    The source's points are shifted, turned and scaled to fit the target's as well as they can (Procrustes, without
    mirroring). The distance that remains, relative to that without any fit but the shift, is near 0 for two photos from
    the same side, and large for photos from opposite sides or of another pose.
    """
    if len(src_kps) < 3:
        return None
    src, trg = (kps[:, 0] + 1j * kps[:, 1] for kps in (src_kps, trg_kps))  # a factor turns and scales all points
    src, trg = src - src.mean(), trg - trg.mean()
    norms = np.linalg.norm(src) * np.linalg.norm(trg)
    if norms == 0:
        return None
    return float(np.sqrt(max(0.0, 1 - (abs(np.vdot(src, trg)) / norms) ** 2)))


def twin_targets(prediction: Prediction) -> Float[np.ndarray, "n 2"]:
    """For each keypoint, where its twin on the other side is on the target; NaN where the target shows none."""
    points = np.array(prediction.trg_kps, dtype=np.float64)
    twins = np.array(prediction.twins or [-1] * len(points))
    return np.where(twins[:, None] >= 0, points[twins], np.nan)


def _level(value: float, names: Sequence[str], limits: Sequence[float]) -> str:
    return names[int(np.searchsorted(limits, value, side="right"))]


def describe_levels(factor: str) -> str:
    """What the levels of a factor mean, for a reader of a table."""
    named: dict[str, Any] = {
        "object size": ("longer side of the target's box / that of its photo", SIZES, SIZE_LIMITS),
        "keypoint layout": ("layout that no shift, turn and scale explains", LAYOUTS, LAYOUT_LIMITS),
    }
    what, names, limits = named[factor]
    edges = [0.0, *limits, 1.0]
    return f"{factor}: {what}, " + ", ".join(
        f"{name} {low:g} to {high:g}" for name, (low, high) in zip(names, pairwise(edges), strict=True)
    )

"""Calibrations whose weights are known."""

from collections.abc import Mapping

from transformatcher.inference.calibration import FineCalibration
from transformatcher.inference.cues import PAIR_CUES, POINT_CUES


def fine_calibration(
    right: Mapping[str, float] | None = None, kind: Mapping[str, float] | None = None
) -> FineCalibration:
    """A calibration for several passes; weights that are not named are 0."""
    zeros = dict.fromkeys(("bias", *PAIR_CUES), 0.0)
    return FineCalibration(dict.fromkeys(POINT_CUES, 0.0) | zeros | dict(right or {}), zeros | dict(kind or {}))

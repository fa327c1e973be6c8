"""How far an exported file is from its matcher."""

import numpy as np
import pytest

from transformatcher.inference.export_parity import (
    TOLERANCE,
    Parity,
    ParityError,
    check_parity,
    format_parity,
    measure_parity,
)
from transformatcher.inference.matcher import Matcher


def as_exported(matcher: Matcher, shift: float = 0.0, less: float = 0.0):
    """The matcher itself as an exported model, its first point moved and its first confidence lowered."""

    def run(src, trg, keypoints0):
        h, w = src.shape[1:3]
        outputs = []
        for one, other, points in zip(src, trg, keypoints0, strict=True):
            matches = matcher.match(one, other, ((points + 1) / 2 * (w, h)).clip(0, (w, h)))
            values = [matches.keypoints1 / (w, h) * 2 - 1, matches.confidence, matches.flow_px / (w, h) * 2 - 1]
            outputs.append((*values, matches.flow_confidence))
            values[0][0] += shift
            values[1][0] -= less
        return tuple(np.stack(values).astype(np.float32) for values in zip(*outputs, strict=True))

    return run


def test_points_and_cells_are_compared(matcher: Matcher):
    same = measure_parity(matcher, as_exported(matcher))
    assert same.flow_px < 1e-3
    assert same.confidence < 1e-3
    moved = measure_parity(matcher, as_exported(matcher, shift=0.5, less=0.25))
    assert moved.flow_px == pytest.approx(0.25 * 96 * 2**0.5, rel=1e-3)
    assert moved.confidence == pytest.approx(0.25, rel=1e-2)
    assert 0 < moved.flow_mean_px < moved.flow_px / 10


def test_a_difference_is_an_error_with_the_numbers(matcher: Matcher):
    assert check_parity(matcher, as_exported(matcher), TOLERANCE["float32"]).flow_px < 1e-3
    with pytest.raises(ParityError, match=r"34 px of flow at most.*at most 0\.1 px of flow.*nothing was written"):
        check_parity(matcher, as_exported(matcher, shift=0.5), TOLERANCE["float32"])


def test_numbers_without_a_limit_are_left_out():
    assert (
        format_parity(Parity(np.inf, 0.2, np.inf, 0.01)) == "0.2 px of flow on average, 0.01 of confidence on average"
    )

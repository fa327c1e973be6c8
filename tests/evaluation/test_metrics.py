"""PCK worked out by hand."""

import numpy as np
import pytest

from transformatcher.evaluation.metrics import (
    bootstrap_ci95,
    bootstrap_weights,
    correct_points,
    pck_per_pair,
    pck_per_point,
    point_errors,
    reference_length,
)

KPS = np.array([[30.0, 40.0], [90.0, 60.0], [50.0, 120.0]])


@pytest.mark.parametrize(
    ("pck_threshold", "length"),
    [
        ("img", 320.0),
        ("bbox", 110.0),  # 25 … 135 is longer than 20 … 100
        ("bbox-kp", 80.0),  # 40 … 120 is longer than 30 … 90
        ("bbox-padded", 122.0),  # 120 - (-2)
    ],
)
def test_reference_lengths(pck_threshold, length):
    box = np.array([20.0, 25.0, 100.0, 135.0])
    assert reference_length(pck_threshold, size=(240, 320), kps=KPS, bbox=box) == length


def test_no_box_no_bbox_threshold():
    assert reference_length("bbox", size=(240, 320), kps=KPS, bbox=None) is None


def test_padded_artefact_is_what_a_padded_array_gives():
    """The bug itself: a box around a keypoint list of fixed length, filled up with -2."""
    padded = np.full((40, 2), -2.0)
    padded[: len(KPS)] = KPS
    buggy = (padded.max(axis=0) - padded.min(axis=0)).max()
    assert reference_length("bbox-padded", size=(1, 1), kps=KPS, bbox=None) == buggy


def test_the_threshold_itself_is_correct():
    errors = point_errors(np.array([[3.0, 4.0], [0.0, 5.1]]), np.zeros((2, 2)))
    assert errors.tolist() == [5.0, 5.1]
    assert correct_points(errors, length=50.0, alpha=0.1).tolist() == [True, False]


def test_means():
    correct = [np.array([True, False]), np.array([True, True, True, True])]
    assert pck_per_pair(correct) == pytest.approx(75.0)  # (50 + 100) / 2
    assert pck_per_point(correct) == pytest.approx(100 * 5 / 6)


def test_bootstrap_interval():
    values = np.array([0.0] * 50 + [100.0] * 50)
    low, high = bootstrap_ci95(values, bootstrap_weights(100))
    assert low == pytest.approx(50 - 1.96 * 5, abs=1.5)  # σ of the mean is 50/√100
    assert high == pytest.approx(50 + 1.96 * 5, abs=1.5)
    assert bootstrap_ci95(np.full(7, 30.0), bootstrap_weights(7)) == pytest.approx((30.0, 30.0))
    np.testing.assert_allclose(bootstrap_weights(9).sum(axis=1), 1)

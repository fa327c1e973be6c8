"""Calibration error and ROC curve, by hand."""

import numpy as np
import pytest

from transformatcher.errors import InputError
from transformatcher.evaluation.reliability import reliability, roc


def test_reliability_by_hand():
    found = reliability(np.array([0.05, 0.95, 0.95, 1.0]), np.array([False, True, True, False]))
    np.testing.assert_allclose(found.confidence, [0.05, 2.9 / 3])
    np.testing.assert_allclose(found.accuracy, [0, 2 / 3])
    np.testing.assert_allclose(found.counts, [1, 3])
    assert found.error == pytest.approx((0.05 + 3 * 0.3) / 4)


def test_roc_area_is_the_chance_that_right_beats_wrong():
    rng = np.random.default_rng(1)
    confidence, right = rng.integers(0, 10, 300) / 10, rng.random(300) < 0.4
    pairs = confidence[right][:, None] - confidence[~right][None, :]
    chance = (pairs > 0).mean() + 0.5 * (pairs == 0).mean()
    found = roc(confidence, right)
    assert found.area == pytest.approx(chance)
    assert (*found.true_positive_rate[[0, -1]], *found.false_positive_rate[[0, -1]]) == (0, 1, 0, 1)
    with pytest.raises(InputError, match="needs right and wrong"):
        roc(confidence, np.ones(300, dtype=bool))

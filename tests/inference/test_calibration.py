import json
from pathlib import Path

import numpy as np
import pytest

from transformatcher.errors import InputError
from transformatcher.inference.calibration import (
    CALIBRATION,
    Calibration,
    fit_calibration,
    load_calibration,
    reliability,
    roc,
    save_calibration,
)


def drawn(n: int = 20000) -> tuple[np.ndarray, np.ndarray, np.ndarray, Calibration]:
    """Matches whose truth is drawn from a known calibration."""
    rng = np.random.default_rng(0)
    truth = Calibration(bias=-1.0, sharpness=0.8, consistency=-1.5)
    peak, drift = rng.uniform(0.001, 0.9, n), rng.uniform(0.02, 1.0, n)
    return peak, drift, rng.random(n) < truth(peak, drift), truth


class TestCalibration:
    def test_the_truth_is_found_again(self):
        peak, drift, right, truth = drawn()
        fitted = fit_calibration(peak, drift, right)
        for name in ("bias", "sharpness", "consistency"):
            assert getattr(fitted, name) == pytest.approx(getattr(truth, name), abs=0.15)
        assert reliability(fitted(peak, drift), right).error < 0.02

    def test_sharper_and_steadier_is_surer(self):
        calibration = Calibration(bias=0.0, sharpness=1.0, consistency=-1.0)
        confidence = calibration(np.array([0.1, 0.5, 0.5]), np.array([0.5, 0.5, 0.1]))
        assert (np.diff(confidence) > 0).all()
        assert ((confidence > 0) & (confidence < 1)).all()

    def test_extremes_stay_finite(self):
        calibration = Calibration(bias=0.0, sharpness=1.0, consistency=-1.0)
        assert np.isfinite(calibration(np.array([0.0, 1.0]), np.array([0.0, 3.0]))).all()

    def test_round_trip(self, tmp_path: Path):
        calibration = Calibration(1.0, 2.0, -3.0, 0.1, "img", "somewhere")
        assert load_calibration(tmp_path) is None
        save_calibration(tmp_path, calibration)
        assert load_calibration(tmp_path) == calibration

    def test_errors(self, tmp_path: Path):
        with pytest.raises(InputError, match="all 3 given are alike"):
            fit_calibration(np.ones(3), np.ones(3), np.ones(3, dtype=bool))
        (tmp_path / CALIBRATION).write_text(json.dumps({"slope": 1}))
        with pytest.raises(InputError, match=r"calibration\.json: not a calibration"):
            load_calibration(tmp_path)


class TestJudging:
    def test_reliability_by_hand(self):
        found = reliability(np.array([0.05, 0.95, 0.95, 1.0]), np.array([False, True, True, False]))
        np.testing.assert_allclose(found.promised, [0.05, 2.9 / 3])
        np.testing.assert_allclose(found.kept, [0, 2 / 3])
        np.testing.assert_allclose(found.counts, [1, 3])
        assert found.error == pytest.approx((0.05 + 3 * 0.3) / 4)

    def test_roc_area_is_the_chance_that_right_beats_wrong(self):
        rng = np.random.default_rng(1)
        confidence, right = rng.integers(0, 10, 300) / 10, rng.random(300) < 0.4
        pairs = confidence[right][:, None] - confidence[~right][None, :]
        chance = (pairs > 0).mean() + 0.5 * (pairs == 0).mean()
        found = roc(confidence, right)
        assert found.area == pytest.approx(chance)
        assert (found.hits[0], found.false_alarms[0], found.hits[-1], found.false_alarms[-1]) == (0, 0, 1, 1)
        with pytest.raises(InputError, match="needs right and wrong"):
            roc(confidence, np.ones(300, dtype=bool))

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from transformatcher.errors import InputError
from transformatcher.evaluation.reliability import reliability
from transformatcher.inference.calibration import (
    CALIBRATION,
    Calibration,
    fit_calibration,
    is_match,
    load_calibration,
    save_calibration,
)


def drawn(n: int = 20000) -> tuple[np.ndarray, np.ndarray, np.ndarray, Calibration]:
    """Matches whose truth is drawn from a known calibration."""
    rng = np.random.default_rng(0)
    truth = Calibration(bias=-1.0, sharpness=0.8, consistency=-1.5)
    peak, cycle_error = rng.uniform(0.001, 0.9, n), rng.uniform(0.02, 1.0, n)
    return peak, cycle_error, rng.random(n) < truth(peak, cycle_error), truth


class TestCalibration:
    def test_the_truth_is_found_again(self):
        peak, cycle_error, right, truth = drawn()
        fitted = fit_calibration(peak, cycle_error, right)
        for name in ("bias", "sharpness", "consistency"):
            assert getattr(fitted, name) == pytest.approx(getattr(truth, name), abs=0.15)
        assert reliability(fitted(peak, cycle_error), right).error < 0.02

    def test_sharper_and_steadier_is_surer(self):
        calibration = Calibration(bias=0.0, sharpness=1.0, consistency=-1.0)
        confidence = calibration(np.array([0.1, 0.5, 0.5]), np.array([0.5, 0.5, 0.1]))
        assert (np.diff(confidence) > 0).all()
        assert ((confidence > 0) & (confidence < 1)).all()

    def test_the_formula_on_arrays_and_tensors(self):
        calibration = Calibration(bias=1.0, sharpness=0.5, consistency=-2.0)
        peak, cycle_error = np.array([[0.3, 1e-9], [0.5, 1.0]]), np.array([[0.1, 0.3], [1e-5, 2.0]])
        score = 1 + 0.5 * np.log(peak.clip(1e-6)) - 2 * np.log(cycle_error.clip(0.02))
        np.testing.assert_allclose(calibration(peak, cycle_error), 1 / (1 + np.exp(-score)), rtol=1e-14)
        for dtype, tolerance in ((torch.float64, 1e-14), (torch.float32, 1e-5)):
            confidence = calibration(torch.tensor(peak, dtype=dtype), torch.tensor(cycle_error, dtype=dtype))
            assert confidence.dtype == dtype
            np.testing.assert_allclose(confidence.numpy(), 1 / (1 + np.exp(-score)), rtol=tolerance)

    def test_without_a_calibration_all_points_have_a_match(self):
        confidence = np.array([0.0, 0.4999, 0.5, 1.0])
        assert is_match(confidence, None).all()
        assert is_match(confidence, Calibration(0.0, 1.0, 0.0)).tolist() == [False, False, True, True]

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

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.calibration import fine_calibration
from pydantic import ValidationError

from transformatcher.errors import InputError
from transformatcher.evaluation.reliability import reliability
from transformatcher.inference.calibration import (
    CALIBRATION,
    Calibration,
    Calibrations,
    FineCalibration,
    fit_calibration,
    fit_fine_calibration,
    is_match,
    load_calibration,
    logistic_regression,
    save_calibration,
)
from transformatcher.inference.cues import PAIR_CUES, POINT_CUES, PairCues, PointCues


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
        assert is_match(confidence, calibrated=False).all()
        assert is_match(confidence, calibrated=True).tolist() == [False, False, True, True]

    def test_extremes_stay_finite(self):
        calibration = Calibration(bias=0.0, sharpness=1.0, consistency=-1.0)
        assert np.isfinite(calibration(np.array([0.0, 1.0]), np.array([0.0, 3.0]))).all()

    def test_errors(self):
        with pytest.raises(InputError, match="all 3 given are alike"):
            fit_calibration(np.ones(3), np.ones(3), np.ones(3, dtype=bool))


def test_logistic_regression_weights_cases_and_pulls_towards_zero():
    rng = np.random.default_rng(0)
    x = rng.normal(5.0, 3.0, (4000, 2))
    right = rng.random(4000) < 1 / (1 + np.exp(-(x @ [1.0, -0.5] - 2)))
    bias, first, second = logistic_regression(x, right)
    assert (bias, first, second) == pytest.approx((-2, 1, -0.5), abs=0.3)
    twice = logistic_regression(np.concatenate([x, x[:2000]]), np.concatenate([right, right[:2000]]))
    weight = np.where(np.arange(4000) < 2000, 2.0, 1.0)
    np.testing.assert_allclose(logistic_regression(x, right, weight), twice, rtol=1e-3)
    assert abs(logistic_regression(x, right, ridge=1.0)[1]) < 0.5 * first


class TestFineCalibration:
    def test_the_probability_of_points_and_pairs(self):
        calibration = fine_calibration(right={"bias": 0.5, "gap": 2.0, "pooled_deep": -1.0}, kind={"pair_gap": 3.0})
        points, pair = torch.zeros(1, 2, len(POINT_CUES)), torch.zeros(1, len(PAIR_CUES))
        points[0, 1, POINT_CUES.index("gap")] = 1.5
        pair[0, PAIR_CUES.index("pooled_deep")] = 0.25
        pair[0, PAIR_CUES.index("pair_gap")] = -1.0
        expected = torch.tensor([[0.5 - 0.25, 0.5 + 3.0 - 0.25]]).sigmoid()
        torch.testing.assert_close(calibration.right(PointCues(points), PairCues(pair)), expected)
        torch.testing.assert_close(calibration.same_kind(PairCues(pair)), torch.tensor([-3.0]).sigmoid())

    def test_weights_of_other_names_are_refused(self):
        with pytest.raises(ValidationError, match="weights must be named bias, log_peak"):
            FineCalibration({"bias": 1.0}, {"bias": 0.0})

    def test_the_truth_is_found_again(self):
        rng = np.random.default_rng(0)
        names = (*POINT_CUES, *PAIR_CUES)
        cues, pair_cues = rng.normal(size=(6000, len(names))), rng.normal(size=(500, len(PAIR_CUES)))
        gap, deep = cues[:, names.index("gap")], cues[:, names.index("pooled_deep")]
        right = rng.random(6000) < 1 / (1 + np.exp(-(1.5 * gap - deep)))
        same = rng.random(500) < 1 / (1 + np.exp(-3 * pair_cues[:, 0]))
        fitted = fit_fine_calibration(cues, right, np.ones(6000), pair_cues, same, fitted_on="here")
        assert fitted.right_weights["gap"] == pytest.approx(1.5, abs=0.15)
        assert fitted.right_weights["pooled_deep"] == pytest.approx(-1, abs=0.15)
        assert fitted.same_kind_weights["pair_log_peak"] == pytest.approx(3, abs=1)
        assert (fitted.alpha, fitted.pck_threshold, fitted.fitted_on) == (0.1, "bbox", "here")

    def test_without_unrelated_pairs_all_are_of_one_kind(self):
        rng = np.random.default_rng(0)
        points, pairs = rng.normal(size=(50, len(POINT_CUES) + len(PAIR_CUES))), rng.normal(size=(9, len(PAIR_CUES)))
        fitted = fit_fine_calibration(points, rng.random(50) < 0.5, np.ones(50), pairs, np.ones(9, bool))
        assert (fitted.same_kind(PairCues(torch.randn(4, len(PAIR_CUES)))) > 0.999).all()


class TestFiles:
    def test_round_trip(self, tmp_path: Path):
        assert load_calibration(tmp_path) == Calibrations()
        for calibrations in (
            Calibrations(Calibration(1.0, 2.0, -3.0, 0.1, "img", "somewhere")),
            Calibrations(None, fine_calibration()),
            Calibrations(Calibration(1.0, 2.0, -3.0), fine_calibration(right={"gap": 2.0})),
        ):
            save_calibration(tmp_path, calibrations)
            assert load_calibration(tmp_path) == calibrations

    @pytest.mark.parametrize(
        "content",
        [
            {"slope": 1},
            {"one_pass": {"bias": "1", "sharpness": 1.0, "consistency": 0.0}},
            {"coarse_to_fine": {"right_weights": {"bias": 1.0}, "same_kind_weights": {}}},
            [1, 2],
        ],
    )
    def test_other_files_are_refused(self, content: object, tmp_path: Path):
        (tmp_path / CALIBRATION).write_text(json.dumps(content))
        with pytest.raises(InputError, match=r"calibration\.json: not a calibration"):
            load_calibration(tmp_path)

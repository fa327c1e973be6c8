"""Figures of a calibration, on points whose confidence is known."""

from dataclasses import replace

import numpy as np
import pytest

from transformatcher.evaluation.calibration_sets import LabelledSet, evaluate_calibration, fit_set

NONE = (np.zeros(0), np.zeros(0))


@pytest.fixture
def points() -> LabelledSet:
    """Points that are right as often as they are sharp; their cycle error means nothing."""
    rng = np.random.default_rng(0)
    peak = rng.uniform(0.01, 0.99, 2000)
    return LabelledSet("img", 0.1, peak, rng.uniform(0.01, 0.1, 2000), rng.random(2000) < peak, NONE)


def test_figures(points: LabelledSet):
    calibration = fit_set(points, fitted_on="val")
    assert (calibration.alpha, calibration.pck_threshold, calibration.fitted_on) == (0.1, "img", "val")
    result = evaluate_calibration(calibration, points)
    figures = result.figures
    assert (figures["threshold"], figures["alpha"], figures["points"]) == ("img", 0.1, 2000)
    assert figures["right"] == pytest.approx(100 * points.right.mean(), abs=0.1)
    assert figures["calibration_error"] == pytest.approx(result.bins.error, abs=1e-4)
    assert figures["calibration_error"] < 0.1
    assert figures["auc"] == pytest.approx(figures["auc_sharpness_alone"], abs=0.02)
    assert abs(figures["auc_consistency_alone"] - 0.5) < 0.05
    assert figures["right_of_found"] > figures["right"]


def test_points_that_the_target_does_not_show(points: LabelledSet):
    calibration = fit_set(points, fitted_on="val")
    without = evaluate_calibration(calibration, points)
    assert without.roc_with_absent is None
    keys = ("absent", "absent_found", "auc_with_absent")
    assert [without.figures[key] for key in keys] == [0, None, None]
    dull = (np.full(500, 0.01), np.full(500, 0.1))
    found = evaluate_calibration(calibration, replace(points, absent=dull))
    assert [found.figures[key] for key in keys[:2]] == [500, 0]
    assert found.figures["auc_with_absent"] > found.figures["auc"]  # all dull ones are wrong

"""Figures of a calibration, on points whose confidence is known."""

from dataclasses import replace

import numpy as np
import pytest

from transformatcher.errors import InputError
from transformatcher.evaluation.calibration_sets import (
    CueSet,
    LabelledSet,
    confidences,
    cross_validate,
    evaluate_calibration,
    evaluate_same_kind,
    fit_sets,
)
from transformatcher.inference.calibration import Calibration, FineCalibration
from transformatcher.inference.cues import PAIR_CUES, POINT_CUES

NONE = (np.zeros(0), np.zeros(0))


@pytest.fixture
def points() -> LabelledSet:
    """Points that are right as often as they are sharp; their cycle error means nothing."""
    rng = np.random.default_rng(0)
    peak = rng.uniform(0.01, 0.99, 2000)
    return LabelledSet("img", 0.1, peak, rng.uniform(0.01, 0.1, 2000), rng.random(2000) < peak, NONE)


class TestOnePass:
    def test_figures(self, points: LabelledSet):
        calibration = fit_sets({"val": points})
        assert isinstance(calibration, Calibration)
        assert (calibration.alpha, calibration.pck_threshold, calibration.fitted_on) == (0.1, "img", "val")
        result = evaluate_calibration(points, confidences(calibration, points))
        figures = result.figures
        assert (figures["threshold"], figures["alpha"], figures["points"]) == ("img", 0.1, 2000)
        assert figures["right"] == pytest.approx(100 * points.right.mean(), abs=0.1)
        assert figures["calibration_error"] == pytest.approx(result.bins.error, abs=1e-4)
        assert figures["calibration_error"] < 0.1
        assert figures["auc"] == pytest.approx(figures["auc_sharpness_alone"], abs=0.02)
        assert abs(figures["auc_consistency_alone"] - 0.5) < 0.05
        assert figures["right_of_found"] > figures["right"]

    def test_points_that_the_target_does_not_show(self, points: LabelledSet):
        calibration = fit_sets({"val": points})
        without = evaluate_calibration(points, confidences(calibration, points))
        assert without.roc_with_absent is None
        keys = ("absent", "absent_found", "absent_found_at_85", "calibration_error_with_absent", "auc_with_absent")
        assert [without.figures[key] for key in keys] == [0, None, None, None, None]
        dull = replace(points, absent=(np.full(500, 0.01), np.full(500, 0.1)))
        found = evaluate_calibration(dull, confidences(calibration, dull)).figures
        assert [found[key] for key in keys[:3]] == [500, 0, 0]
        assert found["auc_with_absent"] > found["auc"]  # all dull ones are wrong

    def test_they_tell_nothing_about_kinds(self, points: LabelledSet):
        sets = {"val": points}
        assert evaluate_same_kind(sets, cross_validate(sets)) is None


def cue_set(seed: int, n_pairs: int = 200, *, unrelated: bool = False) -> LabelledSet:
    """Five points in each pair, two of them absent; the first cue of a point and of a pair tell the truth, mostly."""
    rng = np.random.default_rng(seed)
    n, m = 3 * n_pairs, 2 * n_pairs
    point, absent, pair = (
        rng.normal(size=(k, len(names))) for k, names in ((n, POINT_CUES), (m, POINT_CUES), (n_pairs, PAIR_CUES))
    )
    right = rng.random(n) < 1 / (1 + np.exp(-2 * point[:, 0]))
    absent[:, 0] -= 2
    pair[:, 0] += -1 if unrelated else 1
    categories = [("cat", "dog", "car", "bus", "cow", "boat")[i % 6] for i in range(n_pairs)]
    cues = CueSet(point, absent, pair, np.repeat(np.arange(n_pairs), 3), np.repeat(np.arange(n_pairs), 2), categories)
    absent_values = (np.full(m, 0.5), np.full(m, 0.1))
    return LabelledSet(
        "bbox", 0.1, np.full(n, 0.5), np.full(n, 0.1), right & (not unrelated), absent_values, cues, unrelated
    )


class TestSeveralPasses:
    def test_cross_validated_figures(self):
        sets = {"val": cue_set(0), "others": cue_set(1, unrelated=True)}
        calibration = fit_sets(sets)
        assert isinstance(calibration, FineCalibration)
        assert (calibration.pck_threshold, calibration.fitted_on) == ("bbox", "val + others")
        found = cross_validate(sets)
        figures = evaluate_calibration(sets["val"], found["val"]).figures
        assert figures["auc"] > 0.8
        assert figures["auc_with_absent"] > figures["auc"]
        assert figures["calibration_error_with_absent"] < 0.1
        assert figures["absent_found"] < 30
        unrelated = evaluate_calibration(sets["others"], found["others"])
        assert unrelated.roc is None
        assert unrelated.figures["auc"] is None
        kinds = evaluate_same_kind(sets, found)
        assert kinds is not None
        assert (kinds["pairs"], kinds["unrelated"]) == (200, 200)
        assert kinds["auc"] > 0.85
        assert kinds["calibration_error"] < 0.1

    def test_each_fold_is_judged_by_the_others(self):
        sets = {"val": cue_set(0)}
        categories = np.array(sets["val"].cues.category)
        cats = categories == "cat"
        swapped = sets["val"].right.copy()
        swapped[np.repeat(cats, 3)] ^= True  # of cats alone, all labels are wrong
        lying = {"val": replace(sets["val"], right=swapped)}
        before, after = cross_validate(sets)["val"], cross_validate(lying)["val"]
        same = np.isclose(before.points, after.points)
        fold = np.repeat([category in _fold_of("cat", categories) for category in categories], 3)
        assert same[fold].all()
        assert not same[~fold].any()

    def test_other_sets_are_judged_by_calibrations_that_have_not_seen_their_categories(self):
        sets = {"val": cue_set(0)}
        cues = sets["val"].cues
        assert cues is not None
        new = replace(sets["val"], cues=replace(cues, category=["zebra"] * 200))
        found = cross_validate(sets, {"again": sets["val"], "new": new})
        np.testing.assert_array_equal(found["again"].points, found["val"].points)
        whole = confidences(fit_sets(sets), new)
        np.testing.assert_array_equal(found["new"].points, whole.points)
        assert not np.array_equal(found["new"].points, found["val"].points)

    def test_too_few_categories(self):
        points = cue_set(0, n_pairs=4)
        with pytest.raises(InputError, match="at least 5 categories; these predictions have 4"):
            cross_validate({"val": points})

    def test_folders_of_one_and_of_several_passes(self, points: LabelledSet):
        with pytest.raises(InputError, match="old: predicted in one pass, but other folders in several"):
            fit_sets({"new": cue_set(0), "old": points})
        with pytest.raises(InputError, match="predictions of one pass"):
            confidences(fit_sets({"new": cue_set(0)}), points)


def _fold_of(category: str, categories: np.ndarray) -> set[str]:
    names = sorted(set(categories))
    return {name for number, name in enumerate(names) if number % 5 == names.index(category) % 5}

"""Two methods on the same pairs: the paired bootstrap by hand, verdicts, and results that cannot be compared."""

import numpy as np
import pytest
from helpers.predictions import prediction

from transformatcher.errors import InputError
from transformatcher.evaluation.compare import compare, paired_difference, verdict
from transformatcher.evaluation.metrics import bootstrap_weights
from transformatcher.evaluation.scores import score


def test_the_paired_interval_by_hand():
    """Three pairs, four resamples: their means are 10, 20/3, 0 and 20; percentiles interpolate between them."""
    ours, theirs = np.array([50.0, 100.0, 30.0]), np.array([40.0, 80.0, 30.0])  # differences 10, 20, 0
    drawn = np.array([[1, 1, 1], [2, 0, 1], [0, 0, 3], [0, 3, 0]]) / 3
    mean, low, high = paired_difference(ours, theirs, drawn)
    assert mean == pytest.approx(10)
    # sorted 0, 20/3, 10, 20; the 2.5th percentile lies 0.025 · 3 = 0.075 of the way, the 97.5th 0.075 before the end
    assert low == pytest.approx(0.075 * 20 / 3)
    assert high == pytest.approx(20 - 0.075 * 10)


def test_many_resamples_reach_the_exact_distribution():
    """Of two pairs with differences 0 and 8, resamples have the means 0, 4, 8 with probabilities 1/4, 1/2, 1/4."""
    weights = bootstrap_weights(2, resamples=20_000)
    means = weights @ np.array([0.0, 8.0])
    assert [np.mean(means == value) for value in (0, 4, 8)] == pytest.approx([0.25, 0.5, 0.25], abs=0.01)
    assert paired_difference(np.array([1.0, 9.0]), np.ones(2), weights) == (4.0, 0.0, 8.0)


def test_a_constant_lead_is_certain_whatever_the_pairs_vary():
    """What pairing is for: both methods vary by 50 points from pair to pair, their difference does not."""
    ours = [prediction(f"{i}", error=0.0) for i in range(10)]
    theirs = [prediction(f"{i}", error=50.0) for i in range(10)]
    comparison = compare(ours, theirs[::-1], names=("mine", "old"))
    cell = comparison["pck"]["img"]["0.1"]
    assert (cell["difference"], cell["ci95"]) == (50.0, [50.0, 50.0])
    assert cell["per_point"]["difference"] == 50.0
    assert verdict(comparison, "img", "0.1").startswith(
        "mine is better than old by 50.0 ± 0.0 (PCK @ 0.1, img, per pair"
    )
    swapped = compare(theirs, ours, names=("old", "mine"))
    assert verdict(swapped, "img", "0.1").startswith("mine is better than old by 50.0 ± 0.0")


def test_small_differences_cannot_be_told_apart():
    ours = [prediction(f"{i}", error=50.0 * (i % 2)) for i in range(8)]
    theirs = [prediction(f"{i}", error=50.0 * (i % 2 == 0)) for i in range(8)]
    comparison = compare(ours, theirs)
    assert verdict(comparison, "img", "0.1").startswith("A and B cannot be told apart: they differ by 0.0 ±")
    best = comparison["pairs"]["img"]["0.1"][0]
    assert abs(best["a"] - best["b"]) == 50


def test_both_sides_agree_with_their_own_scores():
    ours = [prediction("a"), prediction("b", error=50.0, category="dog", difficulty={"scale": 2})]
    theirs = [prediction("a", error=50.0), prediction("b", category="dog", difficulty={"scale": 2})]
    comparison = compare(ours, theirs)
    for side, predictions in (("a", ours), ("b", theirs)):
        scores = score(predictions)
        for threshold, cells in comparison["pck"].items():
            for alpha, cell in cells.items():
                assert cell[side] == scores["pck"][threshold][alpha]["per_pair"]
                assert cell["per_point"][side] == scores["pck"][threshold][alpha]["per_point"]
    assert list(comparison["groups"]) == ["cat", "dog", "object size: medium", "scale: hard"]
    assert comparison["groups"]["dog"]["n_pairs"] == 1
    assert comparison["groups"]["scale: hard"]["bbox"]["0.1"]["difference"] == -50


def test_results_of_other_pairs_cannot_be_compared():
    with pytest.raises(InputError, match="B: has no predictions for 1 pairs of A, such as b"):
        compare([prediction("a"), prediction("b")], [prediction("a")])
    with pytest.raises(InputError, match="A: has no predictions for 1 pairs of B, such as b"):
        compare([prediction("a")], [prediction("a"), prediction("b")])
    with pytest.raises(InputError, match="pair a: its true keypoints differ in A and B"):
        compare([prediction("a")], [prediction("a", trg_kps=[[20.0, 20.0], [120.0, 61.0]])])

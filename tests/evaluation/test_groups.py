"""Groups of pairs, and points on the twin of the true one."""

import numpy as np
import pytest
from helpers.predictions import prediction

from transformatcher.evaluation.groups import describe_levels, groups_of, layout_change, twin_targets
from transformatcher.evaluation.scores import pair_groups, score

TRIANGLE = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 3.0]])


def test_size_is_a_part_of_the_photo():
    """The target is 200 pixels wide, its box 120 long: 0.6."""
    assert groups_of(prediction()) == {"object size": "medium"}
    assert groups_of(prediction(trg_bbox=[0.0, 0.0, 79.0, 10.0]))["object size"] == "small"
    assert groups_of(prediction(trg_bbox=[0.0, 0.0, 10.0, 140.0]))["object size"] == "large"
    assert groups_of(prediction(trg_bbox=None)) == {}


def test_shift_turn_and_scale_change_no_layout():
    turned = 2.5 * TRIANGLE @ np.array([[0.6, 0.8], [-0.8, 0.6]]) + [30, -7]
    assert layout_change(TRIANGLE, turned) == pytest.approx(0, abs=1e-6)


def test_a_mirrored_layout_is_another_one():
    assert layout_change(TRIANGLE, TRIANGLE * [-1, 1]) > 0.5


def test_layout_by_brute_force():
    """The smallest distance over all turns and scales, relative to the distance without them."""
    other = np.array([[1.0, 2.0], [5.0, 1.0], [2.0, 8.0]])
    src, trg = TRIANGLE - TRIANGLE.mean(axis=0), other - other.mean(axis=0)
    best = min(
        np.linalg.norm(scale * src @ np.array([[np.cos(a), np.sin(a)], [-np.sin(a), np.cos(a)]]) - trg)
        for a in np.linspace(0, 2 * np.pi, 721)
        for scale in np.linspace(0, 3, 301)
    )
    assert layout_change(TRIANGLE, other) == pytest.approx(best / np.linalg.norm(trg), abs=1e-3)


def test_two_points_or_none_have_no_layout():
    assert layout_change(TRIANGLE[:2], TRIANGLE[:2]) is None
    assert layout_change(TRIANGLE, np.ones((3, 2))) is None


def test_a_point_on_the_twin_is_counted_as_such():
    """Three keypoints: left and right, found the wrong way round, and one without a twin, found."""
    true = [[20.0, 20.0], [120.0, 20.0], [70.0, 60.0]]
    found = [[120.0, 20.0], [20.0, 60.0], [70.0, 60.0]]  # on the twin; elsewhere; right
    swapped = prediction(
        src_kps=true, trg_kps=true, pred_kps=found, kp_index=[0, 1, 2], peak=[1.0] * 3, twins=[1, 0, -1]
    )
    twins = score([swapped])["twins"]
    assert twins["n_points"] == 2
    assert twins["pck"]["img"]["0.05"] == {
        "correct": 0.0, "on_twin": 50.0, "elsewhere": 50.0, "without_twin_correct": 100.0,
    }  # fmt: skip
    assert np.isnan(twin_targets(swapped)[2]).all()


def test_where_no_twins_are_known_nothing_is_said():
    assert score([prediction()])["twins"] is None


def test_groups_are_scored_with_their_numbers_of_pairs():
    pairs = [prediction("a"), prediction("b", error=50.0, trg_bbox=[0.0, 0.0, 150.0, 60.0])]
    groups = score(pairs)["groups"]["object size"]
    assert [(level, cell["n_pairs"]) for level, cell in groups.items()] == [("medium", 1), ("large", 1)]
    assert groups["large"]["pck"]["bbox"]["0.1"]["per_pair"] == 50
    assert {name: index.tolist() for name, index in pair_groups(pairs).items()} == {
        "cat": [0, 1], "object size: medium": [0], "object size: large": [1],
    }  # fmt: skip
    assert describe_levels("object size").endswith("small 0 to 0.4, medium 0.4 to 0.7, large 0.7 to 1")

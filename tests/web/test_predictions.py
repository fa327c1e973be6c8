"""Which pairs are matched, and which reference's prediction is taken."""

import numpy as np
import pytest
from helpers.web_session import FakePair

from transformatcher.errors import InputError
from transformatcher.inference.propagate_voting import vote_keypoints
from transformatcher.web.predictions import (
    PointPrediction,
    missing_pairs,
    point_heatmaps,
    position_heatmaps,
    predict_points,
    vote_predictions,
    warp_source,
)
from transformatcher.web.session import XY, Session


class TestVote:
    def test_the_most_confident_wins_or_the_first_of_equals(self):
        a, b, c = (PointPrediction(XY(x, x), p, is_match=True) for x, p in ((0, 0.3), (45, 0.8), (90, 0.8)))
        assert vote_predictions([{1: a}, {1: b}, {1: c}], (100, 100))[1] is b
        zero = PointPrediction(XY(5, 5), 0.0, is_match=False)
        assert vote_predictions([{1: zero}, {}], (100, 100))[1].xy == XY(5, 5)
        assert vote_predictions([], (100, 100)) == {}

    def test_two_that_agree_beat_one_with_slightly_more_confidence(self):
        alone, first, second = (
            PointPrediction(xy, p, is_match=True)
            for xy, p in ((XY(90, 90), 0.7), (XY(10, 10), 0.6), (XY(12, 10), 0.65))
        )
        assert vote_predictions([{1: alone}, {1: first}, {1: second}], (100, 100))[1] is second

    def test_the_vote_is_that_of_propagate(self):
        rng = np.random.default_rng(0)
        for _ in range(20):
            kps_px, confidence = rng.uniform(0, 100, (4, 6, 2)), rng.uniform(0.1, 1, (4, 6))
            confidence[rng.random((4, 6)) < 0.3] = 0  # not visible on that reference
            candidates = [
                {column: PointPrediction(XY(*kps_px[row, column]), confidence[row, column], is_match=True)
                 for column in range(6) if confidence[row, column]}
                for row in range(4)
            ]  # fmt: skip
            expected = vote_keypoints(kps_px, confidence, 100)
            chosen = vote_predictions(candidates, (80, 100))
            assert chosen.keys() == {column for column in range(6) if confidence[:, column].any()}
            for column, prediction in chosen.items():
                assert prediction.xy == XY(*expected.kps_px[column])
                assert prediction.confidence == expected.confidence[column]


class TestPredictions:
    def test_they_are_in_pixels_of_the_original(self, session: Session):
        by_target = predict_points(session)[1]
        assert by_target["one"].xy == XY(22, 32)  # one pixel of a copy at half size
        assert by_target["two"].xy == XY(24, 34)
        assert by_target["one"].reference == "src"

    def test_a_corrected_target_becomes_a_reference(self, session: Session):
        session.pin(1, "one", XY(50, 60))
        assert [target.id for target in missing_pairs(session)["one"]] == ["two"]
        session.pairs["one", "two"] = FakePair(3, 0.9)
        by_target = predict_points(session)[1]
        one, two = by_target["one"], by_target["two"]
        assert (one.xy, one.pinned, one.confidence) == (XY(50, 60), True, 1.0)
        assert (two.xy, two.reference) == (XY(56, 66), "one")
        session.pairs["one", "two"] = FakePair(3, 0.1)
        assert predict_points(session)[1]["two"].reference == "src"  # with more confidence

    def test_a_target_is_a_reference_only_for_points_pinned_there(self, session: Session):
        session.add_point(XY(5, 5), "ear")
        session.pin(1, "one", XY(50, 60))
        session.pairs["one", "two"] = FakePair(3, 0.9)
        by_point = predict_points(session)
        assert by_point[1]["two"].reference == "one"
        assert by_point[2]["two"].reference == "src"

    def test_a_point_that_is_not_visible_makes_no_reference(self, session: Session):
        session.pin(1, "one", None)
        assert missing_pairs(session) == {}
        prediction = predict_points(session)[1]["one"]
        assert (prediction.xy, prediction.is_match, prediction.pinned) == (None, False, True)

    def test_no_pair_is_matched_without_need(self, session: Session):
        session.pin(1, "one", XY(50, 60))
        session.pin(1, "two", XY(51, 61))
        assert missing_pairs(session) == {}
        session.unpin(1, "two")
        assert list(missing_pairs(session)) == ["one"]


def test_heatmaps_are_computed_from_the_reference(session: Session):
    session.pin(1, "one", XY(4, 2))
    session.pairs["one", "two"] = FakePair(0, 0.9)
    heatmaps = point_heatmaps(session, 1)
    assert heatmaps["two"][1, 2] == 255  # (4, 2) of the original is (2, 1) of the stored copy
    assert heatmaps["one"][15 % 5, 10 % 5] == 255
    assert position_heatmaps(session, XY(4, 2))["one"][1, 2] == 255


def test_a_warp_needs_a_matched_pair(session: Session):
    del session.pairs["src", "one"]
    with pytest.raises(InputError, match=r"one\.jpg is not matched yet"):
        warp_source(session, "one", "matches")

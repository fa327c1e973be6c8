"""The vote of several references."""

from typing import ClassVar

import numpy as np
import pytest
import torch

from transformatcher.inference.encoded_photo import EncodedPhoto
from transformatcher.inference.propagate_voting import (
    RIVAL_WEIGHT,
    SHARE_WEIGHT,
    USUAL_PART,
    choose_voters,
    exchange_sides,
    vote_keypoints,
)


class TestVote:
    def test_of_two_the_surer(self):
        kps = np.array([[[10.0, 10.0], [0.0, 0.0]], [[80.0, 80.0], [50.0, 50.0]]])
        guess = vote_keypoints(kps, np.array([[0.3, 0.0], [0.4, 0.2]]), 100)
        assert guess.chosen.tolist() == [1, 1]
        assert guess.kps_px.tolist() == [[80, 80], [50, 50]]

    def test_two_that_agree_beat_one_that_is_a_little_surer(self):
        kps = np.array([[[10.0, 10.0]], [[12.0, 10.0]], [[80.0, 80.0]]])
        assert vote_keypoints(kps, np.array([[0.5], [0.4], [0.6]]), 100).chosen.tolist() == [0]
        assert vote_keypoints(kps, np.array([[0.1], [0.1], [0.9]]), 100).chosen.tolist() == [2]

    def test_a_keypoint_that_no_reference_shows(self):
        guess = vote_keypoints(np.zeros((2, 1, 2)), np.zeros((2, 1)), 100)
        assert guess.confidence.tolist() == [0]

    def test_against_a_loop(self):
        rng = np.random.default_rng(0)
        kps, confidence = rng.uniform(0, 50, (4, 6, 2)), rng.uniform(0.1, 1, (4, 6)) * (rng.random((4, 6)) < 0.7)
        guess = vote_keypoints(kps, confidence, 50)
        for n in range(6):
            support = []
            for r in range(4):
                total = 0.0
                for other in range(4):
                    trust = confidence[other].sum() / max((confidence[other] > 0).sum(), 1)
                    d2 = ((kps[r, n] - kps[other, n]) ** 2).sum()
                    total += np.exp(-d2 / (2 * 5**2)) * confidence[other, n] * trust
                support.append(total if confidence[r, n] > 0 else -1)
            assert guess.chosen[n] == np.argmax(support)


class TestConfidence:
    """Of three keypoints that lie far apart, unless a test moves one."""

    KPS = np.array([[10.0, 10.0], [90.0, 10.0], [50.0, 90.0]])

    def confidence(self, rows: list[list[float]], moved: dict[int, int] | None = None) -> list[float]:
        kps = np.stack([self.KPS] * len(rows))
        for keypoint, other in (moved or {}).items():
            kps[:, keypoint] = self.KPS[other]
        return vote_keypoints(kps, np.array(rows), 100).confidence.tolist()

    def test_a_single_reference_keeps_its_own(self):
        assert self.confidence([[0.3, 0.0, 0.7]]) == [0.3, 0.0, 0.7]

    def test_what_few_references_show_is_less_sure(self):
        all_show, one_shows, none_shows = self.confidence([[0.6, 0.6, 0], [0.6, 0, 0], [0.6, 0, 0], [0.6, 0, 0]])
        assert one_shows < 0.6 < all_show
        assert none_shows == 0

    def test_more_references_that_agree_are_surer(self):
        found = [self.confidence([[0.6, 0.6, 0.6]] * r)[0] for r in (1, 2, 3, 6)]
        assert found == sorted(found)
        assert found[-1] < 1

    def test_of_two_keypoints_at_one_place_one_is_wrong(self):
        rows = [[0.6, 0.6, 0.6], [0.6, 0.6, 0.6]]
        apart, together = self.confidence(rows), self.confidence(rows, {1: 0})
        assert together[0] < apart[0]
        assert together[1] < apart[1]
        assert together[2] == apart[2]
        assert self.confidence([[0.6, 0.6, 0.6]], {1: 0}) == [0.6, 0.6, 0.6]  # a single reference

    def test_against_a_loop(self):
        rng = np.random.default_rng(1)
        kps, confidence = rng.uniform(0, 50, (4, 6, 2)), rng.uniform(0.1, 0.9, (4, 6)) * (rng.random((4, 6)) < 0.7)
        found = vote_keypoints(kps, confidence, 50)
        trust = [row[row > 0].mean() for row in confidence]
        for k in range(6):
            shown = [r for r in range(4) if confidence[r, k] > 0]
            mean, share = np.mean([confidence[r, k] for r in shown]), (len(shown) + 0.5) / 5
            at = [
                sum(np.exp(-((kps[r, n] - found.kps_px[k]) ** 2).sum() / (2 * 2.5**2)) * confidence[r, n] * trust[r]
                    for r in range(4))
                for n in range(6)
            ]  # fmt: skip
            rival = max(at[:k] + at[k + 1 :])
            part = (at[k] + 0.05) / (at[k] + rival + 0.05)
            logits = np.log(mean / (1 - mean)) + SHARE_WEIGHT * (np.log(share / (1 - share)) - np.log(3))
            logits += RIVAL_WEIGHT * 0.75 * (np.log(part) - USUAL_PART)
            assert found.confidence[k] == pytest.approx(1 / (1 + np.exp(-logits)))


class TestExchangeSides:
    NAMES: ClassVar = {5: "left eye", 7: "right eye", 2: "nose", 9: "left ear"}

    def test_left_becomes_right(self):
        assert exchange_sides({5: "a", 7: "b", 2: "c"}, self.NAMES) == {7: "a", 5: "b", 2: "c"}

    def test_a_keypoint_whose_twin_is_missing_has_none(self):
        assert exchange_sides({9: "a"}, self.NAMES) == {}
        assert exchange_sides({5: "a"}, self.NAMES) == {7: "a"}

    def test_names_without_sides(self):
        assert exchange_sides({0: "a", 1: "b"}, {0: "one", 1: "two"}) == {0: "a", 1: "b"}
        assert exchange_sides({}, {}) == {}


class TestVoters:
    """Features of a layer of their own for each photo: directions at growing angles from that of the photo."""

    def photo(self, degrees: float) -> EncodedPhoto:
        angle = torch.tensor(degrees).deg2rad()
        features = torch.stack([angle.cos(), angle.sin()]).reshape(1, 2, 1, 1).expand(1, 2, 3, 3)
        return EncodedPhoto(np.zeros((3, 3, 3), np.uint8), [features])

    def test_the_most_similar(self):
        references, shown = [self.photo(d) for d in (40, 0, 80, 20)], np.ones((4, 2), dtype=bool)
        for most, voters in ((1, {1}), (2, {1, 3}), (4, {0, 1, 2, 3}), (9, {0, 1, 2, 3})):
            assert choose_voters(references, shown, self.photo(0), most) == voters

    def test_every_keypoint_that_some_reference_shows_has_a_voter(self):
        references = [self.photo(d) for d in (0, 10, 20, 30)]
        shown = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0]], dtype=bool)
        assert choose_voters(references, shown, self.photo(0), 1) == {0, 2}

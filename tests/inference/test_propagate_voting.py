"""The vote of several references."""

import numpy as np

from transformatcher.inference.propagate_voting import vote_keypoints


class TestVote:
    def test_of_two_the_surer(self):
        kps = np.array([[[10.0, 10.0], [0.0, 0.0]], [[80.0, 80.0], [50.0, 50.0]]])
        guess = vote_keypoints(kps, np.array([[0.3, 0.0], [0.4, 0.2]]), 100)
        assert guess.chosen.tolist() == [1, 1]
        assert guess.kps_px.tolist() == [[80, 80], [50, 50]]
        assert guess.confidence.tolist() == [0.4, 0.2]

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

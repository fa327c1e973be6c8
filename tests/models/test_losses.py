import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from transformatcher.models.losses import keypoint_loss, map_cross_entropy


def test_mean_over_keypoints_then_over_pairs():
    predicted = torch.tensor([[[0.0, 0.0], [1.0, 1.0]], [[3.0, 0.0], [9.0, 9.0]]])
    true = torch.zeros(2, 2, 2)
    visible = torch.tensor([[True, True], [True, False]])
    # pair 1: (0 + 2) / 2 = 1; pair 2: 9 / 1 = 9; mean 5
    assert keypoint_loss(predicted, true, visible).item() == pytest.approx(5.0)


def test_a_pair_without_keypoints_does_not_count():
    predicted = torch.tensor([[[2.0, 0.0]], [[float("nan"), 0.0]]])
    visible = torch.tensor([[True], [False]])
    assert keypoint_loss(predicted, torch.zeros(2, 1, 2), visible).item() == pytest.approx(4.0)


def test_gradcheck():
    points = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    visible = torch.tensor([[True, True, False], [False, True, True]])
    assert gradcheck(lambda p: keypoint_loss(p, torch.zeros_like(p), visible), points)


class TestMapCrossEntropy:
    """Source grid 2 × 3, target grid 3 × 4."""

    @staticmethod
    def naive(scores, src, trg, visible):
        """Loops over pairs, keypoints and the four cells around each of their ends."""

        def around(point, h, w):
            x, y = ((np.clip(p, -1, 1) + 1) / 2 * (n - 1) for p, n in zip(point, (w, h), strict=True))
            for row in {int(np.floor(y)), int(np.ceil(y))}:
                for column in {int(np.floor(x)), int(np.ceil(x))}:
                    yield row, column, (1 - abs(y - row)) * (1 - abs(x - column))

        pairs = []
        for pair in range(len(scores)):
            losses = []
            for k in np.flatnonzero(visible[pair]):
                logits = sum(share * scores[pair, i, j] for i, j, share in around(src[pair, k], *scores.shape[1:3]))
                log_p = logits - np.log(np.exp(logits).sum())
                losses.append(-sum(share * log_p[i, j] for i, j, share in around(trg[pair, k], *scores.shape[3:])))
            if losses:
                pairs.append(np.mean(losses))
        return np.mean(pairs)

    @staticmethod
    def inputs(b=3, n=4):
        scores = 3 * torch.randn(b, 2, 3, 3, 4, dtype=torch.float64)
        src, trg = 2.4 * torch.rand(2, b, n, 2, dtype=torch.float64) - 1.2  # some beyond the border
        src[0, 0], trg[0, 0] = torch.tensor([-1.0, 1.0]), torch.tensor([1.0, -1.0])  # on cells
        visible = torch.rand(b, n) < 0.7
        visible[0], visible[1] = True, False
        return scores, src, trg, visible

    def test_equals_naive_loops(self):
        inputs = self.inputs()
        expected = self.naive(*(value.numpy() for value in inputs))
        assert map_cross_entropy(*inputs).item() == pytest.approx(expected, abs=1e-12)

    def test_least_where_scores_are_the_truth(self):
        """Between two cells, half the probability on each is the best there is, and costs log 2."""
        trg = torch.tensor([[[-1 / 3, -0.5]]])  # column 1 of 4, between rows 0 and 1 of 3
        visible = torch.ones(1, 1, dtype=torch.bool)
        scores = torch.full((1, 2, 3, 3, 4), -50.0)
        scores[..., 0:2, 1] = 0.0
        assert map_cross_entropy(scores, torch.zeros(1, 1, 2), trg, visible).item() == pytest.approx(
            np.log(2), abs=1e-5
        )
        scores[..., 1, 1] = 1.0
        assert map_cross_entropy(scores, torch.zeros(1, 1, 2), trg, visible).item() > np.log(2) + 0.05

    def test_hidden_points_give_no_gradient(self):
        scores, src, trg, visible = self.inputs()
        map_cross_entropy(scores.requires_grad_(), src, trg, visible).backward()
        assert scores.grad is not None
        assert scores.grad[0].any()
        assert not scores.grad[1].any()

    def test_gradcheck(self):
        scores, src, trg, visible = self.inputs(b=2, n=2)
        assert gradcheck(lambda s: map_cross_entropy(s, src, trg, visible), scores.requires_grad_())

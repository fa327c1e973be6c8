import pytest
import torch
from torch.autograd import gradcheck

from transformatcher.losses import keypoint_loss


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

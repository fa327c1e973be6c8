"""Samplers: against the paper as loops, and on flows that are known."""

import numpy as np
import pytest
import torch
from helpers import reference
from helpers.tensors import random64
from torch.autograd import gradcheck

from transformatcher.coords import grid_norm
from transformatcher.errors import InputError
from transformatcher.models.sampler import bilinear_sample, soft_sample


def test_soft_sampler_equals_the_paper():
    flow, points = random64(1, 6, 5, 2), torch.rand(1, 7, 2, dtype=torch.float64) * 2 - 1
    out = soft_sample(flow, points, threshold=0.6)
    for row in range(7):
        expected = reference.soft_sample(flow[0].numpy(), points[0, row].numpy(), 0.6)
        np.testing.assert_allclose(out[0, row], expected, atol=1e-6)


def test_bilinear_equals_naive_interpolation():
    flow = random64(1, 3, 3, 2)
    fine = reference.resize(flow[0].numpy(), (5, 9, 2))
    points = grid_norm((5, 9), like=flow).flatten(0, 1)[None]
    np.testing.assert_allclose(bilinear_sample(flow, points)[0], fine.reshape(45, 2), atol=1e-6)


def test_bilinear_is_exact_on_the_identity_and_the_soft_sampler_is_not():
    identity = grid_norm((30, 30), like=torch.zeros(1, dtype=torch.float64))[None]
    points = torch.rand(1, 500, 2, dtype=torch.float64) * 2 - 1
    exact, soft = bilinear_sample(identity, points), soft_sample(identity, points, threshold=0.05)
    assert (exact - points).norm(dim=-1).max() < 1e-6
    assert 1.5 < (soft - points).norm(dim=-1).mean() * 120 < 2.7  # pixels of 240: the known floor of about 2.1


def test_points_outside_are_taken_at_the_border():
    identity = grid_norm((30, 30), like=torch.zeros(1))[None]
    outside = torch.tensor([[[1.3, -1.2]]])
    torch.testing.assert_close(bilinear_sample(identity, outside), torch.tensor([[[1.0, -1.0]]]))
    assert soft_sample(identity, outside, threshold=0.1)[0, 0].tolist() == pytest.approx([1, -1], abs=0.05)


def test_threshold_that_misses_points_is_refused():
    with pytest.raises(InputError, match=r"threshold 0\.05, some points of a 15 × 15 grid have no cell"):
        soft_sample(torch.zeros(1, 15, 15, 2), torch.zeros(1, 1, 2), threshold=0.05)


@pytest.mark.parametrize("sample", [bilinear_sample, lambda f, p: soft_sample(f, p, threshold=0.9)])
def test_gradcheck(sample):
    points = torch.tensor([[[0.13, -0.37], [0.71, 0.22]]], dtype=torch.float64, requires_grad=True)
    assert gradcheck(sample, (random64(1, 4, 3, 2, grad=True), points))

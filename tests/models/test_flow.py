"""Read-out: against the paper as loops, and on maps whose flow is known."""

import itertools

import numpy as np
import pytest
import torch
from helpers import reference
from helpers.tensors import GRID, random64
from torch.autograd import gradcheck

from transformatcher.coords import grid_norm
from transformatcher.models.flow import KernelSoftArgmax, swap_source_target
from transformatcher.models.sampler import bilinear_sample


@pytest.mark.parametrize("kernel_on", ["logits", "probabilities", "none"])
def test_equals_the_paper(kernel_on):
    refined = random64(1, 2, 2, 3, 2)
    flow = KernelSoftArgmax(upsample=2, kernel_sigma=1.7, temperature=0.6, kernel_on=kernel_on)(refined)
    scores = reference.resize(refined[0].numpy(), (4, 4, 6, 4))
    expected = reference.kernel_soft_argmax(scores, 1.7, 0.6, kernel_on)
    np.testing.assert_allclose(flow.trg_norm[0], expected, atol=1e-6)


@pytest.mark.parametrize("kernel_on", ["logits", "probabilities", "none"])
def test_gradcheck(kernel_on):
    readout = KernelSoftArgmax(upsample=2, kernel_sigma=1.5, kernel_on=kernel_on)
    assert gradcheck(lambda c: readout(c).trg_norm, random64(1, 2, 1, 2, 3, grad=True))


def test_distribution_sums_to_one():
    readout = KernelSoftArgmax(kernel_on="probabilities")
    refined = random64(1, *GRID)
    p = readout.distribution(refined)
    assert p.shape == (1, 4, 6, 6, 4)
    torch.testing.assert_close(p.sum(dim=(3, 4)), torch.ones(1, 4, 6, dtype=torch.float64))
    torch.testing.assert_close(readout(refined).peak, p.flatten(3).amax(dim=3))


@pytest.mark.parametrize("shift", [(0, 0), (1, 0), (0, -2)])
def test_known_translation_is_recovered(shift):
    dx, dy = shift
    h, w = 6, 7
    corr = torch.zeros(1, h, w, h, w, dtype=torch.float64)
    for y, x in itertools.product(range(h), range(w)):
        if 0 <= y + dy < h and 0 <= x + dx < w:
            corr[0, y, x, y + dy, x + dx] = 100.0
    flow = KernelSoftArgmax(upsample=1, kernel_sigma=3.0)(corr).trg_norm[0]
    moved = flow - grid_norm((h, w), like=flow)
    inside = corr[0].flatten(2).amax(dim=2) > 0
    expected = torch.tensor([2 * dx / (w - 1), 2 * dy / (h - 1)], dtype=torch.float64)
    torch.testing.assert_close(moved[inside], expected.expand(int(inside.sum()), 2), rtol=0, atol=1e-6)


def test_gaussian_on_negative_logits_pushes_the_peak_away():
    """The defect of the paper's formula, and the remedy: all scores negative, the best one in a corner."""
    scores = torch.full((1, 1, 1, 9, 9), -5.0, dtype=torch.float64)
    scores[0, 0, 0, 0, 0] = -4.0
    corner = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    away, near = (
        (KernelSoftArgmax(1, 2.0, kernel_on=g)(scores).trg_norm[0, 0, 0] - corner).norm()
        for g in ("logits", "probabilities")
    )
    assert away > 1.4  # beyond the middle of the image
    assert near < 0.6


def test_swap_source_target():
    corr = random64(1, *GRID)
    assert swap_source_target(corr)[0, 2, 1, 0, 2] == corr[0, 0, 2, 2, 1]


@pytest.mark.parametrize("grid", [(4, 5, 3, 6), (7, 6, 5, 5), (1, 4, 3, 1)])
@pytest.mark.parametrize("kernel_on", ["logits", "probabilities", "none"])
def test_the_flow_at_points_is_that_of_the_whole_flow(grid, kernel_on):
    """Also at cells, between them, on the border and outside it."""
    readout = KernelSoftArgmax(2, kernel_sigma=1.5, temperature=0.3, kernel_on=kernel_on)
    refined = torch.randn(2, *grid, dtype=torch.float64)
    points = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [0.31, -0.77], [1.2, 0.4], [-0.5, -3.0]], dtype=torch.float64)
    points = torch.cat([points, grid_norm((2 * grid[0], 2 * grid[1]), like=points).flatten(0, 1)])
    whole = bilinear_sample(readout(refined).trg_norm, points.expand(2, -1, -1))
    for point, wanted in zip(points, whole.unbind(1), strict=True):
        found = readout.flow_at(refined, point.expand(2, 1, 2))
        torch.testing.assert_close(found[:, 0], wanted, rtol=1e-6, atol=1e-6)  # positions of cells are in float32
    torch.testing.assert_close(readout.flow_at(refined, points.expand(2, -1, -1)), whole)

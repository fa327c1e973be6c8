"""Sampling a flow at points, and resizing 4-D maps: what both must keep."""

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from transformatcher.coords import grid_norm
from transformatcher.errors import InputError
from transformatcher.models.flow import swap_source_target
from transformatcher.models.resize4d import resize4d
from transformatcher.models.sampler import bilinear_sample, soft_sample

grids = st.tuples(st.integers(2, 12), st.integers(2, 12))
numbers = st.floats(-2, 2, width=32)
points = arrays(np.float64, st.tuples(st.just(1), st.integers(1, 6), st.just(2)), elements=st.floats(-1.5, 1.5))


def maps(shape: tuple[int, ...]) -> st.SearchStrategy[torch.Tensor]:
    return arrays(np.float64, shape, elements=st.floats(-4, 4)).map(torch.from_numpy)


@given(grids, points, numbers, numbers, numbers)
def test_bilinear_sampling_is_exact_on_planes_and_holds_at_the_border(grid, points_norm, slope_x, slope_y, offset):
    cells = grid_norm(grid, like=torch.zeros(1, dtype=torch.float64))
    field = (slope_x * cells[..., 0] + slope_y * cells[..., 1] + offset)[None, ..., None]
    where = torch.from_numpy(points_norm)
    inside = where.clamp(-1, 1)
    expected = slope_x * inside[..., 0] + slope_y * inside[..., 1] + offset
    torch.testing.assert_close(bilinear_sample(field, where)[..., 0], expected, atol=1e-5, rtol=0)


@given(st.data(), grids, points)
def test_soft_sampling_is_a_mean_of_what_is_near(data, grid, points_norm):
    """Weights are positive and sum to less than one by the epsilon beside their sum."""
    threshold = 3.0 / (min(grid) - 1)
    field = data.draw(maps((1, *grid, 1)))
    sampled = soft_sample(field, torch.from_numpy(points_norm), threshold=threshold)
    assert torch.isfinite(sampled).all()
    low, high = min(field.min().item(), 0.0), max(field.max().item(), 0.0)
    assert low - 1e-9 <= sampled.min().item() <= sampled.max().item() <= high + 1e-9
    ones = soft_sample(torch.ones_like(field), torch.from_numpy(points_norm), threshold=threshold)
    assert ((ones > 0.95) & (ones <= 1)).all()


@given(st.data(), grids, points, st.sampled_from(["soft", "bilinear"]))
def test_sampling_a_mirrored_field_at_mirrored_points(data, grid, points_norm, sampler):
    field, where = data.draw(maps((1, *grid, 2))), torch.from_numpy(points_norm)
    mirror = torch.tensor([-1.0, 1.0], dtype=torch.float64)

    def sample(values, places):
        if sampler == "bilinear":
            return bilinear_sample(values, places)
        return soft_sample(values, places, threshold=3.0 / (min(grid) - 1))

    torch.testing.assert_close(sample(field.flip(2), where * mirror), sample(field, where), atol=1e-4, rtol=1e-4)


@given(st.tuples(st.integers(1, 12), st.integers(1, 12)), st.floats(0, 3), points)
def test_the_soft_sampler_says_no_or_samples(grid, threshold, points_norm):
    field = torch.ones(1, *grid, 1, dtype=torch.float64)
    with contextlib.suppress(InputError):
        sampled = soft_sample(field, torch.from_numpy(points_norm), threshold=threshold)
        assert (sampled > 0).all()  # no point was left without a cell


sides = st.integers(1, 5)
shapes = st.tuples(sides, sides, sides, sides)


@given(st.data(), shapes, shapes)
def test_resize4d_keeps_range_constants_and_direction(data, old, new):
    corr = data.draw(maps((1, *old)))
    resized = resize4d(corr, new[:2], new[2:])
    assert resized.shape == (1, *new)
    assert corr.min() - 1e-9 <= resized.min() <= resized.max() <= corr.max() + 1e-9
    torch.testing.assert_close(resize4d(torch.full_like(corr, 3.0), new[:2], new[2:]), torch.full_like(resized, 3.0))
    torch.testing.assert_close(swap_source_target(resized), resize4d(swap_source_target(corr), new[2:], new[:2]))
    torch.testing.assert_close(resize4d(2 * corr, new[:2], new[2:]), 2 * resized)


@given(st.data(), shapes, st.integers(1, 3))
def test_finer_and_back_is_nothing(data, old, factor):
    """With corners on corners, every cell of the coarse grid is one of the fine grid."""
    corr = data.draw(maps((1, *old)))
    fine = tuple(factor * (n - 1) + 1 for n in old)
    there = resize4d(corr, fine[:2], fine[2:])
    torch.testing.assert_close(resize4d(there, old[:2], old[2:]), corr, atol=1e-9, rtol=1e-9)
    assert resize4d(corr, old[:2], old[2:]) is corr


def test_a_grid_of_one_row_has_no_soft_sampler():
    with pytest.raises(InputError, match="1 × 5 grid"):
        soft_sample(torch.ones(1, 1, 5, 1), torch.zeros(1, 1, 2), threshold=2.0)

"""Rotary positions: against loops, and what a rotation must do."""

import itertools

import numpy as np
import pytest
import torch
from helpers import reference
from helpers.tensors import GRID, POSITIONS, random64

from transformatcher.errors import InputError
from transformatcher.models.rotary import AxialRotary, Checkerboard


def test_equals_naive_rotation():
    x = random64(1, 8, len(POSITIONS), 4)
    out = AxialRotary(8, 4)(x, GRID)
    for head, (index, position) in itertools.product(range(8), enumerate(POSITIONS)):
        expected = reference.rotate_axial(x[0, head, index].numpy(), position, head, heads=8)
        np.testing.assert_allclose(out[0, head, index], expected, atol=1e-12)


@pytest.mark.parametrize("axis", range(4))
def test_interaction_depends_on_the_offset_alone(axis):
    """⟨rot(q, m), rot(k, n)⟩ stays when m and n move together along an axis, and changes when one moves alone."""
    grid = (5, 6, 4, 7)
    q, k = random64(8, 4), random64(8, 4)

    def interaction(m, n):
        x = torch.zeros(2, 8, int(np.prod(grid)), 4, dtype=torch.float64)
        i, j = np.ravel_multi_index(m, grid), np.ravel_multi_index(n, grid)
        x[0, :, i], x[1, :, j] = q, k
        rotated = AxialRotary(8, 4)(x, grid)
        return (rotated[0, :, i] * rotated[1, :, j]).sum(dim=1)  # one number a head

    step = np.eye(4, dtype=int)[axis]
    m, n = np.array([1, 0, 2, 3]), np.array([0, 2, 1, 1])
    together = interaction(m + step, n + step)
    torch.testing.assert_close(together, interaction(m, n), rtol=0, atol=1e-12)
    assert (interaction(m + step, n) - interaction(m, n)).abs().max() > 1e-3


@pytest.mark.parametrize("axis", range(4))
def test_every_axis_rotates_its_own_planes(axis):
    angles = AxialRotary(8, 4).angle_of_plane
    assert (angles[axis] != 0).sum() == 4
    assert ((angles != 0).sum(dim=0) == 1).all()
    assert len(angles[axis][angles[axis] != 0].unique()) == 4


def test_fewer_frequencies():
    angles = AxialRotary(8, 4, frequencies=2).angle_of_plane
    assert len(angles[angles != 0].unique()) == 2
    with pytest.raises(InputError, match="5 frequencies, expected 1 to 4"):
        AxialRotary(8, 4, frequencies=5)


def test_lengths_are_kept():
    x = random64(2, 8, len(POSITIONS), 4)
    torch.testing.assert_close(AxialRotary(8, 4)(x, GRID).norm(dim=-1), x.norm(dim=-1))


def test_too_few_planes_are_refused():
    with pytest.raises(InputError, match="1 heads of 4 channels give 2 planes"):
        AxialRotary(1, 4)


def test_checkerboard_is_a_sign():
    x = random64(1, 2, len(POSITIONS), 4)
    signs = torch.tensor([(-1.0) ** sum(p) for p in POSITIONS], dtype=torch.float64)
    torch.testing.assert_close(Checkerboard()(x, GRID), x * signs[:, None], rtol=0, atol=0)


def test_checkerboard_is_the_released_rotation_on_odd_grids():
    """Rotation of the flattened index by π and 5π, as the released code writes it."""
    grid = (3, 3, 3, 3)
    x = random64(1, 1, 81, 4)
    turns = np.arange(81)[:, None] * np.array([np.pi, 5 * np.pi])
    z = x[0, 0].numpy()[:, 0::2] + 1j * x[0, 0].numpy()[:, 1::2]
    z = z * np.exp(1j * turns)
    expected = np.stack([z.real, z.imag], axis=-1).reshape(81, 4)
    np.testing.assert_allclose(Checkerboard()(x, grid)[0, 0], expected, atol=1e-10)

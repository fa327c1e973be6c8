import numpy as np
import pytest
import torch

from transformatcher.coords import (
    cell_to_norm,
    cells_around,
    grid_norm,
    mirror_box_px,
    mirror_px,
    norm_to_cell,
    norm_to_px,
    px_to_norm,
    rescale_px,
)

POINTS = np.array([[0.0, 0.0], [80.0, 60.0], [20.0, 45.0]])


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_pixels_and_back(make):
    points = make(POINTS.tolist())
    norm = px_to_norm(points, (60, 80))
    assert norm.tolist() == [[-1, -1], [1, 1], [-0.5, 0.5]]
    assert norm_to_px(norm, (60, 80)).tolist() == POINTS.tolist()


def test_point_to_cell_to_point():
    norm = px_to_norm(POINTS, (60, 80))
    cells = norm_to_cell(norm, (4, 9))
    assert cells.tolist() == [[0, 0], [8, 3], [2, 2.25]]
    np.testing.assert_allclose(cell_to_norm(cells, (4, 9)), norm)


def test_cell_j_of_30_is_pixel_240_j_over_29():
    cells = np.array([[float(j), 0.0] for j in range(30)])
    px = norm_to_px(cell_to_norm(cells, (30, 30)), (240, 240))
    np.testing.assert_allclose(px[:, 0], [240 * j / 29 for j in range(30)])


def test_grid_lists_x_before_y():
    grid = grid_norm((3, 5), like=torch.zeros(1, dtype=torch.float64))
    assert grid.shape == (3, 5, 2)
    assert grid[2, 0].tolist() == [-1, 1]
    assert grid[0, 4].tolist() == [1, -1]


def test_rescale_treats_the_axes_apart():
    assert rescale_px(np.array([[40.0, 30.0]]), (60, 80), (240, 240)).tolist() == [[120, 120]]


def test_mirror():
    assert mirror_px(np.array([[10.0, 5.0]]), (60, 80)).tolist() == [[70, 5]]
    assert mirror_box_px(np.array([10.0, 5.0, 30.0, 20.0]), (60, 80)).tolist() == [50, 5, 70, 20]


def test_the_cells_around_a_point():
    points = torch.tensor([[[0.0, 0.0], [0.5, 1.0], [9.0, -9.0]]])
    cells, weights = cells_around(points, (3, 5))
    assert cells[0, 0, 0].tolist() == [0, 0]
    assert weights[0, 0].tolist() == [1, 0, 0, 0]  # a cell itself
    assert weights[0, 2] @ cells[0, 2] == pytest.approx([1, -1])  # moved to the corner
    torch.testing.assert_close(torch.einsum("bnq,bnqc->bnc", weights, cells)[0, 1], points[0, 1])
    alone, weights = cells_around(points, (1, 1))
    assert (alone == -1).all()
    assert (weights.sum(dim=-1) == 1).all()

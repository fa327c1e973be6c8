"""Conversions of coordinates: there and back again, and in any order."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from transformatcher.coords import (
    cell_to_norm,
    grid_norm,
    mirror_box_px,
    mirror_px,
    norm_to_cell,
    norm_to_px,
    px_to_norm,
    rescale_px,
)

sizes = st.tuples(st.integers(1, 5000), st.integers(1, 5000))
grids = st.tuples(st.integers(2, 60), st.integers(2, 60))
points = arrays(np.float64, st.tuples(st.integers(0, 5), st.just(2)), elements=st.floats(-1e4, 1e4))


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-6)


@given(points, sizes)
def test_pixels_there_and_back(points_px, size):
    close(norm_to_px(px_to_norm(points_px, size), size), points_px)


@given(points, grids)
def test_cells_there_and_back(cells, grid):
    close(norm_to_cell(cell_to_norm(cells, grid), grid), cells)


@given(st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_the_grid_is_where_its_cells_are(grid):
    h, w = grid
    cells = np.stack(np.meshgrid(np.arange(w), np.arange(h)), axis=-1).astype(np.float64)
    np.testing.assert_allclose(grid_norm(grid, like=torch.zeros(1)).numpy(), cell_to_norm(cells, grid), atol=1e-6)


@given(points, sizes, sizes, sizes)
def test_resizing_twice_is_resizing_once(points_px, first, second, third):
    close(rescale_px(rescale_px(points_px, first, second), second, third), rescale_px(points_px, first, third))
    close(rescale_px(points_px, first, second), norm_to_px(px_to_norm(points_px, first), second))
    np.testing.assert_array_equal(rescale_px(points_px, first, first), points_px)


@given(points, sizes, sizes)
def test_a_mirror(points_px, size, other):
    close(mirror_px(mirror_px(points_px, size), size), points_px)
    close(px_to_norm(mirror_px(points_px, size), size), px_to_norm(points_px, size) * [-1, 1])
    close(
        rescale_px(mirror_px(points_px, size), size, other),
        mirror_px(rescale_px(points_px, size, other), other),
    )


@given(st.tuples(*[st.floats(0, 1000)] * 4), sizes)
def test_a_mirrored_box_is_a_box(edges, size):
    x0, y0, x1, y1 = min(edges[0], edges[2]), min(edges[1], edges[3]), max(edges[0], edges[2]), max(edges[1], edges[3])
    box = np.array([x0, y0, x1, y1])
    mirrored = mirror_box_px(box, size)
    assert mirrored[0] <= mirrored[2]
    close(mirrored[2:] - mirrored[:2], box[2:] - box[:2])
    close(mirror_box_px(mirrored, size), box)


@given(points, sizes, grids)
def test_numpy_and_torch_say_the_same(points_px, size, grid):
    tensor = torch.from_numpy(points_px)
    for function, where in ((px_to_norm, size), (norm_to_px, size), (mirror_px, size), (norm_to_cell, grid)):
        before = points_px.copy()
        close(function(tensor, where).numpy(), function(points_px, where))
        np.testing.assert_array_equal(points_px, before)  # nobody's array is changed

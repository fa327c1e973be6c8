"""Φ against a direct T × T computation; convolutions against their closed form."""

import itertools

import numpy as np
import pytest
import torch

from transformatcher.evaluation.analysis import nonlocality
from transformatcher.evaluation.analysis.nonlocality import (
    bounded_convolution_nonlocality,
    centred_cells,
    convolution_nonlocality,
    convolution_offsets,
    nonlocality_of_weights,
    pairwise_nonlocality,
    uniform_nonlocality,
)

GRID = (3, 4, 2, 5)
T = 120


def squared_distances(grid) -> torch.Tensor:
    """(t, t): ‖q − k‖² of every two matches."""
    cells = torch.tensor(list(itertools.product(*map(range, grid)))).double()
    return (cells[:, None] - cells[None]).square().sum(dim=2)


def direct(alpha, queries, keys, grid) -> torch.Tensor:
    """The supplement's formula, with all T × T numbers at once."""
    attention = ((alpha[..., None] * queries) @ keys.transpose(1, 2)).softmax(dim=2)  # (heads, t, t)
    return (attention * squared_distances(grid)).sum(dim=(1, 2)) / len(alpha[0])


class TestPairwise:
    @pytest.mark.parametrize("sharpness", [0.01, 1.0, 5.0, 30.0])
    @pytest.mark.parametrize("size", [0.1, 3.0])
    def test_direct(self, sharpness, size):
        alpha = (sharpness * torch.randn(3, T)).double().softmax(dim=1)
        queries, keys = size * torch.randn(2, 3, T, 4).double() + 1
        expected = direct(alpha, queries, keys, GRID)
        torch.testing.assert_close(pairwise_nonlocality(alpha, queries, keys, GRID), expected, rtol=1e-10, atol=0)

    @pytest.mark.parametrize("few", [0, 3, 1000])
    @pytest.mark.parametrize("terms", [1, 20, 200])
    def test_however_the_queries_are_divided(self, few, terms, monkeypatch):
        monkeypatch.setattr(nonlocality, "MAX_EXACT", few)
        monkeypatch.setattr(nonlocality, "MAX_TERMS", terms)
        monkeypatch.setattr(nonlocality, "CHUNK", 7)
        alpha = (3 * torch.randn(2, T)).double().softmax(dim=1)
        queries, keys = torch.randn(2, 2, T, 6).double()
        expected = direct(alpha, queries, keys, GRID)
        torch.testing.assert_close(pairwise_nonlocality(alpha, queries, keys, GRID), expected, rtol=1e-10, atol=0)

    def test_a_single_query_that_attends_to_one_key(self):
        """All weight on one query that attends to one key: a single far pair among uniform rows."""
        alpha = torch.zeros(1, T).double()
        alpha[0, 0] = 1
        queries, keys = torch.zeros(2, 1, T, 4).double()
        queries[0, 0, 0], keys[0, -1, 0] = 100, 100
        uniform = squared_distances(GRID).mean(dim=1)
        expected = (uniform[1:].sum() + squared_distances(GRID)[0, -1]) / T
        torch.testing.assert_close(pairwise_nonlocality(alpha, queries, keys, GRID)[0], expected)

    def test_without_content_it_is_uniform(self):
        alpha = torch.full((2, T), 1 / T).double()
        phi = pairwise_nonlocality(alpha, torch.zeros(2, T, 4), torch.randn(2, T, 4), GRID)
        torch.testing.assert_close(phi, torch.full((2,), uniform_nonlocality(GRID)).double())
        torch.testing.assert_close(phi, squared_distances(GRID).mean().expand(2))

    def test_memory_stays_linear(self):
        """15⁴ matches, whose T × T would take 20 GB, in a blink."""
        grid = (15, 15, 15, 15)
        alpha = (2 * torch.randn(1, 15**4)).softmax(dim=1)
        queries, keys = torch.randn(2, 1, 15**4, 4)
        assert pairwise_nonlocality(alpha, queries, keys, grid).item() == pytest.approx(
            uniform_nonlocality(grid), rel=1e-2
        )


class TestOneDistributionForAll:
    def test_direct(self):
        weights = torch.randn(2, 3, T).double().softmax(dim=2)
        expected = torch.einsum("bht,qt->bh", weights, squared_distances(GRID)) / T
        torch.testing.assert_close(nonlocality_of_weights(weights, GRID), expected)

    def test_centre_and_corner(self):
        grid, at = (3, 3, 3, 3), torch.eye(81).double()
        centre, corner = nonlocality_of_weights(at[[40, 0]], grid)
        assert centre.item() == pytest.approx(4 * 2 / 3)
        assert corner.item() == pytest.approx(4 * (2 / 3 + 1))

    def test_cells(self):
        cells = centred_cells((2, 1, 3, 1), torch.zeros(1))
        assert cells.tolist() == [[y, 0, x, 0] for y in (-0.5, 0.5) for x in (-1, 0, 1)]


class TestConvolutions:
    def attention(self, dims: int, kernel: int, side: int) -> torch.Tensor:
        """(K^d, t, t): one head for each offset, 1 where q − k is that offset; rows over the border are empty."""
        cells = torch.tensor(list(itertools.product(range(side), repeat=dims)))
        steps = range(-(kernel // 2), kernel // 2 + 1)
        offsets = torch.tensor(list(itertools.product(steps, repeat=dims)))
        differences = cells[:, None] - cells[None]  # (t, t, d)
        return (differences[None] == offsets[:, None, None]).all(dim=3)

    def test_3_to_the_4_equals_its_closed_form(self):
        """Seen from the middle cell of a 3⁴ grid, the only one whose kernel lies inside."""
        heads, middle = self.attention(4, 3, 3), 40
        rows = heads[:, middle].double()  # (81, t)
        assert (rows.sum(dim=1) == 1).all()
        phi = (rows @ squared_distances((3, 3, 3, 3))[middle]).sum() / len(heads)
        assert phi.item() == pytest.approx(convolution_nonlocality(4, 3)) == pytest.approx(8 / 3)

    @pytest.mark.parametrize(("dims", "kernel", "side"), [(4, 3, 4), (2, 5, 7), (2, 9, 3), (1, 11, 15)])
    def test_borders(self, dims, kernel, side):
        heads = self.attention(dims, kernel, side).double()
        grid = (side,) * dims + (1,) * (4 - dims)
        phi = (heads * squared_distances(grid)).sum() / heads.sum()
        assert bounded_convolution_nonlocality(dims, kernel, side) == pytest.approx(phi.item())

    def test_borders_cease_to_matter(self):
        assert bounded_convolution_nonlocality(4, 5, 100_000) == pytest.approx(convolution_nonlocality(4, 5), rel=1e-4)

    @pytest.mark.parametrize("dims", [4, 6])
    @pytest.mark.parametrize("kernel", [3, 5, 7, 9, 11])
    def test_offsets_have_the_closed_forms_mean(self, dims, kernel):
        squares, shares = convolution_offsets(dims, kernel)
        assert shares.sum() == pytest.approx(1)
        assert squares[-1] == dims * (kernel // 2) ** 2
        assert (squares * shares).sum() == pytest.approx(convolution_nonlocality(dims, kernel))
        assert convolution_nonlocality(dims, kernel) ** 0.5 < 8  # as in the paper's Figure 6: a length, not a square

    def test_offsets_by_hand(self):
        squares, shares = convolution_offsets(2, 3)
        assert squares.tolist() == [0, 1, 2]
        np.testing.assert_allclose(shares, np.array([1, 4, 4]) / 9)

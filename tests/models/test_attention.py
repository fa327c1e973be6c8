"""Additive attention: against the equations as loops."""

import numpy as np
import pytest
import torch
from helpers import reference
from helpers.tensors import GRID, POSITIONS, random64, weights_of
from torch.autograd import gradcheck

from transformatcher.errors import InputError
from transformatcher.models.attention import PaperAttention, ReleasedAttention
from transformatcher.models.rotary import AxialRotary, Checkerboard, NoPosition

ATTENTIONS = [
    (PaperAttention, lambda: AxialRotary(4, 4), reference.paper_attention),
    (ReleasedAttention, Checkerboard, reference.released_attention),
]


@pytest.mark.parametrize(("kind", "position", "reference"), ATTENTIONS)
def test_equals_the_equations(kind, position, reference):
    attention = kind(6, heads=4, head_dim=4, position=position()).double()
    x = random64(2, len(POSITIONS), 6)
    out = attention(x, GRID).detach()
    for row in range(2):
        expected = reference(x[row].numpy(), POSITIONS, weights_of(attention), 4, 4)
        np.testing.assert_allclose(out[row], expected, atol=1e-12)


@pytest.mark.parametrize("kind", [PaperAttention, ReleasedAttention])
@pytest.mark.parametrize("position", [NoPosition, Checkerboard, lambda: AxialRotary(4, 2)])
def test_gradcheck(kind, position):
    attention = kind(3, heads=4, head_dim=2, position=position()).double()
    parameters = tuple(attention.parameters())

    def run(x, *_):
        return attention(x, (1, 2, 2, 1))

    assert gradcheck(run, (random64(1, 4, 3, grad=True), *parameters))


@pytest.mark.parametrize("kind", [PaperAttention, ReleasedAttention])
def test_without_position_matches_have_no_order(kind):
    attention = kind(6, heads=4, head_dim=4).double()
    x = random64(1, len(POSITIONS), 6)
    order = torch.randperm(len(POSITIONS))
    torch.testing.assert_close(attention(x[:, order], GRID), attention(x, GRID)[:, order])


def test_released_needs_an_even_head_dim():
    with pytest.raises(InputError, match="head_dim 3"):
        ReleasedAttention(6, heads=2, head_dim=3)

"""One block: against loops."""

import numpy as np
from helpers import reference
from helpers.tensors import GRID, POSITIONS, random64, randomise, weights_of

from transformatcher.models.attention import PaperAttention
from transformatcher.models.block import Block
from transformatcher.models.rotary import AxialRotary


def test_equals_naive_loops():
    block = randomise(Block(PaperAttention(6, 4, 4, AxialRotary(4, 4)), 6, ffn_ratio=2)).double()
    x = random64(1, len(POSITIONS), 6)
    expected = reference.block(
        x[0].numpy(), weights_of(block), lambda x, w: reference.paper_attention(x, POSITIONS, w, 4, 4)
    )
    np.testing.assert_allclose(block(x, GRID)[0].detach(), expected, atol=1e-12)

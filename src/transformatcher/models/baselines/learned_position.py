"""Grid → a learned vector for each match, to be added to it (section 5.2, "Analysis on positional embedding").

The vectors are learned for one grid. For another grid they are interpolated (``align_corners``).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.models.resize4d import resize4d
from transformatcher.models.rotary import Grid4

STD = 0.02  # of the initial vectors: small compared with the matches


class AxialPositionEmbedding(nn.Module):
    """A vector for each cell of each axis; that of a match is the sum of its four. 960 weights for 15⁴ and ``dim`` 16.

    DEVIATION: the paper refers to fairseq's embedding, which has a vector for each match
    (:class:`MatchPositionEmbedding`).
    """

    def __init__(self, dim: int, grid: Grid4) -> None:
        super().__init__()
        self.axes = nn.ParameterList(nn.init.normal_(torch.empty(dim, n), std=STD / 2) for n in grid)

    def forward(self, grid: Grid4) -> Float[Tensor, "d t"]:
        """The vectors of the matches of ``grid``, flattened in the order hs, ws, ht, wt."""
        ys, xs, yt, xt = (_interpolated(axis, n) for axis, n in zip(self.axes, grid, strict=True))  # (d, n)
        src, trg = ys[:, :, None] + xs[:, None], yt[:, :, None] + xt[:, None]
        return (src.flatten(1)[:, :, None] + trg.flatten(1)[:, None]).flatten(1)


class MatchPositionEmbedding(nn.Module):
    """A vector for each match: 810,000 weights for 15⁴ and ``dim`` 16."""

    def __init__(self, dim: int, grid: Grid4) -> None:
        super().__init__()
        self.table = nn.Parameter(nn.init.normal_(torch.empty(dim, *grid), std=STD))

    def forward(self, grid: Grid4) -> Float[Tensor, "d t"]:
        """The vectors of the matches of ``grid``, flattened in the order hs, ws, ht, wt."""
        hs, ws, ht, wt = grid
        return resize4d(self.table, (hs, ws), (ht, wt)).flatten(1)


def _interpolated(axis: Float[Tensor, "d n"], n: int) -> Float[Tensor, "d m"]:
    if axis.shape[1] == n:
        return axis
    return F.interpolate(axis[None], n, mode="linear", align_corners=True)[0]

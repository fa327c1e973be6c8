"""Correlation → refined map by attention between source cells: cost aggregation, a baseline of the ablations.

Cho et al. 2021, "CATs: Cost Aggregation Transformers for Visual Correspondence": the correlation is reshaped to two
dimensions, so that a source cell is a token and its similarities to all target cells are the token's features. Cells
attend to cells, not matches to matches.
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.errors import InputError
from transformatcher.models.baselines.softmax_attention import VanillaAttention
from transformatcher.models.block import Block
from transformatcher.models.refiner import Refiner
from transformatcher.schema import Size

Maps = Float[Tensor, "b l s t"]  # s = hs·ws source cells, t = ht·wt target cells


class CostAggregation(Refiner):
    """A transformer over the cells of each layer's map and over the layers of each cell, applied to both sides in turn.

    DEVIATION: CATs appends projected image features to the correlation; here the refiner gets the correlation alone.
    DEVIATION: CATs has one channel for each target cell, and millions of weights; here these are projected to ``dim``
    channels and back, so that the number of weights is similar to match-to-match attention.
    DEVIATION: CATs averages the layers' maps; here the weights of that mean are learned.

    Args:
        layers: channels of the correlation.
        grid: (h, w) of the cells of both images; the weights fit no other grid.
        dim: channels of a token.
        depth: number of blocks within a layer, each followed by one across layers.
        heads, head_dim, ffn_ratio: of each block.
        correlation_skip, refiner_scale: see :class:`Refiner`.
    """

    def __init__(
        self,
        layers: int,
        grid: Size,
        dim: int = 32,
        depth: int = 1,
        heads: int = 8,
        head_dim: int = 4,
        ffn_ratio: int = 4,
        correlation_skip: float = 0.0,
        refiner_scale: float = 1.0,
    ) -> None:
        super().__init__(layers, correlation_skip, refiner_scale)
        self.grid = grid
        h, w = grid
        self.to_tokens = nn.Linear(h * w, dim)
        self.layer_vectors, self.row_vectors, self.column_vectors = (
            nn.Parameter(nn.init.normal_(torch.empty(n, dim), std=0.02)) for n in (layers, h, w)
        )
        self.within, self.across = (
            nn.ModuleList(Block(VanillaAttention(dim, heads, head_dim), dim, ffn_ratio) for _ in range(depth))
            for _ in range(2)
        )
        self.to_cells = nn.Linear(dim, h * w)
        self.score = nn.Linear(layers, 1)
        nn.init.constant_(self.score.weight, 1 / layers)
        self.zero_init_head(self.score)

    def refine(self, corr: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b hs ws ht wt"]:
        """Source cells as tokens, then target cells, with the same weights; each with a residual connection."""
        hs, ws, ht, wt = corr.shape[2:]
        if not (hs, ws) == (ht, wt) == self.grid:
            raise InputError(
                f"cost aggregation has weights for each cell of {self.grid[0]} × {self.grid[1]} on both sides, got "
                f"{hs} × {ws} and {ht} × {wt}; build and train it with the image_size or grid that you need"
            )
        maps = rearrange(corr, "b l hs ws ht wt -> b l (hs ws) (ht wt)").to(self.score.weight.dtype)
        maps = maps + self.aggregate(maps)
        maps = maps + self.aggregate(maps.mT).mT
        refined = torch.einsum("l,blst->bst", self.score.weight[0], maps) + self.score.bias
        return rearrange(refined, "b (hs ws) (ht wt) -> b hs ws ht wt", hs=hs, ht=ht)

    def aggregate(self, maps: Maps) -> Maps:
        """The residual that attention adds to the maps."""
        b, layers, s, _ = maps.shape
        h, w = self.grid
        x = self.to_tokens(maps) + self._position_vectors()  # (b, l, s, d)
        for within, across in zip(self.within, self.across, strict=True):
            x = within(rearrange(x, "b l s d -> (b l) s d"), (h, w, 1, 1))
            x = across(rearrange(x, "(b l) s d -> (b s) l d", b=b), (layers, 1, 1, 1))
            x = rearrange(x, "(b s) l d -> b l s d", s=s)
        return self.to_cells(x)

    def _position_vectors(self) -> Float[Tensor, "l s d"]:
        cells = self.row_vectors[:, None] + self.column_vectors  # (h, w, d)
        return self.layer_vectors[:, None] + cells.flatten(0, 1)

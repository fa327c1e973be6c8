"""Correlation of several layers → one refined score for each candidate match, by attention (section 4.2)."""

from collections.abc import Callable
from typing import cast

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.errors import InputError
from transformatcher.models.attention import PaperAttention
from transformatcher.models.backend import Backend, HasBackend
from transformatcher.models.block import Block
from transformatcher.models.fused import dispatch, stages
from transformatcher.models.neighbourhood_consensus import NeighbourhoodConsensus
from transformatcher.models.refiner import Refiner


class MatchToMatch(Refiner, HasBackend):
    """A transformer whose tokens are the candidate matches. The features of a match are its similarities at all layers.

    Args:
        layers: channels of the correlation, one for each feature layer.
        dim: channels of a match inside the transformer (the paper's D_in).
        depth: number of blocks (the paper's N).
        ffn_ratio: hidden channels of a block's MLP, as a multiple of ``dim``.
        make_attention: called with ``dim`` for each block; returns a module ``(x, grid) → x`` for matches
            ``(b, t, dim)``.
        correlation_skip, refiner_scale: see :class:`Refiner`.
        position_embedding: a module that returns a vector for each match of a grid, ``(dim, t)``, which is added to the
            embedded matches; None: without, as in the paper, whose positions are part of the attention.
        consensus: DEVIATION: 4-D convolutions parallel to the blocks; the outputs of both are summed.
    """

    def __init__(
        self,
        layers: int,
        dim: int = 16,
        depth: int = 6,
        ffn_ratio: int = 4,
        make_attention: Callable[[int], nn.Module] = PaperAttention,
        correlation_skip: float = 0.0,
        refiner_scale: float = 1.0,
        position_embedding: nn.Module | None = None,
        consensus: NeighbourhoodConsensus | None = None,
    ) -> None:
        super().__init__(layers, correlation_skip, refiner_scale)
        self.embed = nn.Linear(layers, dim)
        self.blocks = nn.ModuleList(Block(make_attention(dim), dim, ffn_ratio) for _ in range(depth))
        self.score = nn.Linear(dim, 1)
        self.zero_init_head(self.score)
        self.position_embedding = position_embedding
        self.consensus = consensus
        if consensus is not None:
            self.zero_init_head(consensus.score)

    def set_backend(self, backend: Backend) -> None:
        """Choose the implementation of the blocks and of the convolutions parallel to them."""
        super().set_backend(backend)
        if self.consensus is not None:
            self.consensus.set_backend(backend)

    def refine(self, corr: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b hs ws ht wt"]:
        """Output of the blocks, plus that of the convolutions if there are any."""
        refined = self._attend(corr)
        return refined if self.consensus is None else refined + self.consensus.refine(corr)

    def _attend(self, corr: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b hs ws ht wt"]:
        hs, ws, ht, wt = corr.shape[2:]
        vectors = None if self.position_embedding is None else self.position_embedding((hs, ws, ht, wt))  # (d, t)
        if self._runs_fused():
            return stages.refine(self.embed, cast(list[Block], list(self.blocks)), self.score, corr, vectors)
        x = self.embed(rearrange(corr, "b l hs ws ht wt -> b (hs ws ht wt) l").to(self.embed.weight.dtype))  # (b, t, d)
        if vectors is not None:
            x = x + vectors.T
        for block in self.blocks:
            x = block(x, (hs, ws, ht, wt))
        return rearrange(self.score(x), "b (hs ws ht wt) 1 -> b hs ws ht wt", hs=hs, ws=ws, ht=ht)

    def _runs_fused(self) -> bool:
        if self.backend == "eager":
            return False
        can_fuse = all(dispatch.can_fuse(block.attention) for block in cast(list[Block], list(self.blocks)))
        if self.backend == "fused" and not can_fuse:
            raise InputError(
                "the fused backend supports the attention of the paper and of the released code only; "
                "choose the backend auto or eager"
            )
        return can_fuse


class MeanCorrelation(nn.Module):
    """No learned refiner: the mean of the correlation over its layers. The baseline for all trained refiners."""

    def forward(self, corr: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b hs ws ht wt"]:
        """Correlation in [0, 1] → its mean over the layers, in [0, 1]."""
        return corr.mean(dim=1)

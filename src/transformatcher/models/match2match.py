"""Multi-channel correlation → one refined score for every candidate match (section 4.2)."""

from collections.abc import Callable
from typing import cast

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.errors import InputError
from transformatcher.models.attention import PaperAttention
from transformatcher.models.block import Block
from transformatcher.models.fused import fold as fast
from transformatcher.models.neighbourhood_consensus import NeighbourhoodConsensus
from transformatcher.models.refiner import Refiner


class MatchToMatch(Refiner):
    """Every candidate match is a token; its features are its similarities at all layers.

    Args:
        layers: channels of the correlation.
        dim: channels of a match inside the module (D_in).
        depth: number of blocks (N).
        ffn_ratio: hidden channels of a block's MLP, as a multiple of ``dim``.
        make_attention: called once for each block; returns a module ``(x, grid) → x`` for tokens ``(b, t, dim)``.
        raw_gain, block_gain: see :class:`Refiner`.
        place: called with the grid; returns a vector ``(dim, t)`` for each match, which is added to it.
        consensus: DEVIATION: a local matcher beside the blocks; what both say is summed.
    """

    def __init__(
        self,
        layers: int,
        dim: int = 16,
        depth: int = 6,
        ffn_ratio: int = 4,
        make_attention: Callable[[int], nn.Module] = PaperAttention,
        raw_gain: float = 0.0,
        block_gain: float = 1.0,
        place: nn.Module | None = None,
        consensus: NeighbourhoodConsensus | None = None,
    ) -> None:
        super().__init__(layers, raw_gain, block_gain)
        self.embed = nn.Linear(layers, dim)
        self.blocks = nn.ModuleList(Block(make_attention(dim), dim, ffn_ratio) for _ in range(depth))
        self.score = nn.Linear(dim, 1)
        self.start_from_raw(self.score)
        self.place = place
        self.consensus = consensus
        if consensus is not None:
            self.start_from_raw(consensus.score)
        # fast: the fused passes; plain: this file; auto: fast where the passes know the attention
        self.path: fast.PathName = "auto"

    def _fast_path(self) -> bool:
        known = all(fast.supported(block.attention) for block in cast(list[Block], list(self.blocks)))
        if self.path == "fast" and not known:
            raise InputError("the fast path knows the attentions of the paper and of the released code only")
        return known

    def refine(self, corr: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b hs ws ht wt"]:
        """What the blocks say, and the convolutions beside them where there are some."""
        said = self._attend(corr)
        return said if self.consensus is None else said + self.consensus.refine(corr)

    def _attend(self, corr: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b hs ws ht wt"]:
        hs, ws, ht, wt = corr.shape[2:]
        vectors = None if self.place is None else self.place((hs, ws, ht, wt))  # (d, t)
        if self.path != "plain" and self._fast_path():
            return fast.refine(self.embed, cast(list[Block], list(self.blocks)), self.score, corr, vectors)
        x = self.embed(rearrange(corr, "b l hs ws ht wt -> b (hs ws ht wt) l").to(self.embed.weight.dtype))  # (b, t, d)
        if vectors is not None:
            x = x + vectors.T
        for block in self.blocks:
            x = block(x, (hs, ws, ht, wt))
        return rearrange(self.score(x), "b (hs ws ht wt) 1 -> b hs ws ht wt", hs=hs, ws=ws, ht=ht)


class MeanCorrelation(nn.Module):
    """No learned matcher: the mean over the layers. The baseline beside which every trained number stands."""

    def forward(self, corr: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b hs ws ht wt"]:
        """The mean map, in [0, 1]."""
        return corr.mean(dim=1)

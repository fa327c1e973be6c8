"""Multi-channel correlation → one refined score for every candidate match (section 4.2)."""

from collections.abc import Callable
from typing import cast

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.errors import InputError
from transformatcher.models import fast
from transformatcher.models.attention import PaperAttention
from transformatcher.models.block import Block


class MatchToMatch(nn.Module):
    """Every candidate match is a token; its features are its similarities at all layers.

    Args:
        layers: channels of the correlation.
        dim: channels of a match inside the module (D_in).
        depth: number of blocks (N).
        ffn_ratio: hidden channels of a block's MLP, as a multiple of ``dim``.
        make_attention: called once for each block; returns a module ``(x, grid) → x`` for tokens ``(b, t, dim)``.
        raw_gain: DEVIATION: if positive, the refined map is a sum of what the blocks say, zero at first, and a weighted
            mean of the raw correlations times this. So learning begins from a matcher that works.
        block_gain: weight of what the blocks say in the refined map.
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
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(layers, dim)
        self.blocks = nn.ModuleList(Block(make_attention(dim), dim, ffn_ratio) for _ in range(depth))
        self.score = nn.Linear(dim, 1)
        self.raw_gain, self.block_gain = raw_gain, block_gain
        if raw_gain:
            self.mix = nn.Parameter(torch.full((layers,), 1 / layers))
            nn.init.zeros_(self.score.weight)
            nn.init.zeros_(self.score.bias)
        # fast: the fused passes; plain: this file; auto: fast where the passes know the attention
        self.path: fast.PathName = "auto"

    def _fast_path(self) -> bool:
        known = all(fast.supported(block.attention) for block in cast(list[Block], list(self.blocks)))
        if self.path == "fast" and not known:
            raise InputError("the fast path knows the attentions of the paper and of the released code only")
        return known

    def forward(self, corr: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b hs ws ht wt"]:
        """The refined map; its values are logits of any sign."""
        if corr.shape[1] != self.embed.in_features:
            raise InputError(f"matcher built for {self.embed.in_features} correlation layers, got {corr.shape[1]}")
        refined = self.block_gain * self._refine(corr)
        if self.raw_gain:
            refined = refined + self.raw_gain * torch.einsum("l,blhwij->bhwij", self.mix, corr.to(self.mix.dtype))
        return refined

    def _refine(self, corr: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b hs ws ht wt"]:
        if self.path != "plain" and self._fast_path():
            return fast.refine(self.embed, cast(list[Block], list(self.blocks)), self.score, corr)
        hs, ws, ht, wt = corr.shape[2:]
        x = self.embed(rearrange(corr, "b l hs ws ht wt -> b (hs ws ht wt) l").to(self.embed.weight.dtype))  # (b, t, d)
        for block in self.blocks:
            x = block(x, (hs, ws, ht, wt))
        return rearrange(self.score(x), "b (hs ws ht wt) 1 -> b hs ws ht wt", hs=hs, ws=ws, ht=ht)


class MeanCorrelation(nn.Module):
    """No learned matcher: the mean over the layers. The baseline beside which every trained number stands."""

    def forward(self, corr: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b hs ws ht wt"]:
        """The mean map, in [0, 1]."""
        return corr.mean(dim=1)

"""Multi-channel correlation → one refined score for every candidate match: what all learned matchers share."""

from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.errors import InputError


class Refiner(nn.Module):
    """The frame of a matcher: what it says, and the raw correlation beside it.

    Args:
        layers: channels of the correlation.
        raw_gain: DEVIATION: if positive, the refined map is a sum of what the matcher says, zero at first, and a
            weighted mean of the raw correlations times this. So learning begins from a matcher that works.
        block_gain: weight of what the matcher says in the refined map.
    """

    def __init__(self, layers: int, raw_gain: float = 0.0, block_gain: float = 1.0) -> None:
        super().__init__()
        self.layers, self.raw_gain, self.block_gain = layers, raw_gain, block_gain
        if raw_gain:
            self.mix = nn.Parameter(torch.full((layers,), 1 / layers))

    def start_from_raw(self, last: nn.Module) -> None:
        """Where there is a raw gain, ``last``, the matcher's last layer, says nothing at first."""
        if self.raw_gain:
            for parameter in last.parameters():
                nn.init.zeros_(parameter)

    def forward(self, corr: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b hs ws ht wt"]:
        """The refined map; its values are logits of any sign."""
        if corr.shape[1] != self.layers:
            raise InputError(f"matcher built for {self.layers} correlation layers, got {corr.shape[1]}")
        refined = self.block_gain * self.refine(corr)
        if self.raw_gain:
            refined = refined + self.raw_gain * torch.einsum("l,blhwij->bhwij", self.mix, corr.to(self.mix.dtype))
        return refined

    @abstractmethod
    def refine(self, corr: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b hs ws ht wt"]:
        """What the matcher says, the raw correlation not added; ``corr`` may be of lower precision than the weights."""

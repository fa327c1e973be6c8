"""Correlation of several layers → one refined score for each candidate match: base class of learned refiners."""

from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.errors import InputError


class Refiner(nn.Module):
    """A learned network that refines the correlation, with an optional skip connection around it.

    Args:
        layers: channels of the correlation, one for each feature layer.
        correlation_skip: DEVIATION: if positive, the refined map is the network's output plus this times a learned
            weighted mean of the input correlations. The output of the network starts at zero, so that training starts
            from a matcher that works. 0: without, as in the paper.
        refiner_scale: factor of the network's output in the refined map.
    """

    def __init__(self, layers: int, correlation_skip: float = 0.0, refiner_scale: float = 1.0) -> None:
        super().__init__()
        self.layers, self.correlation_skip, self.refiner_scale = layers, correlation_skip, refiner_scale
        if correlation_skip:
            self.mix = nn.Parameter(torch.full((layers,), 1 / layers))  # weights of the layers in the skip connection

    def zero_init_head(self, head: nn.Module) -> None:
        """Set the network's last layer to zero if there is a skip connection, from which training then starts."""
        if self.correlation_skip:
            for parameter in head.parameters():
                nn.init.zeros_(parameter)

    def forward(self, corr: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b hs ws ht wt"]:
        """Correlation in [0, 1] → refined map; its values are logits of any sign."""
        if corr.shape[1] != self.layers:
            raise InputError(f"refiner built for {self.layers} correlation layers, got {corr.shape[1]}")
        refined = self.refiner_scale * self.refine(corr)
        if self.correlation_skip:
            skip = torch.einsum("l,blhwij->bhwij", self.mix, corr.to(self.mix.dtype))
            refined = refined + self.correlation_skip * skip
        return refined

    @abstractmethod
    def refine(self, corr: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b hs ws ht wt"]:
        """The network's output, without the skip connection. ``corr`` may have lower precision than the weights."""

"""Correlation → refined map by 4-D convolutions: neighbourhood consensus, a baseline of the ablations.

Also what may stand beside the blocks of match-to-match attention (its ``consensus``).

Rocco et al. 2018, "Neighbourhood Consensus Networks": a match is believed where the matches around it, in both images,
say the same. Convolutions are local and treat every place alike: what match-to-match attention sets out to mend.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.models.refiner import Refiner

EPS = 1e-6  # a map without any similarity stays zero


def soft_mutual(corr: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b l hs ws ht wt"]:
    """Each score times its share of the best one of its source cell, and of its target cell.

    A score stays as it is where both cells are each other's nearest neighbours, and sinks elsewhere.
    """
    best_of_src = corr.amax(dim=(4, 5), keepdim=True).clamp(min=EPS)
    best_of_trg = corr.amax(dim=(2, 3), keepdim=True).clamp(min=EPS)
    return corr * (corr / best_of_src) * (corr / best_of_trg)


class Conv4d(nn.Module):
    """A 4-D convolution that keeps the grid, as a 2-D one over the target plane.

    The k² neighbours of a source cell become its channels: k² times the memory, but a convolution that GPUs do fast.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int = 3) -> None:
        super().__init__()
        bound = (inputs * kernel**4) ** -0.5  # as torch's own convolutions
        self.weight = nn.Parameter(torch.empty(outputs, inputs, *[kernel] * 4).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))

    def forward(self, x: Float[Tensor, "b c hs ws ht wt"]) -> Float[Tensor, "b e hs ws ht wt"]:
        """Channels → channels; the outside counts as zeros."""
        kernel = self.weight.shape[-1]
        reach = kernel // 2
        padded = F.pad(x, (0, 0, 0, 0, reach, reach, reach, reach))
        neighbours = padded.unfold(2, kernel, 1).unfold(3, kernel, 1)  # a view
        stacked = rearrange(neighbours, "b c hs ws ht wt i j -> (b hs ws) (c i j) ht wt")
        out = F.conv2d(stacked, self.weight.flatten(1, 3), self.bias, padding=reach)
        return rearrange(out, "(b hs ws) e ht wt -> b e hs ws ht wt", b=x.shape[0], hs=x.shape[2])


class NeighbourhoodConsensus(Refiner):
    """Convolutions with ReLU between them, over the correlation and over its transpose with the same weights.

    The sum of both does not depend on which image is called the source. NC-Net has three 5⁴ convolutions of 16
    channels on one correlation channel; with 3⁴ the size is near that of match-to-match attention.

    DEVIATION: the last convolution has no ReLU and no mutual filter behind it: what comes out are logits.

    Args:
        layers: channels of the correlation.
        dim: channels between convolutions.
        depth: how many convolutions.
        kernel: cells along each axis, odd.
        mutual: filter the correlation by :func:`soft_mutual` first, each channel by itself.
        raw_gain, block_gain: see :class:`Refiner`.
    """

    def __init__(
        self,
        layers: int,
        dim: int = 16,
        depth: int = 3,
        kernel: int = 3,
        mutual: bool = True,
        raw_gain: float = 0.0,
        block_gain: float = 1.0,
    ) -> None:
        super().__init__(layers, raw_gain, block_gain)
        self.mutual = mutual
        widths = [layers, *[dim] * (depth - 1), 1]
        *convs, self.score = (Conv4d(inputs, outputs, kernel) for inputs, outputs in pairwise(widths))
        self.convs = nn.ModuleList(convs)
        self.start_from_raw(self.score)

    def refine(self, corr: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b hs ws ht wt"]:
        """N(c) + N(cᵀ)ᵀ."""
        corr = corr.to(self.score.bias.dtype)
        if self.mutual:
            corr = soft_mutual(corr)
        back = self._convolve(rearrange(corr, "b l hs ws ht wt -> b l ht wt hs ws"))
        return self._convolve(corr) + rearrange(back, "b ht wt hs ws -> b hs ws ht wt")

    def _convolve(self, x: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b hs ws ht wt"]:
        for conv in self.convs:
            x = conv(x).relu()
        return self.score(x)[:, 0]

"""Correlation → refined map by 4-D convolutions: neighbourhood consensus.

In place of match-to-match attention a baseline of the ablations; beside its blocks (``consensus``) part of our recipes
and of the model that ships.

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
    """A 4-D convolution that keeps the grid, as a 3-D one over all axes but the rows of the source.

    Neighbouring rows become channels: of the input, stacked before it, or of the output, summed after it, whichever are
    fewer. It is done in the precision of its input.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int = 3) -> None:
        super().__init__()
        bound = (inputs * kernel**4) ** -0.5  # as torch's own convolutions
        self.weight = nn.Parameter(torch.empty(outputs, inputs, *[kernel] * 4).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))

    def forward(self, x: Float[Tensor, "b c hs ws ht wt"], swapped: bool = False) -> Float[Tensor, "b e hs ws ht wt"]:
        """Channels → channels; the outside counts as zeros.

        Args:
            x: the map.
            swapped: as if source and target of ``x`` were exchanged before, and exchanged back after.
        """
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        if swapped:
            weight = rearrange(weight, "e c i j m n -> e c m n i j")
        outputs, inputs, kernel = weight.shape[:3]
        rows = x.shape[2]
        x = rearrange(x, "b c hs ws ht wt -> b hs ws ht wt c")
        if outputs < inputs:
            parts = _pad_rows(_conv3d(x, rearrange(weight, "e c i j m n -> (i e) c j m n")), kernel // 2)
            by_row = rearrange(parts, "b rows ws ht wt (i e) -> i b rows ws ht wt e", i=kernel)
            out = sum((by_row[i, :, i : i + rows] for i in range(kernel)), start=bias)
        else:
            padded = _pad_rows(x, kernel // 2)
            stacked = torch.cat([padded[:, i : i + rows] for i in range(kernel)], dim=-1)  # (b, hs, ws, ht, wt, i·c)
            out = _conv3d(stacked, rearrange(weight, "e c i j m n -> e (i c) j m n")) + bias
        return rearrange(out, "b hs ws ht wt e -> b e hs ws ht wt")


def _conv3d(
    x: Float[Tensor, "b hs ws ht wt c"], weight: Float[Tensor, "e c kw ku kv"]
) -> Float[Tensor, "b hs ws ht wt e"]:
    """Each row of the source by itself."""
    rows = rearrange(x, "b hs ws ht wt c -> (b hs) c ws ht wt")
    last = torch.channels_last_3d  # the order in memory that convolutions are fast in
    out = F.conv3d(
        rows.contiguous(memory_format=last), weight.contiguous(memory_format=last), padding=weight.shape[-1] // 2
    )
    return rearrange(out, "(b hs) e ws ht wt -> b hs ws ht wt e", hs=x.shape[1])


def _pad_rows(x: Float[Tensor, "b hs ws ht wt c"], reach: int) -> Float[Tensor, "b rows ws ht wt c"]:
    return F.pad(x, (0, 0, 0, 0, 0, 0, 0, 0, reach, reach))


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
        """N(c) + N(cᵀ)ᵀ; all but the last convolution in the precision of the correlation."""
        x = soft_mutual(corr.to(self.score.bias.dtype)).to(corr.dtype) if self.mutual else corr
        return self._convolve(x) + self._convolve(x, swapped=True)

    def _convolve(self, x: Float[Tensor, "b l hs ws ht wt"], swapped: bool = False) -> Float[Tensor, "b hs ws ht wt"]:
        for conv in self.convs:
            x = conv(x, swapped).relu()
        return self.score(x.to(self.score.bias.dtype), swapped)[:, 0]

"""Correlation → refined map by 4-D convolutions: neighbourhood consensus.

Rocco et al. 2018, "Neighbourhood Consensus Networks": a match is reliable if the matches around it, in both images,
agree with it. The convolutions are local and the same at every position, which match-to-match attention improves on.

Instead of match-to-match attention it is a baseline of the ablations; parallel to its blocks it is part of the shipped
model.

In inference on a CPU, ``fused/native_conv.py`` computes the same; ``model.set_backend("eager")`` runs this code.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.models.backend import HasBackend
from transformatcher.models.fused import dispatch, native_conv
from transformatcher.models.refiner import Refiner

EPS = 1e-6  # avoids division by zero where all similarities are zero


def soft_mutual(corr: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b l hs ws ht wt"]:
    """NC-Net's soft mutual nearest-neighbour filter: each score times its ratios to the best of its two cells.

    A score is unchanged if both cells are each other's nearest neighbours, and lower otherwise.
    """
    best_of_src = corr.amax(dim=(4, 5), keepdim=True).clamp(min=EPS)
    best_of_trg = corr.amax(dim=(2, 3), keepdim=True).clamp(min=EPS)
    return corr * (corr / best_of_src) * (corr / best_of_trg)


class Conv4d(nn.Module):
    """A 4-D convolution with zero padding that keeps the grid, computed as a 3-D one over all axes but the source rows.

    Neighbouring source rows become channels: input channels, stacked before the 3-D convolution, or output channels,
    summed after it, whichever are fewer. It runs in the precision of its input.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int = 3) -> None:
        super().__init__()
        bound = (inputs * kernel**4) ** -0.5  # as torch's own convolutions
        self.weight = nn.Parameter(torch.empty(outputs, inputs, *[kernel] * 4).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))

    def forward(self, x: Float[Tensor, "b c hs ws ht wt"], swapped: bool = False) -> Float[Tensor, "b e hs ws ht wt"]:
        """The convolution of ``x``.

        Args:
            x: the map.
            swapped: exchange source and target of ``x`` before the convolution, and exchange them back after it.
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
    """The 3-D convolution of each source row by itself."""
    rows = rearrange(x, "b hs ws ht wt c -> (b hs) c ws ht wt")
    last = torch.channels_last_3d  # the memory layout in which convolutions are fastest
    out = F.conv3d(
        rows.contiguous(memory_format=last), weight.contiguous(memory_format=last), padding=weight.shape[-1] // 2
    )
    return rearrange(out, "(b hs) e ws ht wt -> b hs ws ht wt e", hs=x.shape[1])


def _pad_rows(x: Float[Tensor, "b hs ws ht wt c"], reach: int) -> Float[Tensor, "b rows ws ht wt c"]:
    return F.pad(x, (0, 0, 0, 0, 0, 0, 0, 0, reach, reach))


class NeighbourhoodConsensus(Refiner, HasBackend):
    """Convolutions with ReLU between them, applied to the correlation and, with the same weights, to its transpose.

    The sum of both does not depend on which image is the source. NC-Net has three 5⁴ convolutions of 16 channels on one
    correlation channel; with 3⁴, the number of weights is similar to match-to-match attention.

    DEVIATION: the last convolution has no ReLU and no mutual filter after it: its outputs are logits.

    Args:
        layers: channels of the correlation.
        dim: channels between convolutions.
        depth: number of convolutions.
        kernel: cells along each axis, odd.
        mutual_filter: filter the correlation by :func:`soft_mutual` first, each channel by itself.
        correlation_skip, refiner_scale: see :class:`Refiner`.
    """

    def __init__(
        self,
        layers: int,
        dim: int = 16,
        depth: int = 3,
        kernel: int = 3,
        mutual_filter: bool = True,
        correlation_skip: float = 0.0,
        refiner_scale: float = 1.0,
    ) -> None:
        super().__init__(layers, correlation_skip, refiner_scale)
        self.mutual_filter = mutual_filter
        widths = [layers, *[dim] * (depth - 1), 1]
        *convs, self.score = (Conv4d(inputs, outputs, kernel) for inputs, outputs in pairwise(widths))
        self.convs = nn.ModuleList(convs)
        self.zero_init_head(self.score)

    def refine(self, corr: Float[Tensor, "b l hs ws ht wt"]) -> Float[Tensor, "b hs ws ht wt"]:
        """N(c) + N(cᵀ)ᵀ; all convolutions but the last run in the precision of the correlation."""
        ready = dispatch.native_input(corr) if self._can_run_native() else None
        if ready is not None:
            convs = [(conv.weight, conv.bias) for conv in (*self.convs, self.score)]
            return native_conv.convolve_both_ways(soft_mutual(ready) if self.mutual_filter else ready, convs)
        x = soft_mutual(corr.to(self.score.bias.dtype)).to(corr.dtype) if self.mutual_filter else corr
        return self._convolve(x) + self._convolve(x, swapped=True)

    def _can_run_native(self) -> bool:
        """Whether the library in C computes the same function: not that of a subclass."""
        convs = (*self.convs, self.score)
        return (
            self.backend != "eager"
            and {type(self), *map(type, convs)} == {NeighbourhoodConsensus, Conv4d}
            and all(native_conv.fits(conv.weight) for conv in convs)
        )

    def _convolve(self, x: Float[Tensor, "b l hs ws ht wt"], swapped: bool = False) -> Float[Tensor, "b hs ws ht wt"]:
        for conv in self.convs:
            x = conv(x, swapped).relu()
        return self.score(x.to(self.score.bias.dtype), swapped)[:, 0]

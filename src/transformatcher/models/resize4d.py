"""4-D map → the same map on another grid, by bilinear interpolation over the source axes, then the target axes."""

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from transformatcher.schema import Size


def resize2d(maps: Float[Tensor, "b c h w"], size: Size) -> Float[Tensor, "b c h2 w2"]:
    """Bilinear interpolation that maps corner cells to corner cells (``align_corners``; see coords.py).

    Between the grids of a ResNet (8 × 8 of conv5_x and 15 × 15 of conv4_x for 240 pixels) this is geometrically exact:
    every second cell of the finer grid coincides with one of the coarser.
    """
    if tuple(maps.shape[-2:]) == size:
        return maps
    return F.interpolate(maps, size, mode="bilinear", align_corners=True)


def resize4d(corr: Float[Tensor, "b hs ws ht wt"], src: Size, trg: Size) -> Float[Tensor, "b hs2 ws2 ht2 wt2"]:
    """Interpolation over the source axes, then over the target axes; both are linear, so the order does not matter."""
    hs, ws, ht, wt = corr.shape[1:]
    if (hs, ws) == src and (ht, wt) == trg:
        return corr
    over_src = resize2d(rearrange(corr, "b hs ws ht wt -> b (ht wt) hs ws"), src)
    over_trg = resize2d(rearrange(over_src, "b (ht wt) hs ws -> b (hs ws) ht wt", ht=ht), trg)
    return rearrange(over_trg, "b (hs ws) ht wt -> b hs ws ht wt", hs=src[0])

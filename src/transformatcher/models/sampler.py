"""Dense flow and source keypoints → target keypoints (section 4.4)."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from transformatcher.coords import grid_norm
from transformatcher.errors import InputError

Sampler = Callable[[Float[Tensor, "b h w c"], Float[Tensor, "b n 2"]], Float[Tensor, "b n c"]]

EPSILON = 1e-5  # added under the root and to the sum of weights, as in the released code


def soft_sample(
    field: Float[Tensor, "b h w c"], points_norm: Float[Tensor, "b n 2"], *, threshold: float
) -> Float[Tensor, "b n c"]:
    """The paper's soft sampler W^(k): mean of the cells within ``threshold``, weighted by threshold - distance.

    Distances are in [-1, 1]² coordinates. Points outside the image are moved to its border.
    """
    _, h, w, _ = field.shape
    reach = ((1 / (h - 1)) ** 2 + (1 / (w - 1)) ** 2 + EPSILON) ** 0.5 if min(h, w) > 1 else float("inf")
    if threshold <= reach:
        raise InputError(
            f"soft sampler: with threshold {threshold}, some points of a {h} × {w} grid have no cell within reach; "
            f"choose a threshold above {reach:.4f}, or the bilinear sampler"
        )
    cells = grid_norm((h, w), like=field)
    offsets = points_norm.clamp(-1, 1)[:, :, None, None] - cells  # (b, n, h, w, 2)
    distances = (offsets.square().sum(dim=-1) + EPSILON).sqrt()
    weights = (threshold - distances).clamp(min=0)
    weights = weights / (weights.sum(dim=(2, 3), keepdim=True) + EPSILON)
    return torch.einsum("bnhw,bhwc->bnc", weights, field)


def bilinear_sample(field: Float[Tensor, "b h w c"], points_norm: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n c"]:
    """Bilinear interpolation: unlike the soft sampler, exact for any flow that is linear between cells."""
    sampled = F.grid_sample(
        field.permute(0, 3, 1, 2), points_norm[:, :, None].to(field.dtype), padding_mode="border", align_corners=True
    )  # (b, c, n, 1)
    return sampled[..., 0].transpose(1, 2)


def soft_sampler(threshold: float) -> Sampler:
    """:func:`soft_sample` with its threshold fixed."""
    return partial(soft_sample, threshold=threshold)

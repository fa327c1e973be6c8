"""Predictions and true target keypoints → a loss (section 4.4)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transformatcher.coords import norm_to_cell
from transformatcher.models.sampler import bilinear_sample


def keypoint_loss(
    predicted: Float[Tensor, "b n 2"], true: Float[Tensor, "b n 2"], visible: Bool[Tensor, "b n"]
) -> Float[Tensor, ""]:
    """Squared distance: mean over the visible keypoints of each pair, then over the pairs that have any."""
    return _mean_by_pair((predicted - true).square().sum(dim=-1), visible)


def map_cross_entropy(
    scores: Float[Tensor, "b hs ws ht wt"],
    src_kps_norm: Float[Tensor, "b n 2"],
    trg_kps_norm: Float[Tensor, "b n 2"],
    visible: Bool[Tensor, "b n"],
) -> Float[Tensor, ""]:
    """Cross-entropy of each keypoint's scores over all target cells; the truth is spread over the four nearest cells.

    DEVIATION: the paper has the squared distance alone. If two positions are equally likely, the squared distance is
    smallest in the middle between them, whereas the cross-entropy allows for both.
    """
    ht, wt = scores.shape[3:]
    logits = bilinear_sample(scores.flatten(3), src_kps_norm)  # (b, n, ht·wt)
    cells = norm_to_cell(trg_kps_norm.clamp(-1, 1), (ht, wt))[..., None]  # (b, n, 2, 1)
    along_x, along_y = (
        (1 - (cells[..., axis, :] - torch.arange(n, device=cells.device)).abs()).clamp(min=0)
        for axis, n in ((0, wt), (1, ht))
    )
    truth = (along_y[..., :, None] * along_x[..., None, :]).flatten(2)  # (b, n, ht·wt), sums to one
    return _mean_by_pair(-(truth * logits.log_softmax(dim=-1)).sum(dim=-1), visible)


def _mean_by_pair(values: Float[Tensor, "b n"], visible: Bool[Tensor, "b n"]) -> Float[Tensor, ""]:
    counts = visible.sum(dim=1)
    per_pair = values.masked_fill(~visible, 0).sum(dim=1) / counts.clamp(min=1)
    return per_pair.sum() / (counts > 0).sum().clamp(min=1)

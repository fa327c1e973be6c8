"""Predicted and true target keypoints → one number to minimise (section 4.4)."""

from jaxtyping import Bool, Float
from torch import Tensor


def keypoint_loss(
    predicted: Float[Tensor, "b n 2"], true: Float[Tensor, "b n 2"], visible: Bool[Tensor, "b n"]
) -> Float[Tensor, ""]:
    """Squared distance, mean over the visible keypoints of a pair, then over the pairs that have any."""
    squared = (predicted - true).square().sum(dim=-1).masked_fill(~visible, 0)
    counts = visible.sum(dim=1)
    per_pair = squared.sum(dim=1) / counts.clamp(min=1)
    return per_pair.sum() / (counts > 0).sum().clamp(min=1)

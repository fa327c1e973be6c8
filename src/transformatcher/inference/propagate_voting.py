"""Predictions of several references for one photo → the best supported one of each keypoint."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

AGREEMENT_RADIUS = 0.1  # of the longer side of a photo: predictions this near to each other support each other


@dataclass(frozen=True)
class KeypointEstimate:
    """The keypoints of one category on one photo."""

    kps_px: Float[np.ndarray, "n 2"]
    confidence: Float[np.ndarray, " n"]  # 0 where no reference shows the keypoint
    chosen: Int[np.ndarray, " n"]  # index of the reference that each keypoint comes from


def vote_keypoints(
    kps_px: Float[np.ndarray, "r n 2"], confidence: Float[np.ndarray, "r n"], side_px: int
) -> KeypointEstimate:
    """Choose one of the predictions of r references for each of n keypoints.

    Every reference votes for its own prediction and, with a weight that falls off as a Gaussian of the distance, for
    those near it. Its vote counts its confidence in the keypoint times its mean confidence in this photo. So of two
    references the more confident one wins, and among more, two that agree beat one that does not.

    Args:
        kps_px: the predictions of each reference.
        confidence: of each prediction; 0 where a reference does not show the keypoint.
        side_px: the longer side of the photo.

    Example:
        >>> kps_px = np.array([[[10.0, 10.0]], [[12.0, 10.0]], [[80.0, 80.0]]])  # the first two agree
        >>> vote_keypoints(kps_px, np.array([[0.5], [0.4], [0.6]]), side_px=100).kps_px
        array([[10., 10.]])
    """
    trust = confidence.sum(axis=1) / (confidence > 0).sum(axis=1).clip(1)  # (r,)
    distance = np.linalg.norm(kps_px[:, None] - kps_px[None], axis=3)  # (r, r, n)
    votes = confidence * trust[:, None]
    support = (np.exp(-((distance / (AGREEMENT_RADIUS * side_px)) ** 2) / 2) * votes[None]).sum(axis=1)  # (r, n)
    chosen = np.where(confidence > 0, support, -1.0).argmax(axis=0)  # (n,)
    column = np.arange(len(chosen))
    return KeypointEstimate(kps_px[chosen, column], confidence[chosen, column], chosen)

"""Two images → matches and a homography, as the matchers of vismatch return them."""

import numpy as np
from jaxtyping import Float
from torch import Tensor

from transformatcher.inference.matcher import Matcher

try:
    from vismatch import BaseMatcher
except ImportError as error:
    raise ModuleNotFoundError("the package vismatch is needed here: pip install vismatch", name="vismatch") from error

Points = Float[np.ndarray, "n 2"]


class VismatchMatcher(BaseMatcher):  # type: ignore[misc]
    """One of vismatch's matchers, made by itself instead of by ``get_matcher``, which knows only its own.

    Two photos of different things of one kind have no homography in common: ``matched_kpts0`` and ``matched_kpts1`` are
    what to look at, and a generous ``ransac_reproj_thresh`` keeps more of them as inliers.

    Args:
        device: as vismatch names it.
        matcher: None for the model that comes with the package.
        options: of vismatch's BaseMatcher, such as ``ransac_reproj_thresh``.
    """

    def __init__(self, device: str = "cpu", matcher: Matcher | None = None, **options: float | int) -> None:
        super().__init__(device, **options)
        self.matcher = matcher or Matcher.from_pretrained(device=device)

    def _forward(
        self, img0: Float[Tensor, "3 h w"], img1: Float[Tensor, "3 h2 w2"]
    ) -> tuple[Points, Points, None, None, None, None, Float[np.ndarray, " n"]]:
        """Images in [0, 1] → matched points; there are no detections nor descriptors."""
        matches = self.matcher.match(img0.clamp(0, 1), img1.clamp(0, 1))
        points = [
            points.clip(0, np.nextafter(np.array([image.shape[2], image.shape[1]], dtype=float), 0))
            for points, image in ((matches.keypoints0, img0), (matches.keypoints1, img1))
        ]  # vismatch drops points on the right and lower border, which are ours as well
        return points[0], points[1], None, None, None, None, matches.confidence

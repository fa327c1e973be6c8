"""Two images → matches and a homography, with the interface of vismatch."""

import numpy as np
from jaxtyping import Float
from torch import Tensor

from transformatcher.inference.matcher import Matcher

try:
    from vismatch import BaseMatcher
except ImportError as error:
    raise ModuleNotFoundError("this needs the package vismatch: pip install vismatch", name="vismatch") from error

Points = Float[np.ndarray, "n 2"]


class VismatchMatcher(BaseMatcher):  # type: ignore[misc]
    """A matcher for vismatch. Construct it directly, because ``get_matcher`` knows only vismatch's own.

    Photos of two different objects of one kind are not related by a homography. Use ``matched_kpts0`` and
    ``matched_kpts1``, or a large ``ransac_reproj_thresh``, which keeps more of them as inliers.

    Args:
        device: such as "cpu" or "cuda".
        matcher: None for the model that comes with the package.
        options: of vismatch's BaseMatcher, such as ``ransac_reproj_thresh``.

    Example:
        >>> result = VismatchMatcher(ransac_reproj_thresh=20)(image0, image1)
        >>> result["matched_kpts0"], result["matched_kpts1"]
    """

    def __init__(self, device: str = "cpu", matcher: Matcher | None = None, **options: float | int) -> None:
        super().__init__(device, **options)
        self.matcher = matcher or Matcher.from_pretrained(device=device)

    def _forward(
        self, img0: Float[Tensor, "3 h w"], img1: Float[Tensor, "3 h2 w2"]
    ) -> tuple[Points, Points, None, None, None, None, Float[np.ndarray, " n"]]:
        """Images in [0, 1] → matched points and their confidence; None for keypoints and descriptors."""
        matches = self.matcher.match(img0.clamp(0, 1), img1.clamp(0, 1))
        points = [
            points.clip(0, np.nextafter(np.array([image.shape[2], image.shape[1]], dtype=float), 0))
            for points, image in ((matches.keypoints0, img0), (matches.keypoints1, img1))
        ]  # vismatch drops points on the right and lower border, which are inside the image for us
        return points[0], points[1], None, None, None, None, matches.confidence

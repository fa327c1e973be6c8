"""Two photos → a dense warp and its certainty, with the interface of RoMa."""

import torch
from jaxtyping import Float
from torch import Tensor

from transformatcher.coords import norm_to_px
from transformatcher.inference.matched_pair import MatchedPair
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.photos import PhotoLike
from transformatcher.schema import Size


class RomaMatcher:
    """``match``, ``sample`` and ``to_pixel_coordinates`` as in RoMa (Edstedt et al. 2024), which need not be installed.

    Args:
        matcher: None for the model that comes with the package.
        size: (h, w) of the warp; None for the model's image size. The model's flow is coarser, and interpolated.
        symmetric: the warp has both directions, from A to B on the left and from B to A on the right.

    Example:
        >>> warp, certainty = RomaMatcher().match("cat_a.jpg", "cat_b.jpg")  # (272, 544, 4), (272, 544)
    """

    def __init__(self, matcher: Matcher | None = None, size: Size | None = None, symmetric: bool = True) -> None:
        self.matcher = matcher or Matcher.from_pretrained()
        self.size = size or self.matcher.config.image_size
        self.symmetric = symmetric

    @torch.inference_mode()
    def match(self, im_a: PhotoLike, im_b: PhotoLike) -> tuple[Float[Tensor, "h w 4"], Float[Tensor, "h w"]]:
        """Match every pixel of A with B and, if symmetric, every pixel of B with A.

        Returns:
            The warp: (x, y) on A and (x, y) on B, both in [-1, 1]², for the pixel centres of A and, to the right of
            them, of B. And its certainty, which is a probability if the model is calibrated.
        """
        pair = next(self.matcher.pairs(im_a, [im_b]))
        here, there, certainty = self._warp(pair)
        warp = torch.cat([here, there], dim=-1)
        if self.symmetric:
            here, there, back = self._warp(pair.reversed())
            warp = torch.cat([warp, torch.cat([there, here], dim=-1)], dim=1)
            certainty = torch.cat([certainty, back], dim=1)
        return warp, certainty

    def sample(
        self, warp: Float[Tensor, "h w 4"], certainty: Float[Tensor, "h w"], num: int = 10_000
    ) -> tuple[Float[Tensor, "n 4"], Float[Tensor, " n"]]:
        """Draw at most ``num`` matches without replacement, with probabilities proportional to their certainty."""
        matches, weights = warp.reshape(-1, 4), certainty.reshape(-1)
        drawn = torch.multinomial(weights, min(num, int((weights > 0).sum())), replacement=False)
        return matches[drawn], weights[drawn]

    def to_pixel_coordinates(
        self, coords: Float[Tensor, "*n 4"], h_a: int, w_a: int, h_b: int, w_b: int
    ) -> tuple[Float[Tensor, "*n 2"], Float[Tensor, "*n 2"]]:
        """Matches in [-1, 1]² → points on A and points on B, in pixels of photos of these sizes."""
        return norm_to_px(coords[..., :2], (h_a, w_a)), norm_to_px(coords[..., 2:], (h_b, w_b))

    def _warp(self, pair: MatchedPair) -> tuple[Tensor, Tensor, Tensor]:
        """Pixel centres of the source (h, w, 2), their positions on the target (h, w, 2), and certainty (h, w)."""
        h, w = self.size
        ys, xs = (torch.linspace(-1 + 1 / n, 1 - 1 / n, n, device=pair.refined.device) for n in (h, w))
        here = torch.stack(torch.meshgrid(xs, ys, indexing="xy"), dim=-1)  # (h, w, 2)
        there, confidence = pair.warp_points(here.flatten(0, 1))
        certainty = torch.from_numpy(confidence).to(here)
        return here, there.reshape(h, w, 2).to(here.dtype).clamp(-1, 1), certainty.reshape(h, w)

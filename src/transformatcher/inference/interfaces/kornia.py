"""Two batches of images in a dict → matched keypoints in a dict, with the interface of ``kornia.feature.LoFTR``."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.coords import norm_to_px
from transformatcher.errors import InputError
from transformatcher.images import IMAGENET_MEAN, IMAGENET_STD
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.readout import TwoWayFlow, read_grid
from transformatcher.schema import Size


class KorniaMatcher(nn.Module):
    """A replacement for ``kornia.feature.LoFTR``; kornia need not be installed.

    Points are (x, y) in pixels, with pixel centres at half-integers, as LoFTR's (kornia's own frame is half a pixel
    less).

    Args:
        matcher: None for the model that comes with the package, on the CPU; ``.to(device)`` moves it.
        threshold: matches of less confidence are left out. The confidence of calibrated models is a probability.

    Example:
        >>> out = KorniaMatcher(threshold=0.5)({"image0": image0, "image1": image1})  # (b, 3, h, w) each
        >>> out["keypoints0"], out["keypoints1"], out["confidence"]  # (n, 2), (n, 2), (n,)
    """

    def __init__(self, matcher: Matcher | None = None, threshold: float = 0.0) -> None:
        super().__init__()
        matcher = matcher or Matcher.from_pretrained(device="cpu")
        self.model, self.config, self.calibration = matcher.model, matcher.config, matcher.calibration
        self.threshold = threshold
        self.eval()

    @torch.no_grad()
    def forward(self, data: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Match the images of a batch in pairs.

        Args:
            data: ``image0`` and ``image1``, (b, c, h, w) in [0, 1], grey or RGB; the two may differ in size.

        Returns:
            The cycle-consistent cells of the correlation grid: ``keypoints0``, ``keypoints1`` (n, 2), ``confidence``
            (n,), and ``batch_indexes`` (n,), the pair that each match belongs to.
        """
        unknown = [key for key in ("mask0", "mask1", "features0", "features1") if key in data]
        if unknown:
            raise InputError(f"{', '.join(unknown)}: only image0 and image1 are supported; mask the matches instead")
        image0, image1 = _image(data, "image0"), _image(data, "image1")
        if len(image0) != len(image1):
            raise InputError(f"image0 and image1 must have the same batch size, got {len(image0)} and {len(image1)}")
        src, trg = (_normalise(image, self.config.image_size) for image in (image0, image1))
        flows = TwoWayFlow.of(self.model.readout, self.model.refine(*self.model.encode_pair(src, trg)))
        cells = read_grid(flows, self.calibration)
        kept = cells.cycle_consistent & (cells.confidence >= self.threshold)
        trg_norm = cells.trg_norm.clamp(-1, 1)  # an expectation leaves the image only by rounding
        dtype = image0.dtype
        return {
            "keypoints0": norm_to_px(cells.src_norm[kept], (image0.shape[2], image0.shape[3])).to(dtype),
            "keypoints1": norm_to_px(trg_norm[kept], (image1.shape[2], image1.shape[3])).to(dtype),
            "confidence": cells.confidence[kept].to(dtype),
            "batch_indexes": kept.nonzero()[:, 0],
        }


def _image(data: Mapping[str, Tensor], key: str) -> Float[Tensor, "b 3 h w"]:
    if key not in data:
        raise InputError(f"{key} is missing; given: {', '.join(data) or 'nothing'}")
    image = data[key]
    if image.dim() != 4 or image.shape[1] not in (1, 3) or not image.is_floating_point():
        raise InputError(f"{key}: expected floats of b × 1 or 3 × h × w, got {image.dtype} {tuple(image.shape)}")
    if image.numel() and not (image.min() >= 0 and image.max() <= 1):
        raise InputError(f"{key}: values must lie in [0, 1], before any normalisation")
    return image.expand(-1, 3, -1, -1)


def _normalise(image: Float[Tensor, "b 3 h w"], size: Size) -> Float[Tensor, "b 3 h2 w2"]:
    """Images in [0, 1] → the input of a backbone, as :func:`transformatcher.images.to_tensor` makes it of pixels."""
    resized = F.interpolate(image, size=size, mode="bilinear", antialias=True)
    mean, deviation = (image.new_tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    return (resized - mean) / deviation

"""Two batches of images in a dict → matched keypoints in a dict, with the interface of ``kornia.feature.LoFTR``."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.coords import norm_to_px
from transformatcher.errors import InputError
from transformatcher.images import IMAGENET_MEAN, IMAGENET_STD
from transformatcher.inference.encoded_photo import EncodedPhoto
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.readout import PointMatches, TwoWayFlow, read_grid
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
        self.model = matcher.model
        self._matchers = {matcher.device: matcher}  # by device, as the module may be moved
        self.threshold = threshold
        self.eval()

    @torch.no_grad()
    def forward(self, data: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Match the images of a batch in pairs.

        Args:
            data: ``image0`` and ``image1``, (b, c, h, w) in [0, 1], grey or RGB; the two may differ in size.

        Returns:
            The cycle-consistent cells of a grid over the object: ``keypoints0``, ``keypoints1`` (n, 2), ``confidence``
            (n,), and ``batch_indexes`` (n,), the pair that each match belongs to.
        """
        unknown = [key for key in ("mask0", "mask1", "features0", "features1") if key in data]
        if unknown:
            raise InputError(f"{', '.join(unknown)}: only image0 and image1 are supported; mask the matches instead")
        image0, image1 = _image(data, "image0"), _image(data, "image1")
        if len(image0) != len(image1):
            raise InputError(f"image0 and image1 must have the same batch size, got {len(image0)} and {len(image1)}")
        src, trg = (_normalise(image, self._matcher.config.image_size) for image in (image0, image1))
        cells, kept = self._match((src, image0), (trg, image1))
        kept = kept & (cells.confidence >= self.threshold)
        trg_norm = cells.trg_norm.clamp(-1, 1)  # an expectation leaves the image only by rounding
        dtype = image0.dtype
        return {
            "keypoints0": norm_to_px(cells.src_norm[kept], (image0.shape[2], image0.shape[3])).to(dtype),
            "keypoints1": norm_to_px(trg_norm[kept], (image1.shape[2], image1.shape[3])).to(dtype),
            "confidence": cells.confidence[kept].to(dtype),
            "batch_indexes": kept.nonzero()[:, 0],
        }

    @property
    def _matcher(self) -> Matcher:
        """The matcher on the device that the module is on."""
        device = next(self.model.parameters()).device
        if device not in self._matchers:
            one = next(iter(self._matchers.values()))
            self._matchers[device] = Matcher(
                self.model, one.config, str(device), one.calibration, try_mirrored=one.try_mirrored,
                precision=one.precision,
            )  # fmt: skip
        return self._matchers[device]

    def _match(self, src: tuple[Tensor, Tensor], trg: tuple[Tensor, Tensor]) -> tuple[PointMatches, Tensor]:
        """Images of both sides, as the network takes them and as they are → matches of cells, and which to keep."""
        matcher = self._matcher
        network, calibration = matcher.network, matcher.calibration.one_pass
        features = network.encode_pair(src[0], trg[0])
        if matcher.coarse_to_fine is None:
            cells = read_grid(TwoWayFlow.of(network.readout, network.refine(*features)), calibration)
            return cells, cells.cycle_consistent
        photos = [
            [
                EncodedPhoto(pixels, [f[row : row + 1] for f in layers])
                for row, pixels in enumerate((images * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy())
            ]
            for layers, (_, images) in zip(features, (src, trg), strict=True)
        ]
        return matcher.coarse_to_fine.run(photos[0], photos[1]).read_object()


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

"""Records that modules exchange, and the names of axes in all shape annotations.

Axes: ``b`` pairs, ``l`` feature layers, ``c`` feature channels, ``hs ws`` source grid, ``ht wt`` target grid,
``t = hs·ws·ht·wt`` candidate matches, ``d`` channels of the refiner, ``n`` keypoints.
Points are ``(x, y)``, sizes ``(h, w)``, boxes ``(x0, y0, x1, y1)``. Suffixes name the frame: ``_px`` pixels of the
original image, ``_norm`` [-1, 1]² over the image. Validity is a mask, never a special coordinate.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

Size = tuple[int, int]
KernelOn = Literal["logits", "probabilities", "none"]  # what the Gaussian at the peak multiplies in the read-out


@dataclass(frozen=True)
class ImageFile:
    """The bytes of an image file that has been read already."""

    name: str  # its path or URL
    data: bytes = field(repr=False)

    def __str__(self) -> str:
        return self.name


ImageSource = Path | str | ImageFile | UInt8[np.ndarray, "_ _ 3"]  # a str is a URL; images of a pair may differ in size


@dataclass(frozen=True)
class ImagePair:
    """One annotated pair of images of a benchmark, not decoded yet.

    Keypoints and boxes are in pixels of the stored images, before any flip. Where ``visible`` is False, coordinates
    have no meaning.
    """

    name: str
    category: str
    src_image: ImageSource
    trg_image: ImageSource
    src_kps_px: Float[np.ndarray, "n 2"]
    trg_kps_px: Float[np.ndarray, "n 2"]
    visible: Bool[np.ndarray, " n"]  # in both images
    src_bbox_px: Float[np.ndarray, "4"] | None = None
    trg_bbox_px: Float[np.ndarray, "4"] | None = None
    kp_names: tuple[str, ...] = ()
    src_flip: bool = False  # mirror the image left to right
    trg_flip: bool = False
    orient: bool = False  # annotated after the rotation that the EXIF tag asks for
    difficulty: Mapping[str, int] = field(default_factory=dict)  # factor → 0 easy, 1 medium, 2 hard
    # Keypoints that the source shows and the target does not, if the annotation has them. They have no match.
    absent_px: Float[np.ndarray, "m 2"] = field(default_factory=lambda: np.zeros((0, 2)))
    # For each keypoint, the index of its twin on the other side of the object (left ↔ right); -1 without one. Empty
    # where the annotation does not tell.
    twins: tuple[int, ...] = ()


@dataclass(frozen=True)
class PairBatch:
    """A batch of decoded pairs for the network. ``n`` is the largest number of keypoints; ``visible`` is the mask."""

    src: Float[Tensor, "b 3 h w"]
    trg: Float[Tensor, "b 3 h w"]
    src_kps_norm: Float[Tensor, "b n 2"]
    trg_kps_norm: Float[Tensor, "b n 2"]
    visible: Bool[Tensor, "b n"]


@dataclass(frozen=True)
class Flow:
    """The position of every cell of the source grid on the target."""

    trg_norm: Float[Tensor, "b hs ws 2"]
    peak: Float[Tensor, "b hs ws"]  # probability of the best target cell; not calibrated


@dataclass(frozen=True)
class Matches:
    """Corresponding points of two images, in pixels of the original images."""

    keypoints0: Float[np.ndarray, "n 2"]
    keypoints1: Float[np.ndarray, "n 2"]
    confidence: Float[np.ndarray, " n"]

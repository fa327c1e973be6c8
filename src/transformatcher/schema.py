"""The records that cross module borders, and the glossary of axes that every annotation uses.

Axes: ``b`` pairs, ``l`` feature layers, ``c`` feature channels, ``hs ws`` source grid, ``ht wt`` target grid,
``t = hs·ws·ht·wt`` candidate matches, ``d`` channels of the matcher, ``n`` keypoints.
Points are ``(x, y)``, sizes ``(h, w)``, boxes ``(x0, y0, x1, y1)``. Suffixes name the frame: ``_px`` pixels of the
original image, ``_norm`` the image as [-1, 1]². Validity is a mask, never a special coordinate.
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
ImageSource = Path | UInt8[np.ndarray, "_ _ 3"]  # two images of a pair may differ in size


@dataclass(frozen=True)
class ImagePair:
    """One annotated pair of images, as a benchmark describes it: nothing is decoded yet.

    Keypoints and boxes are in pixels of the files as they lie on disk (before any flip). Where ``visible`` is false the
    coordinates mean nothing.
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
    orient: bool = False  # the annotation was made on the image as its EXIF tag turns it
    difficulty: Mapping[str, int] = field(default_factory=dict)  # factor → 0 easy, 1 medium, 2 hard
    # Keypoints that the source shows and the target does not, where the annotation tells of them: they have no match.
    absent_px: Float[np.ndarray, "m 2"] = field(default_factory=lambda: np.zeros((0, 2)))


@dataclass(frozen=True)
class PairBatch:
    """Decoded pairs as the network takes them; ``n`` is the largest number of keypoints in the batch."""

    src: Float[Tensor, "b 3 h w"]
    trg: Float[Tensor, "b 3 h w"]
    src_kps_norm: Float[Tensor, "b n 2"]
    trg_kps_norm: Float[Tensor, "b n 2"]
    visible: Bool[Tensor, "b n"]


@dataclass(frozen=True)
class Flow:
    """Where every cell of the source grid lands on the target."""

    trg_norm: Float[Tensor, "b hs ws 2"]
    peak: Float[Tensor, "b hs ws"]  # probability of the best target cell: how sharp the match is, not yet calibrated


@dataclass(frozen=True)
class Matches:
    """Corresponding points of two images, in pixels of the originals."""

    keypoints0: Float[np.ndarray, "n 2"]
    keypoints1: Float[np.ndarray, "n 2"]
    confidence: Float[np.ndarray, " n"]

"""Matchers in several passes that need no training, and pictures that they match well."""

from dataclasses import replace
from typing import Any

import numpy as np
from helpers.two_passes import two_pass_matcher

from transformatcher.config import CoarseToFineConfig
from transformatcher.data.synthetic import random_texture
from transformatcher.inference.crops import Box
from transformatcher.inference.encoded_photo import EncodedPhoto
from transformatcher.inference.matcher import Matcher
from transformatcher.schema import Size


def matcher_in_passes(*, calibrated: bool = False, try_mirrored: bool = False, **settings: Any) -> Matcher:
    """It matches by what patches look like, in two passes or as ``settings`` of ``[coarse_to_fine]`` say."""
    base = two_pass_matcher()
    config = replace(base.config, coarse_to_fine=CoarseToFineConfig(**{"passes": 2} | settings))
    return Matcher(base.model, config, "cpu", base.calibration if calibrated else None, try_mirrored=try_mirrored)


def texture(seed: int = 0, size: Size = (240, 320)) -> np.ndarray:
    """A picture (h, w, 3) whose every region looks different, and unlike its mirror image."""
    return random_texture(np.random.default_rng(seed), size).round().astype(np.uint8)


def mirrored(picture: np.ndarray) -> np.ndarray:
    """The picture, mirrored left to right."""
    return np.ascontiguousarray(picture[:, ::-1])


def thing(seed: int = 0, size: Size = (240, 320), box: Box = (90, 60, 250, 200)) -> np.ndarray:
    """A grey picture with a texture of its own inside a box."""
    picture = np.full((*size, 3), 128, dtype=np.uint8)
    x0, y0, x1, y1 = box
    picture[y0:y1, x0:x1] = texture(seed, (y1 - y0, x1 - x0))
    return picture


def encoded(matcher: Matcher, *pictures: np.ndarray) -> list[EncodedPhoto]:
    """Pictures with their features."""
    return matcher.encode(pictures)

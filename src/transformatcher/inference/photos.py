"""A photo in any form → its RGB pixels; points given by a user → a checked array."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageOps
from torch import Tensor

from transformatcher.data.pairs import point_array
from transformatcher.errors import InputError
from transformatcher.images import check_decoding_time, read_image, to_rgb
from transformatcher.schema import ImageFile, Size
from transformatcher.storage import is_url

PhotoLike = str | Path | ImageFile | Image.Image | np.ndarray | Tensor
PointList = Sequence[Sequence[float | int]] | np.ndarray

MIN_SIDE = 4  # pixels
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE_NUMBERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def to_pixels(photo: PhotoLike) -> UInt8[np.ndarray, "_ _ 3"]:
    """A photo in any form → RGB pixels (h, w, 3).

    Args:
        photo: a path or URL; a PIL image; a uint8 array (h, w), (h, w, 1), (h, w, 3) or (h, w, 4); or a tensor
            (3, h, w) or (1, h, w), uint8 or floats in [0, 1]. Both sides must have at least ``MIN_SIDE`` pixels.

    Example:
        >>> to_pixels(np.zeros((20, 30), dtype=np.uint8)).shape
        (20, 30, 3)
    """
    pixels = _decode(photo)
    h, w = pixels.shape[:2]
    if min(h, w) < MIN_SIDE:
        name = photo if isinstance(photo, str | Path | ImageFile) else "image"
        raise InputError(f"{name}: {w} × {h} pixels; a photo to be matched has at least {MIN_SIDE} × {MIN_SIDE}")
    return pixels


def photo_name(photo: PhotoLike) -> str:
    """The name of a photo's file; empty where the photo does not come from a file."""
    path = getattr(photo, "filename", "") if isinstance(photo, Image.Image) else photo
    path = path.name if isinstance(path, ImageFile) else path
    return Path(path).name if isinstance(path, str | Path) else ""


def _decode(photo: PhotoLike) -> UInt8[np.ndarray, "_ _ 3"]:
    if isinstance(photo, Image.Image):
        return _decode_image(photo)
    if isinstance(photo, Tensor):
        return _decode_array(_tensor_to_array(photo))
    if isinstance(photo, np.ndarray):
        return _decode_array(photo)
    if isinstance(photo, ImageFile):
        return read_image(photo)
    if not isinstance(photo, str | Path):
        raise InputError(f"{type(photo).__name__}: a photo is a path, a PIL image, an array or a tensor")
    return read_image(photo if is_url(photo) else Path(photo))


def _decode_image(photo: Image.Image) -> UInt8[np.ndarray, "h w 3"]:
    """An upright copy of an image in memory, or one whose file Pillow has opened and not decoded yet."""
    name = photo_name(photo) or "image"
    try:
        check_decoding_time(photo, name)
        return np.array(to_rgb(ImageOps.exif_transpose(photo)))
    except (InputError, MemoryError):
        raise
    except Exception as error:  # decoders of damaged files raise errors of any kind
        raise InputError(f"{name}: not an image that can be decoded ({error})") from error


def _tensor_to_array(photo: Tensor) -> UInt8[np.ndarray, "h w c"]:
    if photo.dim() != 3 or photo.shape[0] not in (1, 3):
        raise InputError(f"image tensor: expected 3 × h × w (or 1 × h × w), got {tuple(photo.shape)}")
    if photo.dtype not in (*FLOATS, *WHOLE_NUMBERS) or photo.is_meta or photo.is_sparse or not photo.numel():
        got = f"{photo.dtype} of {tuple(photo.shape)} on {photo.device}"
        raise InputError(f"image tensor: expected uint8, or floats in [0, 1], got {got}")
    if photo.is_floating_point():
        if not (photo.min() >= 0 and photo.max() <= 1):
            raise InputError("image tensor: floating-point values must lie in [0, 1], before any normalisation")
        photo = (photo.float() * 255).round()
    elif not (photo.min() >= 0 and photo.max() <= 255):
        raise InputError(
            f"image tensor: whole numbers must lie in [0, 255], these are {int(photo.min())} to {int(photo.max())}"
        )
    return photo.detach().to(torch.uint8).permute(1, 2, 0).cpu().numpy()


def _decode_array(photo: np.ndarray) -> UInt8[np.ndarray, "_ _ 3"]:
    channels = photo.shape[2] if photo.ndim == 3 else 1
    if photo.dtype != np.uint8 or photo.ndim not in (2, 3) or channels not in (1, 3, 4) or not photo.size:
        raise InputError(f"image array: expected uint8 of h × w, h × w × 3 or 4, got {photo.dtype} {photo.shape}")
    return np.array(to_rgb(Image.fromarray(photo[..., 0] if channels == 1 and photo.ndim == 3 else photo)))


def check_count(value: Any, name: str) -> int:
    """A whole number from 1, or an InputError that names what it counts."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"{name} = {value!r}: expected a whole number from 1")
    return int(value)


def check_points(points: PointList, size: Size, what: str) -> Float[np.ndarray, "n 2"]:
    """Points (x, y) as an array, or an error that names the first that is not finite or not inside the image.

    Args:
        points: in pixels; the borders count as inside.
        size: (h, w) of the image.
        what: the points' name in an error message.
    """
    array = point_array(points, what)
    h, w = size
    for index, (x, y) in enumerate(array):
        if not (0 <= x <= w and 0 <= y <= h):
            raise InputError(f"{what}: point {index + 1}, ({x:g}, {y:g}), lies outside the image of {w} × {h} pixels")
    return array

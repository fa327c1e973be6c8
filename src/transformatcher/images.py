"""Image file → oriented RGB pixels → resized, normalised tensor."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile
from torch import Tensor

from transformatcher.errors import InputError
from transformatcher.schema import ImageSource, Size

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
ROTATED = (5, 6, 7, 8)  # EXIF orientations that exchange height and width


def read_image(source: ImageSource, *, orient: bool = True) -> UInt8[np.ndarray, "h w 3"]:
    """Decode an image file to RGB pixels.

    Args:
        source: a path, or an array, which is returned as it is.
        orient: rotate the image as its EXIF tag says. Benchmarks annotate the pixels as stored, so their loaders pass
            False. (The tag of a TIFF file is always applied, because Pillow does so while it decodes.)

    Example:
        >>> read_image(Path("cat_a.jpg")).shape
        (300, 451, 3)
    """
    if isinstance(source, np.ndarray):
        return source
    with _opened(source) as image:
        return np.array(to_rgb(ImageOps.exif_transpose(image) if orient else image))


def image_size(source: ImageSource, *, orient: bool = True) -> Size:
    """The (h, w) of what :func:`read_image` would return, read from the file's header alone (except for TIFF)."""
    if isinstance(source, np.ndarray):
        return source.shape[0], source.shape[1]
    with _opened(source) as image:
        if isinstance(image, TiffImageFile):  # its size before or after the rotation, depending on Pillow's version
            image.load()
            return image.height, image.width
        rotated = orient and image.getexif().get(ExifTags.Base.Orientation, 1) in ROTATED
        return (image.width, image.height) if rotated else (image.height, image.width)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    try:
        if not path.is_file():
            raise InputError(f"{path}: {'a folder, not an image' if path.is_dir() else 'no such image file'}")
        if not path.stat().st_size:
            raise InputError(f"{path}: the file is empty, not an image that can be decoded")
        with Image.open(path) as image:
            if image.format == "EPS":  # Pillow would let Ghostscript run it
                raise InputError(f"{path}: an EPS file is a program, not pixels; convert it to PNG first")
            yield image
    except (InputError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise InputError(f"{path}: not an image that can be decoded (Pillow does not know its format)") from error
    except Image.DecompressionBombError as error:
        raise InputError(f"{path}: too many pixels to be decoded; scale it down first ({error})") from error
    except Exception as error:  # decoders of damaged files raise errors of any kind
        if isinstance(error, OSError) and error.strerror:  # an error of the system, not of the decoder
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error
        raise InputError(f"{path}: not an image that can be decoded ({error})") from error


def to_tensor(image: UInt8[np.ndarray, "h w 3"], size: Size) -> Float[Tensor, "3 h2 w2"]:
    """RGB pixels → the input of a backbone: resized (aspect ratio not kept) and normalised as for ImageNet."""
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    return _resized(image, size).float().mul_(1 / 255).sub_(mean).div_(deviation)


def resize(image: UInt8[np.ndarray, "h w 3"], size: Size) -> UInt8[np.ndarray, "h2 w2 3"]:
    """RGB pixels → pixels of another size (h, w), resized as by :func:`to_tensor`."""
    return _resized(image, size).permute(1, 2, 0).contiguous().numpy()


def _resized(image: UInt8[np.ndarray, "h w 3"], size: Size) -> UInt8[Tensor, "3 h2 w2"]:
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)  # (3, h, w)
    return F.interpolate(pixels[None], size=size, mode="bilinear", antialias=True)[0]


def to_rgb(image: Image.Image) -> Image.Image:
    """An image of any mode → RGB: the upper 8 bits of 16-bit grey, transparent pixels on white."""
    if image.mode.startswith("I"):
        grey = np.asarray(image)
        image = Image.fromarray((grey // (257 if grey.max() > 255 else 1)).clip(0, 255).astype(np.uint8))
    if image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info:
        rgba = image if image.mode == "RGBA" else image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        white.alpha_composite(rgba)
        image = white
    return image if image.mode == "RGB" else image.convert("RGB")

"""Image file → oriented RGB pixels → resized, normalised tensor."""

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from transformatcher.errors import InputError
from transformatcher.schema import ImageSource, Size

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def read_image(source: ImageSource, *, orient: bool = True) -> UInt8[np.ndarray, "h w 3"]:
    """A file (or pixels already in memory) → RGB pixels.

    Args:
        source: a path, or an array that is returned as it is.
        orient: turn the picture as its EXIF tag says. Benchmarks annotate the pixels as stored, so they say no.
    """
    if isinstance(source, np.ndarray):
        return source
    if not source.is_file():
        raise InputError(f"{source}: {'a folder, not an image' if source.is_dir() else 'no such image file'}")
    try:
        with Image.open(source) as image:
            return np.array(to_rgb(ImageOps.exif_transpose(image) if orient else image))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{source}: not an image that can be decoded ({error})") from error


def to_tensor(image: UInt8[np.ndarray, "h w 3"], size: Size) -> Float[Tensor, "3 h2 w2"]:
    """RGB pixels → the tensor a backbone takes: resized (aspect not kept), ImageNet mean and deviation."""
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)  # (3, h, w)
    resized = tv.resize(pixels, list(size), antialias=True)
    scaled = tv.to_dtype(resized, torch.float32, scale=True)
    return tv.normalize(scaled, list(IMAGENET_MEAN), list(IMAGENET_STD))


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode → RGB: 16-bit grey keeps its 8 high bits, transparency lies on white."""
    if image.mode.startswith("I"):
        grey = np.asarray(image).astype(np.float64)
        image = Image.fromarray((grey / (257 if grey.max() > 255 else 1)).clip(0, 255).astype(np.uint8))
    if image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image.convert("RGB")

"""Image file → oriented RGB pixels → resized, normalised tensor."""

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped, UInt8
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile
from torch import Tensor

from transformatcher.errors import InputError
from transformatcher.schema import ImageFile, ImageSource, Size
from transformatcher.storage import read_bytes

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
JPEG_END = b"\xff\xd9"
JPEG_SCANS = (50, 500)  # the limit of a large photo, and of a small one; encoders make ten
SCANNED_PIXELS = 2_000_000_000  # of all scans; they take two seconds to decode
JPEG_START = b"\xff\xd8"
MARKER = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]", re.DOTALL)  # in a scan, FF 00 is data, and FF D0 to D7 divide it
START_OF_SCAN, END_OF_IMAGE = 0xDA, 0xD9
WITHOUT_LENGTH = (0x01, 0xD8)  # markers that no segment follows
UNUSUAL_RANGE = "photos of more than 8 bits, or of floats, are read from their least to their greatest value"
ROTATED = (5, 6, 7, 8)  # EXIF orientations that exchange height and width


class ContrastWarning(UserWarning):
    """The values of a photo are spread over all grey levels."""


def read_image(source: ImageSource, *, orient: bool = True) -> UInt8[np.ndarray, "h w 3"]:
    """Decode an image file to RGB pixels.

    Args:
        source: a path, a URL, the bytes of a file, or an array, which is returned as it is.
        orient: rotate the image as its EXIF tag says. Benchmarks annotate the pixels as stored, so their loaders pass
            False. (The tag of a TIFF file is always applied, because Pillow does so while it decodes.)

    Example:
        >>> read_image(Path("cat_a.jpg")).shape
        (300, 451, 3)
    """
    if isinstance(source, np.ndarray):
        return source
    with _opened(source) as image:
        if orient:
            _turn_upright(image)
        return np.array(to_rgb(image))


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


def read_reduced(path: Path, longest: int, max_pixels: int) -> Image.Image:
    """Decode an image file to upright RGB pixels, scaled down so that no side is longer than ``longest`` pixels.

    A JPEG is decoded at a reduced size, which is several times as quick. One of more than ``max_pixels`` is refused
    before it is decoded. A profile of its colours is kept, in ``info``, where it is one of RGB.
    """
    with _opened(path) as image:
        if image.width * image.height > max_pixels:
            raise InputError(
                f"{path}: {image.width} × {image.height} pixels are too many; scale it down first, the limit is "
                f"{max_pixels / 1e6:g} million"
            )
        is_rgb = image.mode == "RGB"
        image.draft("RGB", (2 * longest, 2 * longest))
        _turn_upright(image)
        rgb = to_rgb(image)
        rgb.thumbnail((longest, longest))
        profile = rgb.info.get("icc_profile") if is_rgb else None
        rgb.info = {"icc_profile": profile} if profile else {}
        return rgb


def is_upright_jpeg(path: Path, longest: int) -> bool:
    """Whether a file is a JPEG that every browser shows as :func:`read_reduced` would return it."""
    with _opened(path) as image:
        plain = image.format == "JPEG" and image.mode in {"RGB", "L"} and max(image.size) <= longest
        if not plain or image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
            return False
    with path.open("rb") as file:
        file.seek(-len(JPEG_END), os.SEEK_END)
        return file.read() == JPEG_END  # else it may be cut off, which browsers do not tell


def _turn_upright(image: Image.Image) -> None:
    """Apply the EXIF orientation in place: a copy of 50 million pixels takes 200 MB."""
    ImageOps.exif_transpose(image, in_place=True)


def count_jpeg_scans(data: bytes) -> int:
    """How many scans a JPEG file has; 0 of what is none."""
    at, scans = len(JPEG_START), 0
    if data[:at] != JPEG_START:
        return 0
    while found := MARKER.search(data, at):
        marker, at = found[0][-1], found.end()
        if marker == END_OF_IMAGE:
            break
        scans += marker == START_OF_SCAN
        at += int.from_bytes(data[at : at + 2], "big") if marker not in WITHOUT_LENGTH else 0
    return scans


def check_decoding_time(image: Image.Image, name: object) -> None:
    """Raise an InputError for an opened photo that would take minutes to decode: a JPEG of hundreds of scans.

    A scan of a few bytes takes as long as one of a whole photo, and a file may have as many as it likes.
    """
    file = getattr(image, "fp", None)
    if image.format not in {"JPEG", "MPO"} or file is None:
        return
    before = file.tell()
    file.seek(0)
    data = file.read()
    file.seek(before)
    least, most = JPEG_SCANS
    limit = max(least, min(most, SCANNED_PIXELS // (image.width * image.height)))
    if data.count(bytes([0xFF, START_OF_SCAN])) > limit and (scans := count_jpeg_scans(data)) > limit:
        raise InputError(
            f"{name}: a progressive JPEG of {scans:,} scans, which would take too long to decode; the limit for its "
            f"size is {limit}: save it as a baseline JPEG"
        )


@contextmanager
def _opened(path: Path | str | ImageFile) -> Iterator[Image.Image]:
    try:
        if isinstance(path, str):
            path = ImageFile(path, read_bytes(path))
        if isinstance(path, Path) and not path.is_file():
            raise InputError(f"{path}: {'a folder, not an image' if path.is_dir() else 'no such image file'}")
        if not (path.stat().st_size if isinstance(path, Path) else len(path.data)):
            raise InputError(f"{path}: the file is empty, not an image that can be decoded")
        file = path if isinstance(path, Path) else BytesIO(path.data)
        with Image.open(file) as image:
            if image.format == "EPS":  # Pillow would let Ghostscript run it
                raise InputError(f"{path}: an EPS file is a program, not pixels; convert it to PNG first")
            check_decoding_time(image, path)
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


def limit_detail(image: UInt8[np.ndarray, "h w 3"], size: Size, detail: float) -> UInt8[np.ndarray, "_ _ 3"]:
    """RGB pixels in no more detail than crops can use, so that photos that wait to be matched take little memory.

    Args:
        image: the photo.
        size: (h, w) of the network's input.
        detail: the photo is reduced to this many times ``size``, the longer of both ratios; 0: to one pixel.
    """
    if not detail:
        return image[:1, :1].copy()  # a view would keep the whole image in memory
    h, w = image.shape[:2]
    scale = max(detail * size[0] / h, detail * size[1] / w)  # one factor for both sides keeps margins as they are
    return image if scale >= 1 else resize(image, (max(1, round(scale * h)), max(1, round(scale * w))))


def _resized(image: UInt8[np.ndarray, "h w 3"], size: Size) -> UInt8[Tensor, "3 h2 w2"]:
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)  # (3, h, w)
    return F.interpolate(pixels[None], size=size, mode="bilinear", antialias=True)[0]


def to_rgb(image: Image.Image) -> Image.Image:
    """An image of any mode → RGB: grey of more than 8 bits by the values that it uses, transparent pixels on white."""
    if image.mode == "F" or image.mode.startswith("I"):
        image = Image.fromarray(to_grey_levels(np.asarray(image)))
    if image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info:
        rgba = image if image.mode == "RGBA" else image.convert("RGBA")
        image = Image.new("RGB", rgba.size, "white")
        image.paste(rgba, (0, 0), rgba)  # where Image.alpha_composite takes twice the memory
    return image if image.mode == "RGB" else image.convert("RGB")


def to_grey_levels(values: Shaped[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w"]:
    """Grey values of more than 8 bits, or floats → 0 to 255, without the loss of their contrast.

    Floats in [0, 1] are read by that range, whole numbers by that of as many bits as the greatest has (8 to 16). Values
    outside these, or in less than a sixteenth of them, are read from the least to the greatest one, with a warning.
    """
    finite = np.isfinite(values)
    if not finite.any():
        raise ValueError("all its values are infinite or not a number")
    low, high = float(values[finite].min()), float(values[finite].max())
    whole = values.dtype.kind != "f" or high > 1
    base, top = 0.0, 2.0 ** max(8, min(int(high), 65535).bit_length()) - 1 if whole else 1.0
    narrow = top != 255 and high - low < top / 16
    if high > low and (low < 0 or high > top or narrow):
        warnings.warn(UNUSUAL_RANGE, ContrastWarning, stacklevel=2)
        base, top = low, high
    scaled = (np.where(finite, values, low).astype(np.float64) - base) * (255 / (top - base))
    return scaled.clip(0, 255).astype(np.uint8)

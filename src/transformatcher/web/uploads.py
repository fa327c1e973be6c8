"""An uploaded file → pixels of a bounded size, or an error. Nothing is written to disk."""

import io
import unicodedata
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from transformatcher.errors import InputError
from transformatcher.images import to_rgb
from transformatcher.schema import Size
from transformatcher.web.errors import RequestError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # no others: for some, Pillow starts external programs
STORED_SIDE = 1280  # longest side of the stored copy, in pixels; points stay in pixels of the original
MAX_NAME_LENGTH = 120


@dataclass(frozen=True)
class Upload:
    """A decoded photo, scaled down to ``STORED_SIDE``."""

    name: str
    size: Size  # (h, w) of the original, after its EXIF orientation is applied
    pixels: UInt8[np.ndarray, "h w 3"]
    jpeg: bytes  # the same pixels, for the page


def read_upload(data: bytes, name: str, max_pixels: int) -> Upload:
    """Decode a photo, after its header has shown that its format is known and its size allowed.

    Raises:
        RequestError: 413 if it has more than ``max_pixels`` pixels.
        InputError: if it cannot be decoded.
    """
    name = clean_name(name)
    if not data:
        raise InputError(f"{name}: the file is empty")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)  # reads the header only
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_many_pixels(name, "far too many", max_pixels) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{name}: not a photo in a supported format (JPEG, PNG, WebP, GIF, BMP, TIFF)") from error
    with image:
        area = image.width * image.height
        if area > max_pixels:
            raise _too_many_pixels(name, f"{image.width} × {image.height} = {area / 1e6:.0f} million", max_pixels)
        try:
            image.load()
            ImageOps.exif_transpose(image, in_place=True)  # in place: a copy of 50 million pixels takes 200 MB
            rgb = to_rgb(image)
        except MemoryError:
            raise
        except Exception as error:  # Pillow's decoders may raise anything on damaged data
            raise InputError(f"{name}: the photo is damaged and cannot be decoded") from error
        size = (rgb.height, rgb.width)
        rgb.thumbnail((STORED_SIDE, STORED_SIDE))
        buffer = io.BytesIO()
        rgb.save(buffer, "JPEG", quality=88)
        return Upload(name, size, np.array(rgb), buffer.getvalue())


def clean_name(name: str) -> str:
    """A file name that is safe to show and export: no folders, no control characters, at most 120 letters."""
    base = PureWindowsPath(PurePosixPath(name).name).name  # browsers send no folders, other clients might
    shown = "".join(char for char in base if unicodedata.category(char)[0] != "C").strip()
    return shown[-MAX_NAME_LENGTH:] or "photo"


def to_png(pixels: UInt8[np.ndarray, "h w 3"], alpha: UInt8[np.ndarray, "h w"]) -> bytes:
    """Encode pixels and their opacity (0 to 255) as a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(np.dstack([pixels, alpha])).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _too_many_pixels(name: str, number: str, limit: int) -> RequestError:
    return RequestError(413, f"{name}: {number} pixels; the limit is {limit / 1e6:.0f} million pixels.")

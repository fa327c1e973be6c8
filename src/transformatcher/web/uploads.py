"""An uploaded file → pixels of a bounded size, or an error. Nothing is written to disk."""

import io
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from transformatcher.errors import InputError
from transformatcher.images import check_decoding_time, to_rgb
from transformatcher.schema import Size
from transformatcher.web.errors import RequestError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # no others: for some, Pillow starts external programs
STORED_SIDE = 1280  # longest side of the pixels that are read, in pixels
MAX_NAME_LENGTH = 120


@dataclass(frozen=True)
class Limits:
    """What a server that photos are uploaded to takes in."""

    upload_bytes: int = 20_000_000
    pixels: int = 50_000_000  # of a photo
    photos: int = 500  # whoever has more has them in a folder, for ``transformatcher annotate``
    total_bytes: int = 1_000_000_000  # of all photos
    import_bytes: int = 4_000_000  # of an annotation file: parsed, it may take a hundred times as much memory


@dataclass(frozen=True)
class Upload:
    """A decoded photo, scaled down to ``STORED_SIDE``."""

    size: Size  # (h, w) of the original, after its EXIF orientation is applied
    pixels: UInt8[np.ndarray, "h w 3"]


def read_upload(data: bytes, name: str, max_pixels: int) -> Upload:
    """Decode a photo, after its header has shown that its format is known and its size allowed.

    Raises:
        RequestError: 413 if it has more than ``max_pixels`` pixels.
        InputError: if it cannot be decoded.
    """
    with _decoded(data, clean_name(name), max_pixels) as image:
        rgb = to_rgb(image)
        size = (rgb.height, rgb.width)
        rgb.thumbnail((STORED_SIDE, STORED_SIDE))
        return Upload(size, np.array(rgb))


def check_upload(data: bytes, name: str, max_pixels: int) -> None:
    """Raise the errors of :func:`read_upload`; it takes a quarter of its memory."""
    with _decoded(data, clean_name(name), max_pixels):
        pass


@contextmanager
def _decoded(data: bytes, name: str, max_pixels: int) -> Iterator[Image.Image]:
    """The upright photo."""
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
        check_decoding_time(image, name)
        try:
            image.load()
            ImageOps.exif_transpose(image, in_place=True)  # in place: a copy of 50 million pixels takes 200 MB
            yield image
        except MemoryError:
            raise
        except Exception as error:  # Pillow's decoders may raise anything on damaged data
            raise InputError(f"{name}: the photo is damaged and cannot be decoded") from error


def clean_name(name: str) -> str:
    """A file name that is safe to show and export: no folders, no control characters, at most 120 letters."""
    base = PureWindowsPath(PurePosixPath(name).name).name  # browsers send no folders, other clients might
    shown = "".join(char for char in base if unicodedata.category(char)[0] != "C").strip()
    return shown[-MAX_NAME_LENGTH:] or "photo"


def _too_many_pixels(name: str, number: str, limit: int) -> RequestError:
    return RequestError(413, f"{name}: {number} pixels; the limit is {limit / 1e6:.0f} million pixels.")

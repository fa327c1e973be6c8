"""Bytes that someone sent → pixels of a known size, or one sentence. Nothing here touches the disk."""

import contextlib
import ctypes
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
from transformatcher.web.refusal import RefusedError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # no others: some that Pillow knows start programs
KEPT_SIDE = 1280  # longest side of the copy that is kept, shown and warped; points stay in pixels of the original
LONGEST_NAME = 120
M_MMAP_THRESHOLD = -3  # glibc's number for what follows
LARGE_BLOCK = 8 << 20  # bytes; features of a photo are smaller


@dataclass(frozen=True)
class Upload:
    """A decoded photo, scaled down to what is worth keeping."""

    name: str
    size: Size  # (h, w) of the original, as it is to be seen (EXIF orientation applied)
    pixels: UInt8[np.ndarray, "h w 3"]
    jpeg: bytes  # the same, for the page


def read_upload(data: bytes, name: str, max_pixels: int) -> Upload:
    """Decode a photo, after its header has shown that it is one and not too large.

    Raises:
        RefusedError: 413 for more pixels than allowed.
        InputError: for what is no photo.
    """
    name = clean_name(name)
    if not data:
        raise InputError(f"{name}: the file is empty")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)  # reads the header alone
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_many(name, "far too many", max_pixels) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{name}: not a photo in a format known here (JPEG, PNG, WebP, GIF, BMP, TIFF)") from error
    with image:
        area = image.width * image.height
        if area > max_pixels:
            raise _too_many(name, f"{image.width} × {image.height} = {area / 1e6:.0f} million", max_pixels)
        try:
            image.load()
            ImageOps.exif_transpose(image, in_place=True)  # a copy of fifty million pixels takes 200 MB
            whole = to_rgb(image)
        except MemoryError:
            raise
        except Exception as error:  # a decoder fed with garbage may raise anything
            raise InputError(f"{name}: the photo is damaged and cannot be decoded") from error
        size = (whole.height, whole.width)
        whole.thumbnail((KEPT_SIDE, KEPT_SIDE))
        buffer = io.BytesIO()
        whole.save(buffer, "JPEG", quality=88)
        return Upload(name, size, np.array(whole), buffer.getvalue())


def give_memory_back() -> None:
    """Let large blocks go back to the system as soon as they are free, where its allocator is glibc's.

    By itself it keeps them once some were freed: after one photo of fifty million pixels, 600 MB for good.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another system
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)


def clean_name(name: str) -> str:
    """A file name as it may be shown and exported: no folders, nothing invisible, not endless."""
    base = PureWindowsPath(PurePosixPath(name).name).name  # browsers send no folders, others might
    shown = "".join(char for char in base if unicodedata.category(char)[0] != "C").strip()
    return shown[-LONGEST_NAME:] or "photo"


def to_png(pixels: UInt8[np.ndarray, "h w 3"], alpha: UInt8[np.ndarray, "h w"]) -> bytes:
    """Pixels with transparency → a picture for the page."""
    buffer = io.BytesIO()
    Image.fromarray(np.dstack([pixels, alpha])).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _too_many(name: str, number: str, most: int) -> RefusedError:
    return RefusedError(
        413, f"{name}: {number} pixels; the server takes photos of up to {most / 1e6:.0f} million pixels."
    )

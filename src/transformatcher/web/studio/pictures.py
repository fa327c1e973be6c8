"""Photo → the pictures that the page shows of it: a large one, and a thumbnail that is kept on disk."""

import hashlib
import io
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from transformatcher.annotation.scan import MISSING
from transformatcher.errors import InputError
from transformatcher.files import write_bytes
from transformatcher.images import is_upright_jpeg, read_reduced
from transformatcher.web.job_queue import JobQueue

LARGE_SIDE = 2560  # longest side, in pixels
THUMBNAIL_SIDE = 256
MAX_PIXELS = 120_000_000  # of a photo; decoded, one of so many takes 360 MB
MAX_PLAIN_BYTES = 6_000_000  # a larger file is not sent as it is
CACHE_BYTES = 64_000_000  # of large pictures in memory
DECODERS = 2  # photos at a time …
WAITING = 20  # … and pictures that wait for them; each holds a thread of the 40 that requests have
HEAT = (255, 40, 150)  # the colour of heat maps, which is rare in photos
SUFFIX = ".thumbnail"  # not .jpg: the folder may lie among the photos, and whoever searches that must not take them


class Pictures:
    """Makes pictures of photos, and keeps them: thumbnails in a folder, a few large ones in memory.

    Args:
        folder: of the thumbnails. It may be deleted at any time; where it cannot be written, nothing is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._decoders = JobQueue(DECODERS, WAITING)
        self._lock = threading.Lock()
        self._recent: OrderedDict[str, bytes] = OrderedDict()

    def close(self) -> None:
        """Drop the pictures that nobody has begun to make."""
        self._decoders.close()

    def large(self, path: Path, version: str) -> bytes | Path:
        """The photo as an upright JPEG of at most ``LARGE_SIDE``; the path itself, if that is one already.

        Raises:
            RequestError: 503 if too many pictures are being made.
        """
        if (known := self._known_large(version)) is not None:
            return known
        if path.stat().st_size <= MAX_PLAIN_BYTES and is_upright_jpeg(path, LARGE_SIDE):
            return path
        return self._decoders.run(lambda: self._known_large(version) or self._make_large(path, version))

    def thumbnail(self, path: Path, version: str) -> bytes:
        """The photo as an upright JPEG of at most ``THUMBNAIL_SIDE``. It raises the errors of :meth:`large`."""
        kept = self.folder / f"{version}{SUFFIX}"
        if (known := _read_whole(kept)) is not None:
            return known
        return self._decoders.run(lambda: _read_whole(kept) or self._make_thumbnail(path, kept))

    def _known_large(self, version: str) -> bytes | None:
        with self._lock:
            if version in self._recent:
                self._recent.move_to_end(version)
            return self._recent.get(version)

    def _make_large(self, path: Path, version: str) -> bytes:
        data = _encode(path, LARGE_SIDE, quality=88)
        with self._lock:
            self._recent[version] = data
            while sum(map(len, self._recent.values())) > CACHE_BYTES and len(self._recent) > 1:
                self._recent.popitem(last=False)
        return data

    def _make_thumbnail(self, path: Path, kept: Path) -> bytes:
        data = _encode(path, THUMBNAIL_SIDE, quality=80)
        with suppress(InputError):  # a full disk
            write_bytes(kept, data)
        return data


def _encode(path: Path, side: int, quality: int) -> bytes:
    image = read_reduced(path, side, MAX_PIXELS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, icc_profile=image.info.get("icc_profile"))
    return buffer.getvalue()


def _read_whole(kept: Path) -> bytes | None:
    """A thumbnail, unless it is not there, or was cut off when the power failed."""
    with suppress(OSError):
        if (data := kept.read_bytes()).endswith(b"\xff\xd9"):
            return data
    return None


def heat_png(values: UInt8[np.ndarray, "h w"]) -> bytes:
    """Heat, 0 to 255 → a PNG of one colour that is the more opaque the hotter. Little heat can be seen, too."""
    opacity = (255 * np.sqrt(values / 255)).astype(np.uint8)
    pixels = np.empty((*values.shape, 4), np.uint8)
    pixels[..., :3], pixels[..., 3] = HEAT, opacity
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def file_version(path: Path) -> str:
    """A name for the content of a file as it is now, from its path, size and time of change."""
    try:
        entry = path.stat()
    except FileNotFoundError as error:
        raise InputError(f"{path}: {MISSING}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    return hashlib.sha256(f"{path}\0{entry.st_size}\0{entry.st_mtime_ns}".encode()).hexdigest()[:32]

"""Features of photos ↔ a folder of files of limited size, so that a photo is encoded once."""

import os
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from threading import Lock

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

MAX_HALF = 65504.0  # the largest float16
DTYPES = {str(dtype): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}
SUFFIX = ".safetensors"
RESCAN = 0.05  # of the limit: after so many new bytes, look at what other processes have added and removed


class FeatureStore:
    """A cache on disk: the least recently used files go when it is full. It may be deleted at any time.

    Features are kept as float16. A file that cannot be read or written counts as missing: all can be computed again.
    Any thread may use it. Several processes may share a folder; each looks at it now and then, so it may grow a little
    beyond its limit.

    Args:
        folder: created with the first file; one for each model.
        limit: of all files together, in bytes; 0 keeps nothing.

    Example:
        >>> store = FeatureStore(Path("keypoints.sqlite.cache/features"), 4_000_000_000)
        >>> store.save("a1b2", [torch.zeros(1, 1024, 17, 17)])
        >>> store.load("a1b2")[0].shape
        torch.Size([1, 1024, 17, 17])
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._lock = Lock()  # of all that follows
        self._scan()

    def _scan(self) -> None:
        """Read which files there are, the least recently used first."""
        entries = []
        with suppress(OSError):
            for entry in os.scandir(self.folder):
                with suppress(OSError):  # another process has removed it
                    status = entry.stat()
                    entries.append((status.st_mtime_ns, entry.name, status.st_size))
        self._sizes = OrderedDict((name, size) for _, name, size in sorted(entries) if name.endswith(SUFFIX))
        self._total, self._added = sum(self._sizes.values()), 0

    def load(self, key: str, device: torch.device | str = "cpu") -> list[Tensor] | None:
        """The features of each layer, (1, c, h, w), in the type that they had; None if they are not there."""
        file = self.folder / f"{key}{SUFFIX}"
        try:
            with safe_open(file, "pt", device=str(device)) as content:
                dtype = DTYPES[content.metadata()["dtype"]]
                features = [content.get_tensor(str(i)).to(dtype) for i in range(len(content.keys()))]
            _touch(file)
        except (OSError, SafetensorError, KeyError, TypeError):
            with self._lock:
                self._forget(file.name)
            return None
        with self._lock:
            if file.name in self._sizes:
                self._sizes.move_to_end(file.name)
        return features

    def save(self, key: str, features: Sequence[Tensor]) -> None:
        """Keep the features of a photo, if there is room; a full disk is no error here."""
        layers = {str(i): to_half(f) for i, f in enumerate(features)}
        size = sum(layer.numel() * 2 for layer in layers.values())
        if size > self.limit:
            return
        file = self.folder / f"{key}{SUFFIX}"
        unfinished = file.with_name(f"{file.name}.{token_hex(4)}.new")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file(layers, unfinished, {"dtype": str(features[0].dtype)})
            size = unfinished.stat().st_size
            _touch(unfinished)
            unfinished.replace(file)
        except (OSError, SafetensorError):
            _remove(unfinished)
            return
        with self._lock:
            self._total += size - self._sizes.pop(file.name, 0)
            self._added += size
            self._sizes[file.name] = size
            if self._added > RESCAN * self.limit:
                self._scan()
            while len(self._sizes) > 1 and self._total > self.limit:
                self._forget(next(iter(self._sizes)))

    def _forget(self, name: str) -> None:
        self._total -= self._sizes.pop(name, 0)
        _remove(self.folder / name)


def to_half(features: Tensor) -> Tensor:
    """As float16, contiguous; values beyond its range become the largest that it has."""
    return features.float().clamp(-MAX_HALF, MAX_HALF).half().contiguous()


def as_stored(features: Sequence[Tensor]) -> list[Tensor]:
    """Features as they are when they come back from a store, so that results do not depend on who computed them.

    In their values and in their memory layout, which decides about the order of sums.
    """
    return [to_half(f).to(f.dtype) for f in features]


def _touch(file: Path) -> None:
    """Mark a file as used now; the clock of the file system itself is too coarse to tell an order."""
    now = time.time_ns()
    os.utime(file, ns=(now, now))


def _remove(file: Path) -> None:
    with suppress(OSError):
        file.unlink()

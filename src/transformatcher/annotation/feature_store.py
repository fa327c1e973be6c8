"""Features of photos ↔ a folder of files of limited size, so that a photo is encoded once."""

import os
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

MAX_HALF = 65504.0  # the largest float16
DTYPES = {str(dtype): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}


class FeatureStore:
    """A cache on disk: the least recently used files go when it is full. It may be deleted at any time.

    Features are kept as float16. A file that cannot be read or written counts as missing: all can be computed again.

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
        entries = [(entry.name, entry.stat()) for entry in os.scandir(folder)] if folder.is_dir() else []
        entries.sort(key=lambda entry: entry[1].st_mtime_ns)
        self._sizes = OrderedDict((name, status.st_size) for name, status in entries)  # the least recently used first
        self._total = sum(self._sizes.values())

    def load(self, key: str, device: torch.device | str = "cpu") -> list[Tensor] | None:
        """The features of each layer, (1, c, h, w), in the type that they had; None if they are not there."""
        name = f"{key}.safetensors"
        if name not in self._sizes:
            return None
        try:
            with safe_open(self.folder / name, "pt", device=str(device)) as file:
                dtype = DTYPES[file.metadata()["dtype"]]
                features = [file.get_tensor(str(i)).to(dtype) for i in range(len(file.keys()))]
        except (OSError, SafetensorError, KeyError, TypeError):
            self._forget(name)
            return None
        self._sizes.move_to_end(name)
        return features

    def save(self, key: str, features: list[Tensor]) -> None:
        """Keep the features of a photo, if there is room; a full disk is no error here."""
        name = f"{key}.safetensors"
        layers = {str(i): f.float().clamp(-MAX_HALF, MAX_HALF).half().contiguous() for i, f in enumerate(features)}
        size = sum(layer.numel() * 2 for layer in layers.values())
        if size > self.limit:
            return
        while self._sizes and self._total + size > self.limit:
            self._forget(next(iter(self._sizes)))
        unfinished = self.folder / f"{name}.new"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file(layers, unfinished, {"dtype": str(features[0].dtype)})
            unfinished.replace(self.folder / name)
        except (OSError, SafetensorError):
            _remove(unfinished)
            return
        self._total += size - self._sizes.pop(name, 0)
        self._sizes[name] = size

    def _forget(self, name: str) -> None:
        self._total -= self._sizes.pop(name)
        _remove(self.folder / name)


def _remove(file: Path) -> None:
    with suppress(OSError):
        file.unlink()

"""Names of photos → their features: read ahead by threads, kept in memory and on disk."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from transformatcher.data.prefetch import Prefetcher
from transformatcher.errors import InputError
from transformatcher.images import limit_detail, to_tensor
from transformatcher.inference.encoded_photo import EncodedPhoto
from transformatcher.inference.feature_store import FeatureStore, as_stored
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.photos import to_pixels
from transformatcher.schema import ImageFile, Size
from transformatcher.storage import ImageRoot, is_url, read_bytes

MAX_ERROR_LENGTH = 500  # characters of an error message that are stored


@dataclass(frozen=True)
class NetworkInput:
    """A decoded image: as the network takes it, and in all the detail that a crop of it can use."""

    tensor: Float[Tensor, "3 h w"]  # resized and normalised for the network
    pixels: UInt8[np.ndarray, "_ _ 3"]
    size: Size  # of the original image
    digest: str = ""  # of the file, where features are kept on disk
    features: list[Tensor] | None = None  # that were found there


@dataclass(frozen=True)
class CachedFeatures:
    """The features of an image, or the reason why there are none."""

    size: Size = (0, 0)  # of the original image
    photo: EncodedPhoto | None = None
    error: str = ""

    @property
    def bytes(self) -> int:
        """Approximate size in memory."""
        if self.photo is None:
            return 1000 + len(self.error)
        return self.photo.pixels.nbytes + sum(f.numel() * f.element_size() for f in self.photo.features)


@dataclass
class FeatureCache:
    """The features of the most recently used images, up to ``limit`` bytes."""

    limit: int
    kept: OrderedDict[str, CachedFeatures] = field(default_factory=OrderedDict)
    bytes: int = 0
    encoded: int = 0  # images whose features were computed

    def get(self, name: str) -> CachedFeatures | None:
        """The entry of an image, which now counts as the most recently used; None if there is none."""
        if name in self.kept:
            self.kept.move_to_end(name)
        return self.kept.get(name)

    def put(self, name: str, entry: CachedFeatures) -> None:
        """Add an entry and remove the least recently used ones until the limit is met."""
        self.kept[name] = entry
        self.bytes += entry.bytes
        while self.bytes > self.limit and len(self.kept) > 1:
            _, old = self.kept.popitem(last=False)
            self.bytes -= old.bytes


@dataclass(frozen=True)
class Decoder:
    """Names of images → their pixels.

    Args:
        root: that the names are relative to.
        size: (h, w) of the network's input.
        detail: see :func:`limit_detail`.
        store: of features; None: all are computed.
    """

    root: ImageRoot
    size: Size
    detail: float = 0.0
    store: FeatureStore | None = None

    def __call__(self, name: str) -> NetworkInput | str:
        """An image, or an error message: one bad file among millions must not end the run."""
        try:
            path, digest, features = self.root.locate(name), "", None
            file: str | ImageFile = path
            if self.store is not None or is_url(path):
                file = ImageFile(path, read_bytes(path))
            if self.store is not None and isinstance(file, ImageFile):
                digest = hashlib.sha256(file.data).hexdigest()[:32]
                features = self.store.load(digest)
            pixels = to_pixels(file)
            full = (pixels.shape[0], pixels.shape[1])
            detailed = limit_detail(pixels, self.size, self.detail)
            return NetworkInput(to_tensor(pixels, self.size), detailed, full, digest, features)
        except (InputError, MemoryError, OSError) as error:
            return (str(error) or f"{name}: too large for this machine's memory")[:MAX_ERROR_LENGTH]


class Encoder:
    """Names of images → their features; threads decode the images of the next batches while the network works.

    Args:
        matcher: whose model computes the features.
        cache: of features, in memory.
        decoder: reads the images.
        threads: that do so.
    """

    def __init__(self, matcher: Matcher, cache: FeatureCache, decoder: Decoder, threads: int = 2) -> None:
        self.matcher, self.cache, self.decoder, self.store = matcher, cache, decoder, decoder.store
        self.decoded = Prefetcher(decoder, threads)

    def prefetch(self, names: Iterable[str]) -> None:
        """Start to decode the images whose features are not in the cache."""
        for name in names:
            if name not in self.cache.kept:
                self.decoded.start(name, name)

    def encode(self, names: Sequence[str]) -> dict[str, CachedFeatures]:
        """The features of all images; those that are not in the cache go through the network in one batch."""
        entries = {name: entry for name in names if (entry := self.cache.get(name)) is not None}
        new = [name for name in dict.fromkeys(names) if name not in entries]
        self.prefetch(new)
        decoded = {name: self.decoded.take(name) for name in new}
        images = {name: image for name, image in decoded.items() if isinstance(image, NetworkInput)}
        computed = self._compute({name: image for name, image in images.items() if image.features is None})
        for name, image in images.items():
            features = computed.get(name) or [f.to(self.matcher.device) for f in image.features or ()]
            photo = EncodedPhoto(image.pixels, features, PurePosixPath(name).name)
            entries[name] = CachedFeatures(image.size, photo)
        entries |= {name: CachedFeatures(error=error) for name, error in decoded.items() if isinstance(error, str)}
        for name in new:
            self.cache.put(name, entries[name])
        return entries

    def _compute(self, images: Mapping[str, NetworkInput]) -> dict[str, list[Tensor]]:
        """The features of images, from one batch."""
        if not images:
            return {}
        self.cache.encoded += len(images)
        tensors = torch.stack([image.tensor for image in images.values()]).to(self.matcher.device)
        batch = self.matcher.network.encode(tensors)
        # Copies, because a view would keep the features of the whole batch in memory.
        computed = {name: [f[row : row + 1].clone() for f in batch] for row, name in enumerate(images)}
        if self.store is not None:
            for name, image in images.items():
                self.store.save(image.digest, computed[name])
                computed[name] = as_stored(computed[name])
        return computed

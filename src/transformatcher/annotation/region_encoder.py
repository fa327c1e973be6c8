"""Regions of photos → their features, from memory, from disk, or computed."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from jaxtyping import UInt8

from transformatcher.annotation.project import Project
from transformatcher.annotation.records import Photo
from transformatcher.annotation.references import Reference, Region
from transformatcher.annotation.scan import identify_photo, set_problem
from transformatcher.annotation.suggestion import Descriptors
from transformatcher.annotation.targets import Target
from transformatcher.errors import InputError, printable
from transformatcher.inference.encoded_photo import EncodedPhoto
from transformatcher.inference.feature_store import FeatureStore
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.photos import to_pixels

MAX_ENCODED = 16  # references whose crops stay encoded in memory, about 20 MB each …
MAX_ENCODED_PIXELS = 200_000_000  # … and the pixels of their photos: 600 MB
MAX_AHEAD_PIXELS = 100_000_000  # of photos that are read ahead of their use

Pixels = UInt8[np.ndarray, "h w 3"]


class RegionEncoder:
    """Encodes the photos of a project. What cannot be read is listed as failed and left out. For one thread.

    Args:
        project: whose photos they are.
        matcher: computes the features.
        store: keeps them on disk.
        descriptors: of whole photos; those that are encoded are described.
    """

    def __init__(self, project: Project, matcher: Matcher, store: FeatureStore, descriptors: Descriptors) -> None:
        self.project, self.matcher, self.store, self.descriptors = project, matcher, store, descriptors
        self._references: OrderedDict[str, EncodedPhoto] = OrderedDict()  # by the key of their region
        self._decoder = ThreadPoolExecutor(2, thread_name_prefix="decoding")
        self._decoding: dict[int, Future[Pixels]] = {}

    def close(self) -> None:
        """Stop the threads that decode photos."""
        self._decoder.shutdown(wait=False, cancel_futures=True)

    def decode_ahead(self, targets: Sequence[Target]) -> None:
        """Begin to read the photos of these targets, as many as memory allows, and forget all others."""
        wanted: dict[int, str] = {}
        n_pixels = 0
        for target in targets:
            if target.photo_id not in wanted and (whole := self._whole(self.project.photo(target.photo_id))):
                n_pixels += math.prod(whole.size)
                if n_pixels > MAX_AHEAD_PIXELS and wanted:
                    break
                wanted[target.photo_id] = target.path
        for photo_id in [photo_id for photo_id in self._decoding if photo_id not in wanted]:
            self._decoding.pop(photo_id).cancel()
        for photo_id, path in wanted.items():
            if photo_id not in self._decoding:
                self._decoding[photo_id] = self._decoder.submit(to_pixels, self.project.folder / path)

    def describe(self, photos: Sequence[Photo]) -> None:
        """Read, encode and describe photos ahead of their use."""
        self.encode([region for photo in photos if (region := self._whole(photo)) is not None])

    def region(self, target: Target) -> Region | None:
        """The region that a target is looked for in; None if its photo cannot be read."""
        whole = self._whole(self.project.photo(target.photo_id))
        return None if whole is None else replace(whole, box=target.box)

    def encode(self, regions: Sequence[Region]) -> dict[str, EncodedPhoto]:
        """Regions → encoded photos by the regions' keys, those that are new in one batch."""
        encoded: dict[str, EncodedPhoto] = {}
        new: dict[str, Pixels] = {}
        for region in regions:
            if region.key in encoded or region.key in new or (pixels := self._pixels(region)) is None:
                continue
            features = self.store.load(region.key, self.matcher.device)
            if features is None:
                new[region.key] = pixels
            else:
                encoded[region.key] = EncodedPhoto(pixels, features, keep_views=True)
        if new:
            found = self.matcher.encode(list(new.values()), keep_views=True)
            for key, photo in zip(new, found, strict=True):
                features = [f.clone() for f in photo.features]  # without the rest of the batch
                self.store.save(key, features)
                encoded[key] = EncodedPhoto(photo.pixels, features, keep_views=True)
        whole = [region for region in regions if region.box is None and region.key in encoded]
        self.descriptors.add({region.photo_id: encoded[region.key].features for region in whole})
        return encoded

    def encode_reference(self, reference: Reference) -> EncodedPhoto | None:
        """A reference, with those views of it that were encoded lately; None if its photo cannot be read."""
        key = reference.region.key
        if key not in self._references:
            if (photo := self.encode([reference.region]).get(key)) is None:
                return None
            self._references[key] = photo
            while len(self._references) > 1 and (
                len(self._references) > MAX_ENCODED
                or sum(math.prod(photo.size) for photo in self._references.values()) > MAX_ENCODED_PIXELS
            ):
                self._references.popitem(last=False)
        self._references.move_to_end(key)
        return self._references[key]

    def similarity(self, references: Sequence[Reference], photo: EncodedPhoto) -> list[float]:
        """How much each reference looks like a photo, at most 2."""
        own = self.descriptors.describe(photo.features)
        return [self._similarity(reference, own) for reference in references]

    def _similarity(self, reference: Reference, own: np.ndarray) -> float:
        region = reference.region
        known = self.descriptors.of(region.photo_id) if region.box is None else None
        if known is None:
            photo = self.encode_reference(reference)
            known = None if photo is None else self.descriptors.describe(photo.features)
        return -1.0 if known is None else float(known @ own)

    def _whole(self, photo: Photo) -> Region | None:
        photo = identify_photo(self.project, photo)
        if photo.problem is not None or photo.size is None or photo.digest is None:
            return None
        return Region(photo.id, photo.path, photo.digest, photo.size)

    def _pixels(self, region: Region) -> Pixels | None:
        future = self._decoding.pop(region.photo_id, None)
        path = self.project.folder / region.path
        try:
            pixels = to_pixels(path) if future is None else future.result()
            if pixels.shape[:2] != region.size:
                raise InputError(f"{path}: has changed while it was used; scan the folder again")
        except Exception as error:  # decoders raise errors of many kinds, and one bad photo must not end the work
            message = str(error).removeprefix(printable(f"{path}: ")) or type(error).__name__
            set_problem(self.project, region.photo_id, message)
            return None
        x0, y0, x1, y1 = region.crop
        return pixels if region.box is None else pixels[y0:y1, x0:x1].copy()  # a view would keep the whole photo

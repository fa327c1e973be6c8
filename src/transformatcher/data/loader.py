"""Sources of pairs → the batches of every epoch. A sample depends only on seed, epoch and position in the epoch."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from transformatcher.data.augment import (
    Augmentation,
    Sample,
    apply_colors,
    crop_and_resize,
    draw_sample,
    normalise,
    swap_pair,
    transform_points,
)
from transformatcher.data.coco_pairs import CocoPairs, SelfPairs
from transformatcher.data.image_cache import CacheDevice, ImageCache, OrientedImage, choose_cache_device
from transformatcher.data.prefetch import prefetch
from transformatcher.schema import ImagePair, ImageSource, PairBatch, Size


@dataclass(frozen=True)
class WeightedPairs:
    """One source of training pairs: a list, or an endless sequence.

    Args:
        pairs: to train on.
        weight: the source gives weight / (sum of all weights) of an epoch's pairs.
    """

    pairs: Sequence[ImagePair] | CocoPairs | SelfPairs
    weight: float = 1.0

    @property
    def n_listed(self) -> int | None:
        """The number of pairs; None for an endless sequence."""
        return None if isinstance(self.pairs, CocoPairs | SelfPairs) else len(self.pairs)

    def images(self) -> list[OrientedImage]:
        """Every image, with whether to turn it as its EXIF tag says; an image of several pairs comes several times."""
        if isinstance(self.pairs, CocoPairs | SelfPairs):
            orient = {annotated.image: annotated.orient for annotated in self.pairs.objects}
            return [(path, orient[path]) for path in self.pairs.images]
        return [(image, pair.orient) for pair in self.pairs for image in (pair.src_image, pair.trg_image)]

    def max_keypoints(self) -> int:
        """The largest number of keypoints of a pair."""
        if isinstance(self.pairs, SelfPairs):
            return self.pairs.n_points
        annotated = self.pairs.objects if isinstance(self.pairs, CocoPairs) else self.pairs
        return max(len(item.visible) for item in annotated)


class TrainingPairs:
    """The pairs of every epoch, in random order. A list is used up before any of its pairs comes again.

    Args:
        sources: one or several.
        seed: of the order.
        pairs_per_epoch: None for as many as all lists hold.
    """

    def __init__(self, sources: Sequence[WeightedPairs], seed: int, pairs_per_epoch: int | None = None) -> None:
        self.sources = sources
        self.seed = seed
        weights = np.array([source.weight for source in sources])
        n = pairs_per_epoch or sum(source.n_listed or 0 for source in sources)
        ends = np.round(np.cumsum(weights / weights.sum()) * n).astype(int)
        self.counts = np.diff(ends, prepend=0).tolist()
        self._shuffle: tuple[int, int] | None = None  # (source, round) that _permutation belongs to
        self._permutation = np.empty(0, dtype=int)

    def __len__(self) -> int:
        """Pairs in an epoch."""
        return sum(self.counts)

    def order(self, epoch: int) -> list[tuple[int, int]]:
        """(source, index in it) of every pair of an epoch, in the order of training."""
        entries = []
        for number, (source, count) in enumerate(zip(self.sources, self.counts, strict=True)):
            indices = list(range(epoch * count, epoch * count + count))
            if source.n_listed is not None:
                indices = [self._shuffled(number, index, source.n_listed) for index in indices]
            entries += [(number, index) for index in indices]
        rng = np.random.default_rng((self.seed, epoch))
        return [entries[i] for i in rng.permutation(len(entries))]

    def _shuffled(self, number: int, index: int, length: int) -> int:
        """The ``index``-th entry of a list that is repeated for ever, shuffled anew each time."""
        shuffle = (number, index // length)
        if self._shuffle != shuffle:
            self._shuffle = shuffle
            self._permutation = np.random.default_rng((self.seed, *shuffle)).permutation(length)
        return int(self._permutation[index % length])

    def __getitem__(self, entry: tuple[int, int]) -> ImagePair:
        """The pair of an entry of :meth:`order`."""
        source, index = entry
        return self.sources[source].pairs[index]


class SampleDataset(Dataset[list[Sample]]):
    """(epoch, batch number) → the samples of that batch. Worker processes do this; pixels stay in the main process.

    Args:
        pairs: in the order of training.
        cache: of the images.
        input_size: (h, w) of the network's input.
        augmentation: probabilities of the random changes.
        batch_size: pairs of all training processes together.
        rank, world_size: this process takes every ``world_size``-th pair of a batch, starting at ``rank``.
    """

    def __init__(
        self,
        pairs: TrainingPairs,
        cache: ImageCache,
        input_size: Size,
        augmentation: Augmentation,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.pairs, self.input_size, self.augmentation = pairs, input_size, augmentation
        self.batch_size, self.rank, self.world_size = batch_size, rank, world_size
        self.original_sizes = cache.original_sizes  # not the cache itself: workers need no pixels
        self.index_of = {_key(*image): index for index, image in enumerate(cache.images)}
        self.max_keypoints = max(source.max_keypoints() for source in pairs.sources)
        self._order: tuple[int, list[tuple[int, int]]] | None = None  # of one epoch

    def __len__(self) -> int:
        """Batches in an epoch; pairs left over at its end are not used."""
        return len(self.pairs) // self.batch_size

    def __getitem__(self, epoch_and_batch: tuple[int, int]) -> list[Sample]:
        """The samples of a batch that are this process's."""
        epoch, number = epoch_and_batch
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, self.pairs.order(epoch))
        order = self._order[1]
        first = number * self.batch_size
        positions = range(first + self.rank, min(first + self.batch_size, len(order)), self.world_size)
        return [self._draw(order[position], epoch, position) for position in positions]

    def _draw(self, entry: tuple[int, int], epoch: int, position: int) -> Sample:
        pair = self.pairs[entry]
        rng = np.random.default_rng((self.pairs.seed, epoch, position))
        if self.augmentation.p_swap and rng.random() < self.augmentation.p_swap:
            pair = swap_pair(pair)
        src, trg = (self.index_of[_key(image, pair.orient)] for image in (pair.src_image, pair.trg_image))
        sizes = self.original_sizes[src], self.original_sizes[trg]
        return draw_sample(pair, (src, trg), sizes, self.input_size, self.augmentation, rng)


class BatchLoader:
    """Batches on the device, the next ones prepared while one is in use.

    Args:
        dataset: of the samples.
        cache: of the images.
        workers: processes that draw samples; 0 for none.
    """

    def __init__(self, dataset: SampleDataset, cache: ImageCache, workers: int = 0) -> None:
        self.dataset, self.cache, self.workers = dataset, cache, workers

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.dataset)

    def stream(self, epoch: int, number: int, epochs: int) -> Iterator[PairBatch]:
        """All batches from number ``number`` of ``epoch`` to the end of the last of ``epochs``."""
        todo = [divmod(i, len(self)) for i in range(epoch * len(self) + number, epochs * len(self))]
        loader = DataLoader(
            self.dataset,
            batch_size=None,
            sampler=todo,
            num_workers=min(self.workers, os.cpu_count() or 1),
            worker_init_fn=_init_worker,
        )
        return prefetch(self.collate, loader, ahead=2)

    def first(self) -> PairBatch:
        """The first batch of all; every other has its shapes."""
        return self.collate(self.dataset[0, 0])

    def collate(self, samples: Sequence[Sample]) -> PairBatch:
        """Samples → pixels and keypoints as the network takes them."""
        b, n = len(samples), self.dataset.max_keypoints  # batches of one shape can share a CUDA graph
        kps, visible = np.zeros((2, b, n, 2), dtype=np.float32), np.zeros((b, n), dtype=bool)
        for row, sample in enumerate(samples):
            shown = len(sample.visible)
            kps[:, row, :shown], visible[row, :shown] = sample.kps_norm, sample.visible
        sides = [(sample, side) for side in (0, 1) for sample in samples]  # all sources, then all targets
        crops = self._send(np.stack([sample.crops[side] for sample, side in sides]).astype(np.float32))  # (2b, 4)
        flips = self._send(np.array([sample.flips[side] for sample, side in sides]))  # (2b,)
        cached = self.cache([sample.images[side] for sample, side in sides])  # (2b, 3, hc, wc)
        images = crop_and_resize(cached, crops, flips, self.dataset.input_size)
        images = apply_colors(images, [sample.colors[side] for sample, side in sides])
        src, trg = normalise(images).chunk(2)
        src_kps, trg_kps = transform_points(self._send(kps.reshape(2 * b, n, 2)), crops, flips).chunk(2)
        return PairBatch(src, trg, src_kps, trg_kps, self._send(visible))

    def _send(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.cache.device, non_blocking=True)


def _init_worker(_worker: int) -> None:
    """Let the main process decide when workers end: Ctrl-C and kill reach them too, and they ignore both."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()


def _exit_with_parent(parent: int) -> None:
    """End this worker when its parent is gone; otherwise it would wait for ever to hand over a batch."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def build_image_cache(
    sources: Sequence[WeightedPairs],
    size: Size,
    device: torch.device,
    location: CacheDevice | Literal["auto"] = "auto",
    threads: int = 4,
    track: Callable[[int, int], None] = lambda _done, _total: None,
) -> ImageCache:
    """A cache of all images of the sources, each once; the other arguments are those of :class:`ImageCache`."""
    images = list({_key(*image): image for source in sources for image in source.images()}.values())
    if location == "auto":
        location = choose_cache_device(len(images), size, device)
    return ImageCache(images, size, device, location, threads, track)


def _key(source: ImageSource, orient: bool) -> tuple[str, bool]:
    """A name for an image. Arrays are distinguished by identity; a file turned by its EXIF tag is another image."""
    return f"array-{id(source)}" if isinstance(source, np.ndarray) else str(source), orient

"""Sources of pairs → the batches of every epoch. What a sample is depends on seed, epoch and place alone."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Thread
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from transformatcher.coords import px_to_norm
from transformatcher.data.augment import (
    Look,
    Window,
    apply_looks,
    draw_crop,
    draw_look,
    move_points,
    normalise,
    sample_windows,
)
from transformatcher.data.coco_pairs import CocoPairs, SelfPairs
from transformatcher.data.image_cache import ImageStore
from transformatcher.schema import ImagePair, ImageSource, PairBatch, Size


@dataclass(frozen=True)
class Augmentation:
    """Probabilities; see :class:`transformatcher.config.DataConfig`."""

    colour: float = 0.2
    crop: float = 0.5
    focus: float = 0.0
    flip: float = 0.0
    swap: float = 0.0


@dataclass(frozen=True)
class Source:
    """A list of pairs, or an endless sequence of them."""

    pairs: Sequence[ImagePair] | CocoPairs | SelfPairs
    share: float = 1.0

    def images(self) -> list[tuple[ImageSource, bool]]:
        """Every image, with whether its EXIF tag counts."""
        if isinstance(self.pairs, CocoPairs | SelfPairs):
            orient = {item.image: item.orient for item in self.pairs.objects}
            return [(path, orient[path]) for path in self.pairs.images]
        return [(image, pair.orient) for pair in self.pairs for image in (pair.src_image, pair.trg_image)]

    def most_keypoints(self) -> int:
        """Of any pair."""
        if isinstance(self.pairs, SelfPairs):
            return self.pairs.n_points
        items = self.pairs.objects if isinstance(self.pairs, CocoPairs) else self.pairs
        return max(len(item.visible) for item in items)


class TrainingPairs:
    """The order of pairs: each epoch has every source's share, lists without repetition until they are used up.

    Args:
        sources: one or several.
        seed: of the order.
        pairs_per_epoch: None for as many as the lists hold.
    """

    def __init__(self, sources: Sequence[Source], seed: int, pairs_per_epoch: int | None = None) -> None:
        self.sources = sources
        self.seed = seed
        shares = np.array([source.share for source in sources])
        n = pairs_per_epoch or sum(len(s.pairs) for s in sources if not isinstance(s.pairs, CocoPairs | SelfPairs))
        cuts = np.round(np.cumsum(shares / shares.sum()) * n).astype(int)
        self.counts = np.diff(cuts, prepend=0).tolist()

    def __len__(self) -> int:
        """Pairs in an epoch."""
        return sum(self.counts)

    def order(self, epoch: int) -> list[tuple[int, int]]:
        """(source, index in it) of every pair of an epoch."""
        places = []
        for number, (source, count) in enumerate(zip(self.sources, self.counts, strict=True)):
            indices = list(range(epoch * count, epoch * count + count))
            if not isinstance(source.pairs, CocoPairs | SelfPairs):
                indices = [self._shuffled(number, place, len(source.pairs)) for place in indices]
            places += [(number, index) for index in indices]
        rng = np.random.default_rng((self.seed, epoch))
        return [places[i] for i in rng.permutation(len(places))]

    def _shuffled(self, number: int, place: int, length: int) -> int:
        """The ``place``-th entry of a list that is shuffled anew each time it is through."""
        if self._round != (number, place // length):
            self._round = (number, place // length)
            self._order = np.random.default_rng((self.seed, number, place // length)).permutation(length)
        return int(self._order[place % length])

    _round: tuple[int, int] | None = None

    def __getitem__(self, place: tuple[int, int]) -> ImagePair:
        """The pair that :meth:`order` names."""
        source, index = place
        return self.sources[source].pairs[index]


@dataclass(frozen=True)
class Sample:
    """One pair and what is to happen to it; src and trg are the two rows of each array."""

    images: tuple[int, int]  # places in the store
    kps_norm: Float[np.ndarray, "2 n 2"]
    visible: Bool[np.ndarray, " n"]
    windows: Float[np.ndarray, "2 4"]
    flips: tuple[bool, bool]
    looks: tuple[Look, Look]
    sizes: tuple[Size, Size]


def draw_sample(
    pair: ImagePair,
    images: tuple[int, int],
    sizes: tuple[Size, Size],
    size: Size,
    augmentation: Augmentation,
    rng: np.random.Generator,
) -> Sample:
    """Decide everything about one pair.

    Args:
        pair: its annotations.
        images, sizes: where the store has its images, and their original sizes.
        size: (h, w) of the network's input.
        augmentation: probabilities.
        rng: of this sample alone.
    """
    kps = np.stack([px_to_norm(pair.src_kps_px, sizes[0]), px_to_norm(pair.trg_kps_px, sizes[1])])
    both = bool(rng.random() < augmentation.flip)
    windows = []
    for side, box in enumerate((pair.src_bbox_px, pair.trg_bbox_px)):
        focus = rng.random() < augmentation.focus
        cropped = draw_crop(rng, kps[side], pair.visible, size, probability=augmentation.crop)
        if box is not None:
            box_norm = px_to_norm(box.reshape(2, 2), sizes[side]).reshape(4)
            around = draw_focus(rng, box_norm, kps[side][pair.visible])
            windows.append(around if focus else cropped)
        else:
            windows.append(cropped)
    return Sample(
        images=images,
        kps_norm=kps,
        visible=pair.visible,
        windows=np.stack(windows),
        flips=(pair.src_flip != both, pair.trg_flip != both),
        looks=(draw_look(rng, augmentation.colour), draw_look(rng, augmentation.colour)),
        sizes=sizes,
    )


def exchanged(pair: ImagePair) -> ImagePair:
    """The same pair, from target to source."""
    return replace(
        pair,
        src_image=pair.trg_image,
        trg_image=pair.src_image,
        src_kps_px=pair.trg_kps_px,
        trg_kps_px=pair.src_kps_px,
        src_bbox_px=pair.trg_bbox_px,
        trg_bbox_px=pair.src_bbox_px,
        src_flip=pair.trg_flip,
        trg_flip=pair.src_flip,
        absent_px=np.zeros((0, 2)),  # of what the new source shows alone, the record says nothing
    )


def draw_focus(
    rng: np.random.Generator,
    box_norm: Float[np.ndarray, "4"],
    kps_norm: Float[np.ndarray, "n 2"],
    margin: tuple[float, float] = (0.05, 0.6),
    least: float = 0.6,
) -> Window:
    """A window around one object: each edge a random part of the object's side away from it, within the image.

    Args:
        rng: for the four edges.
        box_norm: the object's.
        kps_norm: visible keypoints, which are kept even where they lie outside the box.
        margin: least and most distance, as parts of the object's width or height.
        least: width and height that a window has at least, of the image's 2.
    """
    low, high = np.split(box_norm, 2)
    if len(kps_norm):
        low, high = np.minimum(low, kps_norm.min(axis=0)), np.maximum(high, kps_norm.max(axis=0))
    below, above = rng.uniform(*margin, size=(2, 2)) * (high - low)
    low, high = (low - below).clip(-1, 1), (high + above).clip(-1, 1)
    extent = np.maximum(high - low, least)
    start = ((low + high - extent) / 2).clip(-1, 1 - extent)  # one at the border grows inwards
    return np.concatenate([start, start + extent])


class Draws(Dataset[list[Sample]]):
    """(epoch, number of a batch) → its samples: all that workers do. Pixels stay with the process that trains.

    Args:
        pairs: the order.
        store: of the images, for their places and sizes.
        size: (h, w) of the network's input.
        augmentation: probabilities.
        batch: pairs of all processes together.
        rank, world: this process takes every ``world``-th pair of a batch, from ``rank``.
    """

    def __init__(
        self,
        pairs: TrainingPairs,
        store: ImageStore,
        size: Size,
        augmentation: Augmentation,
        batch: int,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.pairs, self.size, self.augmentation = pairs, size, augmentation
        self.batch, self.rank, self.world = batch, rank, world
        self.sizes = store.sizes
        self.index_of = {_key(*image): index for index, image in enumerate(store.images)}
        self.most_keypoints = max(source.most_keypoints() for source in pairs.sources)
        self._order: tuple[int, list[tuple[int, int]]] | None = None

    def __len__(self) -> int:
        """Batches in an epoch; a rest that fills none is left out."""
        return len(self.pairs) // self.batch

    def __getitem__(self, place: tuple[int, int]) -> list[Sample]:
        """The samples of a batch."""
        epoch, number = place
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, self.pairs.order(epoch))
        order = self._order[1]
        first = number * self.batch
        places = range(first + self.rank, min(first + self.batch, len(order)), self.world)
        return [self.sample(order[place], epoch, place) for place in places]

    def sample(self, where: tuple[int, int], epoch: int, place: int) -> Sample:
        """The sample at a place of an epoch's order."""
        pair = self.pairs[where]
        src, trg = (self.index_of[_key(image, pair.orient)] for image in (pair.src_image, pair.trg_image))
        rng = np.random.default_rng((self.pairs.seed, epoch, place))
        if self.augmentation.swap and rng.random() < self.augmentation.swap:
            pair, src, trg = exchanged(pair), trg, src
        return draw_sample(pair, (src, trg), (self.sizes[src], self.sizes[trg]), self.size, self.augmentation, rng)


class Batches:
    """:class:`PairBatch` after :class:`PairBatch` on the device, the next ones made ready while one is in use.

    Args:
        draws: what the samples are.
        store: the images.
        workers: processes that draw samples; 0 for none.
    """

    def __init__(self, draws: Draws, store: ImageStore, workers: int = 0) -> None:
        self.draws, self.store, self.workers = draws, store, workers

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.draws)

    def stream(self, epoch: int, number: int, epochs: int) -> Iterator[PairBatch]:
        """All batches from number ``number`` of ``epoch`` to the end of the last of ``epochs``."""
        places = [divmod(i, len(self)) for i in range(epoch * len(self) + number, epochs * len(self))]
        loader = DataLoader(
            self.draws,
            batch_size=None,
            sampler=places,
            num_workers=min(self.workers, os.cpu_count() or 1),
            worker_init_fn=_let_main_decide,
        )
        return ahead(map(self.collate, loader))

    def first(self) -> PairBatch:
        """A batch to show what batches look like."""
        return self.collate(self.draws[0, 0])

    def collate(self, samples: Sequence[Sample]) -> PairBatch:
        """Samples → pixels and points as the network takes them."""
        b, most = len(samples), self.draws.most_keypoints  # batches of one shape can share a CUDA graph
        kps, visible = np.zeros((2, b, most, 2), dtype=np.float32), np.zeros((b, most), dtype=bool)
        for row, sample in enumerate(samples):
            n = len(sample.visible)
            kps[:, row, :n], visible[row, :n] = sample.kps_norm, sample.visible

        def send(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(self.store.device, non_blocking=True)

        windows = send(np.stack([s.windows[side] for side in (0, 1) for s in samples]).astype(np.float32))
        flips = send(np.array([s.flips[side] for side in (0, 1) for s in samples]))
        canvases = self.store([s.images[side] for side in (0, 1) for s in samples])
        images = apply_looks(
            sample_windows(canvases, windows, flips, self.draws.size),
            [s.looks[side] for side in (0, 1) for s in samples],
        )
        src, trg = normalise(images).chunk(2)
        src_kps, trg_kps = move_points(send(kps.reshape(2 * b, most, 2)), windows, flips).chunk(2)
        src_sizes, trg_sizes = (torch.tensor([s.sizes[side] for s in samples]) for side in (0, 1))
        return PairBatch(src, trg, src_kps, trg_kps, send(visible), src_sizes, trg_sizes)


def _let_main_decide(_worker: int) -> None:
    """Ctrl-C and a polite kill reach workers too; they go on until the process that trains is through with them."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """One whose parent was killed would wait for ever to hand over its batch."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


Item = TypeVar("Item")


def ahead(items: Iterable[Item], most: int = 2) -> Iterator[Item]:
    """The same items; a thread makes the next ``most`` while one is in use."""
    iterator = iter(items)
    with ThreadPoolExecutor(1) as pool:
        waiting = [pool.submit(next, iterator, None) for _ in range(most)]
        while (item := waiting.pop(0).result()) is not None:
            waiting.append(pool.submit(next, iterator, None))
            yield item


def open_store(
    sources: Sequence[Source], make: Callable[[Sequence[tuple[ImageSource, bool]]], ImageStore]
) -> ImageStore:
    """A store of every image of the sources, each once."""
    unique = {_key(*image): image for source in sources for image in source.images()}
    return make(list(unique.values()))


def _key(source: ImageSource, orient: bool) -> tuple[str, bool]:
    """Images in memory are told apart by where they lie; a file that is turned is another than the same as it lies."""
    return f"array-{id(source)}" if isinstance(source, np.ndarray) else str(source), orient

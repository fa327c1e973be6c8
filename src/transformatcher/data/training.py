"""Sources of pairs → the batches of every epoch. What a sample is depends on seed, epoch and place alone."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

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
from transformatcher.data.coco_keypoints import CocoPairs
from transformatcher.data.store import ImageStore
from transformatcher.schema import ImagePair, ImageSource, PairBatch, Size

WHOLE: tuple[float, float, float, float] = (-1.0, -1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Augmentation:
    """Probabilities; see :class:`transformatcher.config.DataConfig`."""

    colour: float = 0.2
    crop: float = 0.5
    focus: float = 0.0
    flip: float = 0.0


@dataclass(frozen=True)
class Source:
    """A list of pairs, or an endless sequence of them."""

    pairs: Sequence[ImagePair] | CocoPairs
    share: float = 1.0

    def images(self) -> list[tuple[ImageSource, bool]]:
        """Every image, with whether its EXIF tag counts."""
        if isinstance(self.pairs, CocoPairs):
            return [(path, True) for path in self.pairs.images]
        return [(image, pair.orient) for pair in self.pairs for image in (pair.src_image, pair.trg_image)]


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
        n = pairs_per_epoch or sum(len(s.pairs) for s in sources if not isinstance(s.pairs, CocoPairs))
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
            if not isinstance(source.pairs, CocoPairs):
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

    images: tuple[ImageSource, ImageSource]
    kps_norm: Float[np.ndarray, "2 n 2"]
    visible: Bool[np.ndarray, " n"]
    windows: Float[np.ndarray, "2 4"]
    flips: tuple[bool, bool]
    looks: tuple[Look, Look]
    sizes: tuple[Size, Size]


def draw_sample(
    pair: ImagePair, sizes: tuple[Size, Size], size: Size, augmentation: Augmentation, rng: np.random.Generator
) -> Sample:
    """Decide everything about one pair; ``sizes`` are those of its images, ``size`` (h, w) the network's."""
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
        images=(pair.src_image, pair.trg_image),
        kps_norm=kps,
        visible=pair.visible,
        windows=np.stack(windows),
        flips=(pair.src_flip != both, pair.trg_flip != both),
        looks=(draw_look(rng, augmentation.colour), draw_look(rng, augmentation.colour)),
        sizes=sizes,
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
    missing = np.maximum(least - (high + above - low + below), 0) / 2
    low, high = (low - below - missing).clip(-1, 1), (high + above + missing).clip(-1, 1)
    return np.concatenate([low, high])


class Batches:
    """Epochs of :class:`PairBatch` on the device, the next ones made ready in a thread while one is in use.

    Args:
        pairs: the order.
        store: the images.
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
        self.pairs, self.store, self.size, self.augmentation = pairs, store, size, augmentation
        self.batch, self.rank, self.world = batch, rank, world
        self.index_of = {_key(source): index for index, (source, _) in enumerate(store.images)}

    def __len__(self) -> int:
        """Batches in an epoch; a rest that fills none is left out, and comes in another epoch's order."""
        return max(len(self.pairs) // self.batch, 1)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[PairBatch]:
        """The batches of an epoch, from number ``start``."""
        order = self.pairs.order(epoch)
        numbers = range(start, len(self))
        return ahead(partial(self._make, order, epoch, number) for number in numbers)

    def _make(self, order: Sequence[tuple[int, int]], epoch: int, number: int) -> PairBatch:
        first = number * self.batch
        places = range(first + self.rank, min(first + self.batch, len(order)), self.world)
        return self.collate([self.sample(order[place], epoch, place) for place in places])

    def sample(self, where: tuple[int, int], epoch: int, place: int) -> Sample:
        """The sample at a place of an epoch's order."""
        pair = self.pairs[where]
        src, trg = (self.store.sizes[self.index_of[_key(image)]] for image in (pair.src_image, pair.trg_image))
        rng = np.random.default_rng((self.pairs.seed, epoch, place))
        return draw_sample(pair, (src, trg), self.size, self.augmentation, rng)

    def collate(self, samples: Sequence[Sample]) -> PairBatch:
        """Samples → pixels and points as the network takes them."""
        b, most = len(samples), max(len(sample.visible) for sample in samples)
        kps, visible = np.zeros((2, b, most, 2), dtype=np.float32), np.zeros((b, most), dtype=bool)
        for row, sample in enumerate(samples):
            n = len(sample.visible)
            kps[:, row, :n], visible[row, :n] = sample.kps_norm, sample.visible

        def send(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(self.store.device, non_blocking=True)

        windows = send(np.stack([s.windows[side] for side in (0, 1) for s in samples]).astype(np.float32))
        flips = send(np.array([s.flips[side] for side in (0, 1) for s in samples]))
        canvases = self.store([self.index_of[_key(s.images[side])] for side in (0, 1) for s in samples])
        images = apply_looks(
            sample_windows(canvases, windows, flips, self.size), [s.looks[side] for side in (0, 1) for s in samples]
        )
        src, trg = normalise(images).chunk(2)
        src_kps, trg_kps = move_points(send(kps.reshape(2 * b, most, 2)), windows, flips).chunk(2)
        src_sizes, trg_sizes = (torch.tensor([s.sizes[side] for s in samples]) for side in (0, 1))
        return PairBatch(src, trg, src_kps, trg_kps, send(visible), src_sizes, trg_sizes)


Item = TypeVar("Item")


def ahead(makers: Iterable[Callable[[], Item]], most: int = 2) -> Iterator[Item]:
    """What the makers return, in order; a thread works on the next ``most`` while one is in use."""
    makers = iter(makers)
    with ThreadPoolExecutor(1) as pool:
        waiting: list[Future[Item]] = [pool.submit(maker) for maker in islice(makers, most)]
        try:
            while waiting:
                yield waiting.pop(0).result()
                waiting += [pool.submit(maker) for maker in islice(makers, 1)]
        finally:
            for future in waiting:
                future.cancel()


def open_store(
    sources: Sequence[Source], make: Callable[[Sequence[tuple[ImageSource, bool]]], ImageStore]
) -> ImageStore:
    """A store of every image of the sources, each once."""
    unique = {_key(image): (image, orient) for source in sources for image, orient in source.images()}
    return make(list(unique.values()))


def _key(source: ImageSource) -> str:
    """Images in memory are told apart by where they lie."""
    return f"array-{id(source)}" if isinstance(source, np.ndarray) else str(source)

"""A list of pairs → how much time, memory and disk matching all of it takes, from a sample that is matched here."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from transformatcher.errors import InputError
from transformatcher.evaluation.timing import resident_gib
from transformatcher.inference.bulk.match_table import match_table
from transformatcher.inference.bulk.pair_list import ListedPair, PairList
from transformatcher.inference.bulk.parquet_shards import require_pyarrow, table_to_parquet
from transformatcher.inference.pair_matcher import PairMatcher
from transformatcher.inference.photo_encoder import NetworkInput
from transformatcher.storage import file_bytes

SAMPLE = 24  # pairs, in runs of consecutive ones, as neighbours in a list share photos
RUN = 8
BLOCK = 10_000  # pairs that are read at a time
MAX_HASHES = 200_000  # that are kept to count distinct photos
Result = TypeVar("Result")


@dataclass(frozen=True)
class Stage:
    """One stage of the work."""

    name: str
    unit: str  # photo or pair
    count: int
    seconds: float  # for each


@dataclass(frozen=True)
class ListCost:
    """What a list takes; times are those of one worker like this process."""

    pairs: int
    photos: int  # distinct
    shards: int
    sampled: int  # pairs that were matched
    failed: int  # of these
    read_bytes: float  # of all photos that are read
    stages: Sequence[Stage]
    worker_bytes: int  # memory of this process at its maximum
    out_bytes: float  # of all Parquet files
    photo_bytes: int  # of the features of one photo, in float16

    @property
    def hours(self) -> float:
        """Of one worker."""
        return sum(stage.count * stage.seconds for stage in self.stages) / 3600


class DistinctCounter:
    """Counts distinct names in little memory: exact up to ``MAX_HASHES``, then within about 0.3 %.

    It keeps the names whose hash is below a threshold, which is halved whenever there are too many of them.
    """

    def __init__(self) -> None:
        self._kept: set[int] = set()
        self._threshold = 2**64

    def add(self, name: str) -> None:
        """Count a name."""
        value = int.from_bytes(hashlib.blake2b(name.encode(errors="replace"), digest_size=8).digest(), "big")
        if value < self._threshold:
            self._kept.add(value)
            while len(self._kept) > MAX_HASHES:
                self._threshold //= 2
                self._kept = {one for one in self._kept if one < self._threshold}

    @property
    def count(self) -> int:
        """How many names there were."""
        return round(len(self._kept) * 2**64 / self._threshold)


def estimate_cost(matcher: PairMatcher, pairs: PairList, shard_size: int) -> ListCost:
    """Match a sample of a list, write nothing, and multiply.

    Photos count as encoded once each where features are kept on disk; else as often as a cache of the worker's size
    has lost them when they come again, in the order of the list.

    Example:
        >>> estimate_cost(PairMatcher(Matcher.from_pretrained()), open_list("pairs.csv"), 1000).hours
    """
    require_pyarrow()
    encoder = matcher.encoder
    sample = _sample(pairs)
    names = list(dict.fromkeys(name for pair in sample if not pair.error for name in (pair.src, pair.trg)))
    read_s, decoded = _timed(lambda: [encoder.decoder(name) for name in names])
    images = [image for image in decoded if isinstance(image, NetworkInput)]
    if not images:
        raise InputError(f"{pairs.path}: none of {len(names)} photos of a sample can be read; the first: {decoded[0]}")
    encode_s = min(_timed(lambda: _encode(matcher, images))[0] for _ in range(2))
    matcher.match(sample)  # encodes the photos
    match_s, matches = _timed(lambda: matcher.match(sample))
    write_s, data = min(_timed(lambda: table_to_parquet(match_table(matches), len(matches), 0)) for _ in range(2))
    readable = [name for name, one in zip(names, decoded, strict=True) if isinstance(one, NetworkInput)]
    bytes_each = [file_bytes(matcher.root.locate(name)) for name in readable]
    cached = [entry for entry in encoder.cache.kept.values() if entry.photo is not None]
    photos, encoded = count_photos(pairs, max(1, matcher.cache_bytes // max(entry.bytes for entry in cached)))
    encoded = photos if matcher.store is not None else encoded
    n, k = len(sample), len(images)
    return ListCost(
        pairs=pairs.count,
        photos=photos,
        shards=-(-pairs.count // shard_size),
        sampled=n,
        failed=sum(bool(one.error) for one in matches),
        read_bytes=encoded * sum(bytes_each) / k,
        stages=[
            Stage("read and decode", "photo", encoded, read_s / len(names)),
            Stage("encode", "photo", encoded, encode_s / k),
            Stage("match", "pair", pairs.count, match_s / n),
            Stage("write", "pair", pairs.count, write_s / n),
        ],
        worker_bytes=round(resident_gib() * 2**30),
        out_bytes=len(data) / n * pairs.count,
        photo_bytes=sum(2 * f.numel() for f in cached[0].photo.features) if cached[0].photo else 0,
    )


def _sample(pairs: PairList) -> list[ListedPair]:
    """Runs of consecutive pairs, spread over the list."""
    runs = max(1, min(SAMPLE, pairs.count) // RUN)
    starts = sorted({i * max(0, pairs.count - RUN) // max(1, runs - 1) for i in range(runs)})
    return list({pair.index: pair for _, run in pairs.shards(starts, RUN) for pair in run}.values())


def count_photos(pairs: PairList, capacity: int) -> tuple[int, int]:
    """How many distinct photos a list names, and how often a cache of ``capacity`` photos lacks one."""
    counter, missed = DistinctCounter(), 0
    cache: OrderedDict[str, None] = OrderedDict()
    for _, shard in pairs.shards(range(0, pairs.count, BLOCK), BLOCK):
        for pair in shard:
            for name in (pair.src, pair.trg):
                counter.add(name)
                missed += name not in cache
                cache[name] = None
                cache.move_to_end(name)
                if len(cache) > capacity:
                    cache.popitem(last=False)
    return counter.count, missed


@torch.inference_mode()
def _encode(matcher: PairMatcher, images: Iterable[NetworkInput]) -> None:
    model = matcher.encoder.matcher
    for image in images:
        model.network.encode(image.tensor[None].to(model.device))


def _timed(function: Callable[[], Result]) -> tuple[float, Result]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result

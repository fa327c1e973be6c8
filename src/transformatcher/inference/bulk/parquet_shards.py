"""A long list of pairs → matches in Parquet files: streamed, shared among processes, each pair exactly once.

The list is cut into shards of equal length, and each shard becomes one file, which is written completely or not at all.
A run that was stopped continues with the shards that are missing, with any number of processes. Processes do not
communicate: if one fails, the others continue.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from jaxtyping import Float

from transformatcher.config import to_plain
from transformatcher.data.prefetch import Prefetcher
from transformatcher.errors import InputError, require_packages
from transformatcher.files import atomic_write, remove_unfinished
from transformatcher.inference.bulk.encode_cache import (
    Encoder,
    FeatureCache,
    NetworkInput,
    PairMatches,
    decode,
    match_shard,
)
from transformatcher.inference.bulk.pair_list import PairList
from transformatcher.inference.matcher import Matcher
from transformatcher.models.weights_io import hash_tensors
from transformatcher.run_folder import Run, check_run_folder, write_run

if TYPE_CHECKING:
    import pyarrow

RUN = "_run.json"  # programs that read a folder of Parquet files skip names that begin with an underscore
SHARDS = "part-*.parquet"
SHARD_SIZE = 1000  # pairs
CACHE_BYTES = 2 * 2**30
MAX_ERRORS = 20  # that a summary lists
Item = TypeVar("Item")


@dataclass(frozen=True)
class WorkerShare:
    """Which of the processes that work on one list this is."""

    rank: int = 0
    world: int = 1

    @classmethod
    def from_environment(cls) -> "WorkerShare":
        """As RANK and WORLD_SIZE in the environment say, which torchrun sets; without them, the only process."""
        try:
            rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        except ValueError as error:
            raise InputError(f"RANK and WORLD_SIZE in the environment must be whole numbers ({error})") from error
        if not 0 <= rank < world:
            raise InputError(f"RANK={rank} in the environment does not go with WORLD_SIZE={world}")
        return cls(rank, world)

    def of(self, items: Sequence[Item]) -> Sequence[Item]:
        """This process's items. They are consecutive, because neighbours in a list are likely to share images."""
        return items[self.rank * len(items) // self.world : (self.rank + 1) * len(items) // self.world]


@dataclass(frozen=True)
class BulkProgress:
    """How far this process is with its share of the pairs."""

    done: int  # pairs, including those of earlier runs
    total: int
    matched: int  # pairs in this run
    encoded: int  # images whose features were computed in this run
    failed: int  # pairs of finished shards


@dataclass(frozen=True)
class BulkSummary:
    """The state when a process has finished its share."""

    pairs: int  # of the share
    failed: int  # of the share
    complete: bool  # whether the shards of all processes are finished
    errors: list[str]  # the first ones: of all shards if complete, else of this share
    total_failed: int  # pairs that failed, counted in the same shards


def match_list(
    matcher: Matcher,
    pairs: PairList,
    out: Path,
    *,
    share: WorkerShare | None = None,
    batch: int = 8,
    threads: int = 2,
    shard_size: int = SHARD_SIZE,
    cache_bytes: int = CACHE_BYTES,
    track: Callable[[BulkProgress], None] = lambda _: None,
) -> BulkSummary:
    """Match all pairs of a list. Shards that exist already are skipped.

    Args:
        matcher: on the device to use.
        pairs: see :func:`open_list`. Fastest when sorted by source.
        out: a folder for ``part-….parquet``. A folder with results of another list or model is refused.
        share: which of several processes this is; None: as the environment says.
        batch: pairs at a time.
        threads: that decode images.
        shard_size: pairs in a file. A process that is killed loses at most one shard.
        cache_bytes: limit for the features that are kept, on the matcher's device.
        track: called after each batch.

    Example:
        >>> summary = match_list(Matcher.from_pretrained(), open_list(Path("pairs.csv")), Path("matches"))
        >>> summary.complete, summary.total_failed
    """
    require_pyarrow()
    share = share or WorkerShare.from_environment()
    _claim_folder(out, _describe_run(matcher, pairs, shard_size))
    starts = list(range(0, pairs.count, shard_size))
    paths = {start: shard_path(out, start, pairs.count) for start in starts}
    mine = share.of(starts)
    todo = [start for start in mine if not paths[start].exists()]
    total = sum(min(shard_size, pairs.count - start) for start in mine)
    before = total - sum(min(shard_size, pairs.count - start) for start in todo)
    failed = sum(count_failed(paths[start]) for start in set(mine) - set(todo))
    matched, cache = 0, FeatureCache(cache_bytes)

    def decode_listed(name: str) -> NetworkInput | str:
        detail = 0.0 if matcher.coarse_to_fine is None else matcher.coarse_to_fine.detail
        return decode(pairs.image(name), matcher.config.image_size, detail)

    with Prefetcher(decode_listed, threads) as decoded:
        encoder = Encoder(matcher, cache, decoded)
        for start, listed in pairs.shards(todo, shard_size):
            shard: list[PairMatches] = []
            for results in match_shard(encoder, listed, batch):
                shard += results
                done = matched + len(shard)
                track(BulkProgress(before + done, total, done, cache.encoded, failed))
            shard.sort(key=lambda one: one.pair.index)
            atomic_write(paths[start], partial(_write_parquet, shard))
            matched += len(shard)
            failed += sum(bool(one.error) for one in shard)
    complete = all(path.exists() for path in paths.values())
    if complete:
        remove_unfinished(out)
    return summarize(list(paths.values()) if complete else [paths[start] for start in mine], total, failed, complete)


def summarize(shards: Sequence[Path], pairs: int, failed: int, complete: bool) -> BulkSummary:
    """The numbers of this process's share, with the errors in some shards."""
    errors = list(islice(read_errors(shards), MAX_ERRORS))
    return BulkSummary(pairs, failed, complete, errors, sum(count_failed(path) for path in shards))


def shard_path(out: Path, start: int, count: int) -> Path:
    """The file of the shard that begins with pair number ``start`` of ``count``."""
    return out / f"part-{start:0{len(str(count))}d}.parquet"


def count_failed(path: Path) -> int:
    """How many pairs of a shard could not be matched, according to its metadata."""
    import pyarrow.parquet as pq

    try:
        return int(pq.read_schema(path).metadata[b"failed"])
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise InputError(
            f"{path}: not a file that match-pairs wrote ({error}); delete it, and its pairs are matched again"
        ) from error


def read_errors(paths: Iterable[Path]) -> Iterator[str]:
    """Error messages of the pairs that could not be matched."""
    import pyarrow.parquet as pq

    for path in paths:
        if count_failed(path):
            table = pq.read_table(path, columns=["pair", "error"])
            rows = table.filter(table["error"].is_valid()).to_pylist()
            yield from (f"pair {row['pair']}: {row['error']}" for row in rows)


def require_pyarrow() -> None:
    """Raise an InputError where pyarrow is not installed."""
    require_packages("matching a list of pairs", "pyarrow", extra="bulk")


def _describe_run(matcher: Matcher, pairs: PairList, shard_size: int) -> Run:
    calibration = asdict(matcher.calibration) if matcher.calibrated else None
    return Run(
        "match-pairs",
        {
            "pairs": pairs.count,
            "list": pairs.digest,
            "shard_size": shard_size,
            "model": to_plain(matcher.config),
            "weights": hash_tensors(matcher.model.state_dict()),
            "calibration": calibration,
            "precision": matcher.precision,
            "try_mirrored": matcher.try_mirrored and matcher.coarse_to_fine is not None,
        },
    )


def _claim_folder(out: Path, run: Run) -> None:
    """Refuse a folder of another run. Several processes of one run may do this at the same time."""
    check_run_folder(out, run, [SHARDS], way_out="choose another --out", shared=True, name=RUN)
    if not (out / RUN).exists():
        write_run(out, run, RUN)  # all processes write the same


def _write_parquet(shard: Sequence[PairMatches], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema(
        [
            ("pair", pa.int64()), ("src", names), ("trg", names), ("x0", pa.float32()), ("y0", pa.float32()),
            ("x1", pa.float32()), ("y1", pa.float32()), ("confidence", pa.float32()), ("is_match", pa.bool_()),
            ("same_kind", pa.float32()), ("mirrored", pa.bool_()), ("error", pa.string()),
        ],
        metadata={"pairs": str(len(shard)), "failed": str(sum(bool(one.error) for one in shard))},
    )  # fmt: skip
    pq.write_table(pa.table(_columns(shard), schema=schema), path, compression="zstd")


def _columns(shard: Sequence[PairMatches]) -> "dict[str, pyarrow.Array]":
    """One row for each point. A pair without points has one row with empty numbers, so that no pair is missing."""
    import pyarrow as pa

    rows = np.array([max(1, len(one.confidence)) for one in shard])
    numbers = np.concatenate([_numbers(one) for one in shard])  # (rows, 5)
    empty = np.isnan(numbers[:, 0])
    pair_of_row = pa.array(np.arange(len(shard)).repeat(rows), pa.int32())

    def column(values: Sequence[str | None]) -> "pyarrow.Array":
        return pa.array(values, pa.string()).take(pair_of_row)

    is_match = [one.is_match if len(one.is_match) else np.zeros(1, dtype=bool) for one in shard]
    return {
        "pair": pa.array(np.array([one.pair.index for one in shard]).repeat(rows), pa.int64()),
        "src": column([one.pair.src for one in shard]).dictionary_encode(),
        "trg": column([one.pair.trg for one in shard]).dictionary_encode(),
        **{
            name: pa.array(numbers[:, number].astype(np.float32), pa.float32(), mask=empty)
            for number, name in enumerate(("x0", "y0", "x1", "y1", "confidence"))
        },
        "is_match": pa.array(np.concatenate(is_match), pa.bool_()),
        "same_kind": pa.array([one.same_kind for one in shard], pa.float32()).take(pair_of_row),
        "mirrored": pa.array([one.mirrored for one in shard], pa.bool_()).take(pair_of_row),
        "error": column([one.error or None for one in shard]),
    }


def _numbers(one: PairMatches) -> Float[np.ndarray, "n 5"]:
    if not len(one.confidence):
        return np.full((1, 5), np.nan)
    return np.concatenate([one.src_px, one.trg_px, one.confidence[:, None]], axis=1)

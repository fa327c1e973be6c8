"""A long list of pairs → matches in Parquet files: streamed, shared among processes, each pair exactly once.

The list is cut into parts of so many pairs, by their place in the list alone, and a part becomes one file, whole or not
at all. Whatever is killed, and with however many processes it is started again, a part that is there is done, and one
that is not is done from its beginning. Processes do not talk to each other: if one dies, the others go on.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from jaxtyping import Float

from transformatcher.config import to_plain
from transformatcher.errors import InputError
from transformatcher.files import atomic_write, read_json, remove_unfinished, write_text
from transformatcher.inference.bulk.encode_cache import Encoder, FeatureCache, PairMatches, match_part
from transformatcher.inference.bulk.pair_list import PairList
from transformatcher.inference.matcher import Matcher
from transformatcher.models.weights_io import hash_tensors

if TYPE_CHECKING:
    import pyarrow

RUN = "_run.json"  # readers of Parquet folders pass over names that begin so
PART_PAIRS = 1000
CACHE_BYTES = 2 * 2**30
Item = TypeVar("Item")


@dataclass(frozen=True)
class WorkerShare:
    """This process among all those that work on one list."""

    rank: int = 0
    world: int = 1

    @classmethod
    def of_environment(cls) -> "WorkerShare":
        """As torchrun, or whoever started this process, says in RANK and WORLD_SIZE."""
        try:
            rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        except ValueError as error:
            raise InputError(f"RANK and WORLD_SIZE in the environment must be whole numbers ({error})") from error
        if not 0 <= rank < world:
            raise InputError(f"RANK={rank} in the environment does not go with WORLD_SIZE={world}")
        return cls(rank, world)

    def of(self, items: Sequence[Item]) -> Sequence[Item]:
        """Neighbouring items stay together: they are likely to have images in common."""
        return items[self.rank * len(items) // self.world : (self.rank + 1) * len(items) // self.world]


@dataclass(frozen=True)
class Progress:
    """How far this process is with its share."""

    done: int  # pairs, those of earlier runs among them
    total: int
    matched: int  # pairs, in this run
    encoded: int  # images whose features were computed, in this run
    failed: int  # pairs of finished parts


@dataclass(frozen=True)
class Summary:
    """What there is when a process has done its share."""

    pairs: int  # of the share
    failed: int
    complete: bool  # all parts are there, those of other processes, too
    faults: list[str]  # of all parts if complete, of this share if not: the first ones
    all_failed: int  # as many there are


def match_list(
    matcher: Matcher,
    pairs: PairList,
    out: Path,
    *,
    share: WorkerShare | None = None,
    batch: int = 8,
    threads: int = 2,
    part: int = PART_PAIRS,
    cache_bytes: int = CACHE_BYTES,
    track: Callable[[Progress], None] = lambda _: None,
) -> Summary:
    """Match all pairs of a list; parts that are there already are left alone.

    Args:
        matcher: on the device to use.
        pairs: see :func:`open_list`. Fastest when sorted by source.
        out: a folder for ``part-….parquet``. One that holds results of another list or model is refused.
        share: which of several processes this is; None: as the environment says.
        batch: pairs at a time.
        threads: that decode images.
        part: pairs in a file; what a kill loses is at most one part of each process.
        cache_bytes: of features that are kept, on the matcher's device.
        track: called after each batch.
    """
    need_pyarrow()
    share = share or WorkerShare.of_environment()
    _settle(out, _run(matcher, pairs, part))
    starts = list(range(0, pairs.count, part))
    paths = {start: part_path(out, start, pairs.count) for start in starts}
    mine = share.of(starts)
    todo = [start for start in mine if not paths[start].exists()]
    total = sum(min(part, pairs.count - start) for start in mine)
    before = total - sum(min(part, pairs.count - start) for start in todo)
    failed = sum(failures(paths[start]) for start in set(mine) - set(todo))
    matched, cache = 0, FeatureCache(cache_bytes)
    with ThreadPoolExecutor(threads) as pool:
        encoder = Encoder(matcher, pairs, cache, pool)
        for start, listed in pairs.parts(todo, part):
            found: list[PairMatches] = []
            for some in match_part(encoder, listed, batch):
                found += some
                track(Progress(before + matched + len(found), total, matched + len(found), cache.encoded, failed))
            found.sort(key=lambda one: one.pair.index)
            atomic_write(paths[start], partial(_write, found))
            matched += len(found)
            failed += sum(bool(one.fault) for one in found)
    complete = all(path.exists() for path in paths.values())
    if complete:
        remove_unfinished(out)
    looked_at = list(paths.values()) if complete else [paths[start] for start in mine]
    return Summary(
        total, failed, complete, list(islice(faults(looked_at), 20)), sum(failures(path) for path in looked_at)
    )


def part_path(out: Path, start: int, count: int) -> Path:
    """The file of the part that begins with pair number ``start``."""
    return out / f"part-{start:0{len(str(count))}d}.parquet"


def failures(path: Path) -> int:
    """How many pairs of a part could not be matched, as its file says."""
    import pyarrow.parquet as pq

    try:
        return int(pq.read_schema(path).metadata[b"failed"])
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise InputError(f"{path}: no part that was written here ({error}); delete it to have it done again") from error


def faults(paths: Iterable[Path]) -> Iterator[str]:
    """What was wrong with pairs that could not be matched."""
    import pyarrow.parquet as pq

    for path in paths:
        if failures(path):
            table = pq.read_table(path, columns=["pair", "error"])
            rows = table.filter(table["error"].is_valid()).to_pylist()
            yield from (f"pair {row['pair']}: {row['error']}" for row in rows)


def need_pyarrow() -> None:
    """Refuse where the optional package is not installed."""
    if find_spec("pyarrow") is None:
        raise InputError("lists of pairs need pyarrow, which is not installed: pip install 'transformatcher[bulk]'")


def _run(matcher: Matcher, pairs: PairList, part: int) -> dict[str, Any]:
    """All that results depend on."""
    calibration = None if matcher.calibration is None else vars(matcher.calibration)
    return {
        "pairs": pairs.count,
        "list": pairs.digest,
        "part": part,
        "model": to_plain(matcher.config),
        "weights": hash_tensors(matcher.model.state_dict()),
        "calibration": calibration,
    }


def _settle(out: Path, run: Mapping[str, Any]) -> None:
    """Refuse a folder that belongs to something else; several processes may come here at once."""
    path = out / RUN
    if path.exists():
        before = read_json(path)
        different = [key for key, value in run.items() if not isinstance(before, dict) or before.get(key) != value]
        if different:
            raise InputError(
                f"{out}: holds results of another run (its {', '.join(different)} differ); choose another --out"
            )
        return
    if next(out.glob("part-*.parquet"), None):
        raise InputError(f"{out}: holds parts, but no {RUN} that says of what; choose another --out")
    write_text(path, json.dumps(run, indent=2) + "\n")  # all write the same


def _write(found: Sequence[PairMatches], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = _table(found)
    names = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema(
        [
            ("pair", pa.int64()), ("src", names), ("trg", names), ("x0", pa.float32()), ("y0", pa.float32()),
            ("x1", pa.float32()), ("y1", pa.float32()), ("confidence", pa.float32()), ("is_match", pa.bool_()),
            ("error", pa.string()),
        ],
        metadata={"pairs": str(len(found)), "failed": str(sum(bool(one.fault) for one in found))},
    )  # fmt: skip
    pq.write_table(pa.table(table, schema=schema), path, compression="zstd")


def _table(found: Sequence[PairMatches]) -> "dict[str, pyarrow.Array]":
    """A row for each point; a pair without any has one all the same, so that every pair is there."""
    import pyarrow as pa

    rows = np.array([max(1, len(one.confidence)) for one in found])
    numbers = np.concatenate([_columns(one) for one in found])  # (rows, 5)
    empty = np.isnan(numbers[:, 0])
    names = pa.array(np.arange(len(found)).repeat(rows), pa.int32())

    def column(values: Sequence[str | None]) -> "pyarrow.Array":
        return pa.array(values, pa.string()).take(names)

    kept = [one.is_match if len(one.is_match) else np.zeros(1, dtype=bool) for one in found]
    return {
        "pair": pa.array(np.array([one.pair.index for one in found]).repeat(rows), pa.int64()),
        "src": column([one.pair.src for one in found]).dictionary_encode(),
        "trg": column([one.pair.trg for one in found]).dictionary_encode(),
        **{
            name: pa.array(numbers[:, number].astype(np.float32), pa.float32(), mask=empty)
            for number, name in enumerate(("x0", "y0", "x1", "y1", "confidence"))
        },
        "is_match": pa.array(np.concatenate(kept), pa.bool_()),
        "error": column([one.fault or None for one in found]),
    }


def _columns(one: PairMatches) -> Float[np.ndarray, "n 5"]:
    if not len(one.confidence):
        return np.full((1, 5), np.nan)
    return np.concatenate([one.src_px, one.trg_px, one.confidence[:, None]], axis=1)

"""A long list of pairs → matches in Parquet files: streamed, by any number of workers, each pair exactly once.

The list is cut into shards of equal length; each becomes one file, written completely or not at all. So whoever is
stopped, a file that is there is done, and any number of workers, here or elsewhere, continues with those that are not.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from transformatcher.errors import InputError, require_packages
from transformatcher.inference.bulk.match_table import match_schema, match_table
from transformatcher.inference.bulk.pair_list import ListedPair, PairList
from transformatcher.inference.engine import Engine, LocalEngine, Track
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.pair_matcher import PairMatcher
from transformatcher.run_folder import Run, check_run, format_run, parse_run
from transformatcher.storage import Folder, absolute, open_binary

if TYPE_CHECKING:
    import pyarrow

RUN = "_run.json"  # programs that read a folder of Parquet files skip names that begin with an underscore
SHARD_SIZE = 1000  # pairs
MAX_ERRORS = 20  # that a summary lists


@dataclass(frozen=True)
class BulkProgress:
    """How far a run is."""

    done: int  # pairs, including those of earlier runs
    total: int
    matched: int  # pairs in this run
    failed: int  # pairs of finished shards


@dataclass(frozen=True)
class BulkSummary:
    """The state when all shards are there."""

    pairs: int
    failed: int
    encoded: int  # images whose features were computed in this run
    errors: list[str]  # the first ones


@dataclass(frozen=True)
class Shard:
    """A part of the list to be matched."""

    file: str
    pairs: list[ListedPair]
    retry: bool = False  # the file is there; only its failed pairs are matched

    def __str__(self) -> str:
        return self.file


@dataclass(frozen=True)
class ShardResult:
    """A shard whose file is written."""

    matched: int  # pairs
    failed: int  # pairs of the file
    encoded: int


def match_list(
    matcher: PairMatcher,
    pairs: PairList,
    out: Folder,
    *,
    engine: Engine | None = None,
    shard_size: int = SHARD_SIZE,
    retry_failed: bool = False,
    overwrite: bool = False,
    track: Callable[[BulkProgress], None] = lambda _: None,
) -> BulkSummary:
    """Match all pairs of a list. Shards that exist already are skipped.

    Args:
        matcher: with a ``Matcher``, whose weights the results are recorded with.
        pairs: see :func:`open_list`. Fastest when sorted by source.
        out: for ``part-….parquet``. A folder with results of another list or model is refused.
        engine: what runs the workers; None: one worker in this process.
        shard_size: pairs in a file. A worker that is killed loses at most one shard.
        retry_failed: match those pairs again that could not be matched.
        overwrite: start again; what is in ``out`` is removed.
        track: is called after each batch, or now and then.

    Example:
        >>> matcher = PairMatcher(Matcher.from_pretrained(), root="photos")
        >>> match_list(matcher, open_list("pairs.csv"), Folder("matches")).failed
        0
    """
    require_pyarrow()
    with out.lock():
        _claim_folder(out, _describe_run(matcher, pairs, shard_size), overwrite=overwrite)
        done = _finished_shards(out, pairs, shard_size)
        again = {start for start, failed in done.items() if failed and retry_failed}
        shards = _shards(pairs, shard_size, done.keys() - again, again)
        failed = sum(count for start, count in done.items() if start not in again)
        before = sum(min(shard_size, pairs.count - start) for start in done) - sum(done[start] for start in again)
        matched = encoded = 0

        def report(unfinished: int = 0) -> None:
            track(BulkProgress(before + matched + unfinished, pairs.count, matched + unfinished, failed))

        if engine is not None:  # its workers may be in other folders
            matcher, out = matcher.absolute(), Folder(absolute(out.name))
        run = (engine or LocalEngine()).run
        for result in run(partial(ShardWorker, matcher, out), shards, name="match-pairs", track=report):
            matched, encoded, failed = matched + result.matched, encoded + result.encoded, failed + result.failed
            report()
        files, there = _shard_files(pairs, shard_size).values(), out.names()
        if missing := [file for file in files if file not in there]:
            raise InputError(
                f"{out}: {missing[0]} was written elsewhere; machines need an --out that they share, or a URL"
            )
        errors = list(islice(read_errors(out, files), MAX_ERRORS)) if failed else []
        return BulkSummary(pairs.count, failed, encoded, errors)


class ShardWorker:
    """Shards → their files: what every worker does.

    Args:
        matcher: matches the pairs.
        out: where the files go.
        track: is called with the number of pairs done in the present shard.
    """

    def __init__(self, matcher: PairMatcher, out: Folder, track: Track) -> None:
        self.matcher, self.out, self.track = matcher, out, track
        self.encoder = matcher.encoder  # the model is loaded now

    def __call__(self, shards: Iterable[Shard]) -> Iterator[ShardResult]:
        """Match shards one after another."""
        for shard in shards:
            before, encoded = None, self.encoder.cache.encoded
            wanted: Sequence[ListedPair] = shard.pairs
            if shard.retry:
                before = read_table(self.out, shard.file)
                bad = set(failed_pairs(before)["pair"].to_pylist())
                wanted = [pair for pair in shard.pairs if pair.index in bad]
            table = match_table(self.matcher.match(wanted, self.track))
            if before is not None:
                table = merge_tables(before.filter(before["error"].is_null()), table)
            failed = len(failed_pairs(table))
            self.out.write(shard.file, table_to_parquet(table, len(shard.pairs), failed))
            yield ShardResult(len(wanted), failed, self.encoder.cache.encoded - encoded)


# ---------------------------------------------------------------- the folder


def require_pyarrow() -> None:
    """Raise an InputError where pyarrow is not installed."""
    require_packages("matching a list of pairs", "pyarrow", extra="bulk")


def _shard_files(pairs: PairList, shard_size: int) -> dict[int, str]:
    """The file of each shard, by its first pair."""
    digits = len(str(pairs.count))
    return {start: f"part-{start:0{digits}d}.parquet" for start in range(0, pairs.count, shard_size)}


def _finished_shards(out: Folder, pairs: PairList, shard_size: int) -> dict[int, int]:
    """The first pair of each shard that is there → how many of its pairs failed."""
    files, there = _shard_files(pairs, shard_size).items(), out.names()
    return {start: count_failed(out, file) for start, file in files if file in there}


def _shards(pairs: PairList, shard_size: int, done: Iterable[int], again: set[int]) -> Iterator[Shard]:
    """The shards that are to be matched, read from the list as they are needed."""
    files, done = _shard_files(pairs, shard_size), set(done)
    for start, listed in pairs.shards((start for start in files if start not in done), shard_size):
        yield Shard(files[start], listed, start in again)


def _describe_run(matcher: PairMatcher, pairs: PairList, shard_size: int) -> Run:
    model = matcher.matcher
    assert isinstance(model, Matcher)
    return Run(
        "match-pairs",
        {
            "pairs": pairs.count,
            "list": pairs.digest,
            "shard_size": shard_size,
            **model.describe(),
            "features": "float32" if matcher.store is None else "float16",
        },
    )


def _claim_folder(out: Folder, run: Run, *, overwrite: bool) -> None:
    """Refuse a folder of another run; write ``_run.json`` before the first result."""
    names = out.names()
    results = sorted(name for name in names if name.startswith("part-") and name.endswith(".parquet"))
    before = None
    with suppress(ValueError, RecursionError):  # damaged
        before = parse_run(json.loads(out.read(RUN))) if RUN in names else None
    way_out = "choose another --out, or give --overwrite"
    check_run(out, run, before, bool(results), overwrite=overwrite, way_out=way_out, name=RUN)
    for name in results if overwrite else ():
        out.remove(name)
    if overwrite or not results:
        out.write(RUN, format_run(run).encode())


# ---------------------------------------------------------------- files


def count_failed(out: Folder, file: str) -> int:
    """How many pairs of a shard could not be matched, according to its metadata."""
    import pyarrow.parquet as pq

    try:
        with open_binary(out.path(file)) as content:
            return int(pq.read_schema(content).metadata[b"failed"])
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise _not_ours(out, file, error) from error


def read_table(out: Folder, file: str) -> "pyarrow.Table":
    """The rows of a shard."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(BytesIO(out.read(file))).cast(match_schema())
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _not_ours(out, file, error) from error


def _not_ours(out: Folder, file: str, error: Exception) -> InputError:
    problem = f"not a file that match-pairs wrote ({error}); delete it, and its pairs are matched again"
    return InputError(f"{out.path(file)}: {problem}")


def failed_pairs(table: "pyarrow.Table") -> "pyarrow.Table":
    """The rows of pairs that could not be matched."""
    return table.filter(table["error"].is_valid())


def merge_tables(one: "pyarrow.Table", other: "pyarrow.Table") -> "pyarrow.Table":
    """The rows of two tables, by pair; those of a pair are all in one of them and keep their order."""
    import pyarrow as pa

    both = pa.concat_tables([one, other]).unify_dictionaries().combine_chunks()
    return both.take(pa.array(np.argsort(both["pair"].to_numpy(), kind="stable")))


def read_errors(out: Folder, files: Iterable[str]) -> Iterator[str]:
    """Error messages of the pairs that could not be matched."""
    for file in files:
        if count_failed(out, file):
            rows = failed_pairs(read_table(out, file)).to_pylist()
            yield from (f"pair {row['pair']}: {row['error']}" for row in rows)


def table_to_parquet(table: "pyarrow.Table", pairs: int, failed: int) -> bytes:
    """The content of a shard's file."""
    import pyarrow.parquet as pq

    buffer = BytesIO()
    metadata = {"pairs": str(pairs), "failed": str(failed)}
    pq.write_table(table.replace_schema_metadata(metadata), buffer, compression="zstd")
    return buffer.getvalue()

"""``transformatcher match-pairs``: a long list of pairs → Parquet files, by this process or by many workers."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from transformatcher.cli.engine_args import add_engine, make_engine, worker_device
from transformatcher.cli.inputs import named_folder, set_threads
from transformatcher.cli.model_args import BATCH, THREADS, add_model, add_run, load_matcher
from transformatcher.cli.parser import examples, number

if TYPE_CHECKING:
    from transformatcher.inference.bulk.parquet_shards import BulkProgress

RESUME_HINT = "the same command continues where it stopped"
EVERY = 10.0  # seconds between lines of progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Match all pairs of a list. The same command continues where it was stopped, with --engine ray or without. The "
        "exit code is 1 if some pair could not be matched; the others are done all the same."
    )
    parser.epilog = examples(
        "match-pairs pairs.csv --out matches",
        "match-pairs pairs.csv --out matches --dry-run",
        "match-pairs s3://bucket/pairs.parquet --root s3://bucket/photos --out s3://bucket/matches --engine ray",
    )
    parser.add_argument(
        "list",
        metavar="LIST",
        help="a .csv, .jsonl or .parquet file or URL with the columns src, trg and perhaps keypoints ('x,y;x,y')",
    )
    photos = parser.add_argument_group("photos")
    photos.add_argument(
        "--root",
        metavar="DIR",
        help="the folder or URL that names of photos are relative to, and lie in (the folder of LIST)",
    )
    photos.add_argument(
        "--allow-outside", action="store_true", help="allow names and URLs of photos that lie outside of --root"
    )
    photos.add_argument(
        "--features",
        metavar="DIR",
        help="keep features of photos in this local folder, for all workers of a machine and later runs; photos that "
        "occur in many pairs are then encoded once",
    )
    photos.add_argument(
        "--features-gb",
        type=number(float, 0.001, 1_000_000),
        default=50.0,
        metavar="GB",
        help="at most so much there; what was not used for longest goes first (%(default)s)",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--out", required=True, metavar="DIR", help="folder or URL for the Parquet files")
    output.add_argument(
        "--shard-size",
        type=number(int, 1, 1_000_000),
        default=1000,
        metavar="N",
        help="pairs in each file; at most so many are lost if a worker dies (%(default)s)",
    )
    output.add_argument(
        "--retry-failed", action="store_true", help="match pairs again that failed before, and no others that are done"
    )
    output.add_argument("--overwrite", action="store_true", help="start again, and replace what is in --out")
    output.add_argument(
        "--dry-run",
        action="store_true",
        help="match nothing but a sample, and print how much time, memory and disk the whole list takes",
    )
    add_model(parser, try_mirrored=True)
    add_engine(parser)
    group = add_run(parser)
    group.add_argument("--batch", type=BATCH, default=4, metavar="N", help="pairs at a time (%(default)s)")
    group.add_argument(
        "--threads", type=THREADS, metavar="N", help="CPU threads (one for each core; 2 that decode); not for Ray"
    )
    group.add_argument(
        "--cache-gb",
        type=number(float, 0.001, 10_000),
        default=2.0,
        metavar="GB",
        help="memory of a worker for features of photos that come again (%(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Match a list; 1 if some pairs could not be matched."""
    from transformatcher.inference.bulk.pair_list import open_list
    from transformatcher.inference.bulk.parquet_shards import match_list, require_pyarrow
    from transformatcher.inference.pair_matcher import PairMatcher
    from transformatcher.storage import Folder

    named_folder(args.out)
    require_pyarrow()
    engine = None if args.dry_run else make_engine(args)
    set_threads(args.threads)
    pairs = open_list(args.list)
    device = args.device if args.dry_run else worker_device(args)
    matcher, description = load_matcher(args)
    pair_matcher = PairMatcher(
        matcher,
        device=device,
        root=pairs.folder if args.root is None else args.root,
        anywhere=args.allow_outside,
        batch=args.batch,
        threads=args.threads or 2,
        cache_bytes=round(args.cache_gb * 2**30),
        store=args.features,
        store_bytes=round(args.features_gb * 1e9),
    )
    if args.dry_run:
        from transformatcher.cli.tables import print_cost
        from transformatcher.evaluation.pair_list_cost import estimate_cost

        print_cost(estimate_cost(pair_matcher, pairs, args.shard_size), args.workers)
        return 0
    where = matcher.device if engine is None else "Ray"
    _log(f"{pairs.count} pairs in {pairs.path}, matched with {description} on {where}")
    summary = match_list(
        pair_matcher,
        pairs,
        Folder(args.out),
        engine=engine,
        shard_size=args.shard_size,
        retry_failed=args.retry_failed,
        overwrite=args.overwrite,
        track=_tracker(),
    )
    print(f"{summary.pairs} pairs, {summary.failed} of them failed; {summary.encoded} photos encoded")
    print(f"matches: {Folder(args.out).path('part-*.parquet')}")
    for error in summary.errors:
        print(f"failed: {error}", file=sys.stderr)
    if summary.failed > len(summary.errors):
        print(f"… and {summary.failed - len(summary.errors)} more: column 'error'", file=sys.stderr)
    if summary.failed:
        print("to try these again: the same command with --retry-failed", file=sys.stderr)
    return 1 if summary.failed else 0


def _tracker() -> Callable[[BulkProgress], None]:
    """A function that logs the progress every ten seconds and at the end."""
    start = logged = time.monotonic()
    complete = False

    def track(progress: BulkProgress) -> None:
        nonlocal logged, complete
        now = time.monotonic()
        if complete or not progress.matched or (now - logged < EVERY and progress.done < progress.total):
            return
        logged, complete = now, progress.done == progress.total
        rate = progress.matched / max(now - start, 1e-3)
        left = timedelta(seconds=round((progress.total - progress.done) / rate))
        failed = f", {progress.failed} failed" if progress.failed else ""
        _log(f"{progress.done} of {progress.total} pairs{failed}, {rate:.1f} pairs/s, {left} left")

    return track


def _log(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()

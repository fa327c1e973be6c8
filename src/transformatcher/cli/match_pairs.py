"""``transformatcher match-pairs``: a long list of pairs → Parquet files, shared among processes."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

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
        "Match all pairs of a list. Start it with torchrun for several GPUs or machines. The same command continues "
        "where it was stopped. The exit code is 1 if some pair could not be matched; the others are done all the same."
    )
    parser.epilog = examples(
        "match-pairs pairs.csv --out matches",
        "match-pairs pairs.jsonl --out matches --batch 32 --cache-gb 8",
    )
    parser.add_argument(
        "list",
        metavar="LIST",
        help="a .csv with the columns src, trg and perhaps keypoints ('x,y;x,y'), or a .jsonl with those keys",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--out", required=True, metavar="DIR", help="the Parquet files go here")
    output.add_argument(
        "--shard-size",
        type=number(int, 1, 1_000_000),
        default=1000,
        metavar="N",
        help="pairs in each file; at most so many are lost if the process is killed (%(default)s)",
    )
    add_model(parser, try_mirrored=True)
    group = add_run(parser)
    group.add_argument("--batch", type=BATCH, default=4, metavar="N", help="pairs at a time (%(default)s)")
    group.add_argument("--threads", type=THREADS, metavar="N", help="CPU threads (one for each core; 2 that decode)")
    group.add_argument(
        "--cache-gb",
        type=number(float, 0.001, 10_000),
        default=2.0,
        metavar="GB",
        help="memory for features of images that come again (%(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Match this process' share of a list; 1 if some pairs could not be matched.

    torchrun stops all processes as soon as one exits with 1. So only the process that finishes last does, for all.
    """
    from transformatcher.inference.bulk.pair_list import open_list
    from transformatcher.inference.bulk.parquet_shards import WorkerShare, match_list, require_pyarrow

    out = named_folder(args.out)
    require_pyarrow()
    share = WorkerShare.from_environment()
    set_threads(args.threads)
    if args.device in ("auto", "cuda") and share.world > 1:
        args.device = own_device(args.device)
    pairs = open_list(Path(args.list))
    matcher, description = load_matcher(args)
    process = f"process {share.rank + 1} of {share.world}: " if share.world > 1 else ""
    _log(f"{process}{pairs.count} pairs in {pairs.path}, matched with {description} on {matcher.device}")
    summary = match_list(
        matcher, pairs, out, share=share, batch=args.batch, threads=args.threads or 2, shard_size=args.shard_size,
        cache_bytes=round(args.cache_gb * 2**30), track=_tracker(process),
    )  # fmt: skip
    if not summary.complete:
        _log(f"{process}its {summary.pairs} pairs are done ({summary.failed} failed); other processes still run")
        return 0
    print(f"{pairs.count} pairs, {summary.total_failed} of them failed\nmatches: {out / 'part-*.parquet'}")
    for error in summary.errors:
        print(f"failed: {error}", file=sys.stderr)
    if summary.total_failed > len(summary.errors):
        print(f"… and {summary.total_failed - len(summary.errors)} more: column 'error'", file=sys.stderr)
    return 1 if summary.total_failed else 0


def own_device(name: str) -> str:
    """The GPU of this process, of those on its machine; the CPU where there is none."""
    import torch

    if name == "auto" and not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


def _tracker(process: str) -> Callable[[BulkProgress], None]:
    """A function that logs the progress every ten seconds and at the end."""
    start = logged = time.monotonic()

    def track(progress: BulkProgress) -> None:
        nonlocal logged
        now = time.monotonic()
        if now - logged < EVERY and progress.done < progress.total:
            return
        logged = now
        rate = progress.matched / max(now - start, 1e-3)
        left = timedelta(seconds=round((progress.total - progress.done) / rate))
        failed = f", {progress.failed} failed" if progress.failed else ""
        _log(
            f"{process}{progress.done} of {progress.total} pairs{failed}, {rate:.1f} pairs/s, "
            f"{progress.encoded} images encoded, {left} left"
        )

    return track


def _log(line: str) -> None:
    """One write, so that lines of several processes do not mix."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()

"""``match --pairs``: a long list of pairs, shared among processes."""

import argparse
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

from transformatcher.cli.model_args import load_matcher, named_folder, set_threads
from transformatcher.errors import InputError
from transformatcher.inference.bulk.pair_list import open_list
from transformatcher.inference.bulk.parquet_shards import (
    CACHE_BYTES,
    PART_PAIRS,
    Progress,
    WorkerShare,
    match_list,
    need_pyarrow,
)

EVERY = 10.0  # seconds between words on how far it is


def match_pairs(args: argparse.Namespace) -> int:
    """Match this process' share of a list; 1 if some pairs could not be matched.

    torchrun stops all processes as soon as one says 1. So it is said by the one that finishes last, of all parts.
    """
    if args.src or args.trg:
        raise InputError("--pairs takes the place of SOURCE and TARGET; leave them out")
    others = {"--keypoints": args.keypoints, "--json": args.json, "--flow": args.flow, "--heat": args.heat}
    if given := next((option for option, value in others.items() if value), None):
        raise InputError(f"{given} goes with photos, not with --pairs; points are a column of the list")
    if args.out is None:
        raise InputError("--pairs needs --out: a folder for the Parquet files")
    out = named_folder(args.out)
    need_pyarrow()
    share = WorkerShare.of_environment()
    set_threads(args.threads)
    if args.device in ("auto", "cuda") and share.world > 1:
        args.device = own_device(args.device)
    pairs = open_list(Path(args.pairs))
    matcher, description = load_matcher(args)
    who = f"process {share.rank + 1} of {share.world}: " if share.world > 1 else ""
    _say(f"{who}{pairs.count} pairs in {pairs.path}, matched with {description} on {matcher.device}")
    start = said = time.monotonic()

    def track(progress: Progress) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said < EVERY and progress.done < progress.total:
            return
        said = now
        rate = progress.matched / max(now - start, 1e-3)
        left = timedelta(seconds=round((progress.total - progress.done) / rate))
        failed = f", {progress.failed} failed" if progress.failed else ""
        _say(
            f"{who}{progress.done} of {progress.total} pairs{failed}, {rate:.1f} pairs/s, "
            f"{progress.encoded} images encoded, {left} left"
        )

    summary = match_list(
        matcher, pairs, out, share=share, batch=args.batch, threads=args.threads or 2, part=args.part or PART_PAIRS,
        cache_bytes=round(args.cache_gb * 2**30) if args.cache_gb else CACHE_BYTES, track=track,
    )  # fmt: skip
    if not summary.complete:
        _say(f"{who}its {summary.pairs} pairs are done ({summary.failed} failed); others are not yet")
        return 0
    print(f"{pairs.count} pairs, {summary.all_failed} of them failed\nmatches: {out / 'part-*.parquet'}")
    for fault in summary.faults:
        print(f"failed: {fault}", file=sys.stderr)
    if summary.all_failed > len(summary.faults):
        print(f"… and {summary.all_failed - len(summary.faults)} more: column 'error'", file=sys.stderr)
    return 1 if summary.all_failed else 0


def own_device(name: str) -> str:
    """The GPU of this process, of those on its machine; the CPU where there is none."""
    import torch

    if name == "auto" and not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


def _say(words: str) -> None:
    """One write, so that lines of several processes do not mix."""
    sys.stderr.write(words + "\n")
    sys.stderr.flush()

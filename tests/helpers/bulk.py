"""Lists of pairs, and what match-pairs wrote for them."""

import csv
from pathlib import Path
from typing import Any

from transformatcher.inference.bulk.pair_list import open_list
from transformatcher.inference.bulk.parquet_shards import BulkSummary, match_list
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.pair_matcher import PairMatcher
from transformatcher.storage import Folder

SMALL = {
    "backbone": "resnet50", "stages": [1], "image_size": [32, 48], "match2match.depth": 1,
    "correlation_skip": 200, "kernel_sigma": 2.5, "kernel_on": "probabilities", "sampler": "bilinear",
}  # fmt: skip

RUN_OPTIONS = ("engine", "shard_size", "retry_failed", "overwrite", "track")


def write_csv(
    path: Path, rows: list[tuple[object, ...]], header: tuple[str, ...] = ("src", "trg", "keypoints")
) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def all_rows(out: Path) -> list[dict[str, object]]:
    import pyarrow.parquet as pq

    return [row for path in sorted(out.glob("part-*.parquet")) for row in pq.read_table(path).to_pylist()]


def names(photos: Path) -> list[str]:
    return [str(photos / f"{seed}.png") for seed in range(5)]


def pairs_of(out: Path) -> list[int]:
    """The pairs of all parts, each as often as it is there."""
    import pyarrow.parquet as pq

    found = []
    for path in sorted(out.glob("part-*.parquet")):
        table = pq.read_table(path, columns=["pair"])
        found += sorted(set(table["pair"].to_pylist()))
        assert int(pq.read_schema(path).metadata[b"pairs"]) == len(set(table["pair"].to_pylist()))
    return found


def match_listed(matcher: Matcher, path: Path, out: Path | str, **options: Any) -> BulkSummary:
    """Match a list; photos may lie anywhere."""
    of_run = {name: options.pop(name) for name in RUN_OPTIONS if name in options}
    pair_matcher = PairMatcher(matcher, device="cpu", **({"anywhere": True} | options))
    return match_list(pair_matcher, open_list(path), Folder(str(out)), **of_run)

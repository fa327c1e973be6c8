"""Every image encoded once, within a limit of memory."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.bulk import all_rows, names, write_csv

from transformatcher.inference import readout
from transformatcher.inference.bulk.encode_cache import CachedFeatures, FeatureCache
from transformatcher.inference.bulk.pair_list import open_list
from transformatcher.inference.bulk.parquet_shards import BulkProgress, match_list
from transformatcher.inference.matcher import Matcher

pytest.importorskip("pyarrow")


def test_a_pair_without_a_match_is_there_all_the_same(small: Matcher, photos: Path, tmp_path: Path, monkeypatch):
    a, b, *_ = names(photos)
    monkeypatch.setattr(readout, "cycle_error", lambda _back, src, _trg: torch.full(src.shape[:2], 2.0))
    match_list(small, open_list(write_csv(tmp_path / "pairs.csv", [(a, b, "")])), tmp_path / "out")
    (row,) = all_rows(tmp_path / "out")
    assert row == {
        "pair": 0, "src": a, "trg": b, "x0": None, "y0": None, "x1": None, "y1": None, "confidence": None,
        "is_match": False, "error": None,
    }  # fmt: skip


def test_each_image_is_looked_at_once(small: Matcher, photos: Path, tmp_path: Path):
    images = names(photos)
    rows = [(src, trg, "") for trg in images for src in images]  # sources in the worst order
    pairs = open_list(write_csv(tmp_path / "pairs.csv", rows))
    seen: list[BulkProgress] = []
    match_list(small, pairs, tmp_path / "once", shard_size=5, batch=2, track=seen.append)
    assert seen[-1] == BulkProgress(done=25, total=25, matched=25, encoded=5, failed=0)
    match_list(small, pairs, tmp_path / "again", shard_size=5, batch=2, cache_bytes=1, track=seen.append)
    assert seen[-1].encoded > 5
    for one, other in zip(all_rows(tmp_path / "once"), all_rows(tmp_path / "again"), strict=True):
        assert one["pair"] == other["pair"]
        np.testing.assert_allclose(one["x1"], other["x1"], atol=0.02)
    match_list(small, pairs, tmp_path / "grouped", shard_size=25, batch=1, cache_bytes=700_000, track=seen.append)
    assert seen[-1].encoded <= 25  # room for two: a source stays while its own pairs last


def test_what_was_used_last_is_kept():
    def seen() -> CachedFeatures:
        return CachedFeatures((1, 1), (torch.zeros(1000),))  # 5,000 bytes in all

    cache = FeatureCache(15_000)
    for name in "abc":
        cache.put(name, seen())
    assert cache.get("a") is not None
    cache.put("d", seen())
    assert list(cache.kept) == ["c", "a", "d"]
    assert cache.get("b") is None
    assert cache.bytes == 15_000

"""Pairs in batches say what match says of each, with every image encoded once."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.bulk import all_rows, match_listed, names, write_csv
from helpers.passes import matcher_in_passes, mirrored, thing
from PIL import Image

from transformatcher.inference import readout
from transformatcher.inference.bulk.parquet_shards import BulkProgress
from transformatcher.inference.matcher import Matcher

pytest.importorskip("pyarrow")


def test_a_pair_without_a_match_is_there_all_the_same(small: Matcher, photos: Path, tmp_path: Path, monkeypatch):
    a, b, *_ = names(photos)
    monkeypatch.setattr(readout, "cycle_error", lambda _back, src, _trg: torch.full(src.shape[:2], 2.0))
    match_listed(small, write_csv(tmp_path / "pairs.csv", [(a, b, "")]), tmp_path / "out")
    (row,) = all_rows(tmp_path / "out")
    assert row == {
        "pair": 0, "src": a, "trg": b, "x0": None, "y0": None, "x1": None, "y1": None, "confidence": None,
        "is_match": False, "same_kind": None, "mirrored": None, "error": None,
    }  # fmt: skip


def test_each_image_is_looked_at_once(small: Matcher, photos: Path, tmp_path: Path):
    images = names(photos)
    rows = [(src, trg, "") for trg in images for src in images]  # sources in the worst order
    path = write_csv(tmp_path / "pairs.csv", rows)
    seen: list[BulkProgress] = []
    assert match_listed(small, path, tmp_path / "once", shard_size=5, batch=2, track=seen.append).encoded == 5
    assert seen[-1] == BulkProgress(done=25, total=25, matched=25, failed=0)
    assert match_listed(small, path, tmp_path / "again", shard_size=5, batch=2, cache_bytes=1).encoded > 5
    for one, other in zip(all_rows(tmp_path / "once"), all_rows(tmp_path / "again"), strict=True):
        assert one["pair"] == other["pair"]
        np.testing.assert_allclose(one["x1"], other["x1"], atol=0.02)
    grouped = match_listed(small, path, tmp_path / "grouped", shard_size=25, batch=1, cache_bytes=700_000)
    assert grouped.encoded <= 25  # room for two: a source stays while its own pairs last


def test_a_list_in_several_passes_says_what_match_says(tmp_path: Path):
    """Pairs with points, with other numbers of points and without, in one batch; one target is mirrored."""
    large = np.asarray(Image.fromarray(thing(0, (240, 480))).resize((1600, 800)))  # more detail than crops can use
    pictures = {"a": thing(0), "b": mirrored(thing(0)), "c": thing(1, (200, 300)), "d": large}
    path = {name: str(tmp_path / f"{name}.png") for name in pictures}
    for name, picture in pictures.items():
        Image.fromarray(picture).save(path[name])
    points = "120,80;170,90;140,140;200,150;160,110;185,120"
    rows = [("a", "b", points), ("a", "c", "150,100;170,90"), ("a", "a", ""), ("c", "a", points), ("a", "d", points)]
    matcher = matcher_in_passes(calibrated=True, try_mirrored=True)
    listed = write_csv(tmp_path / "pairs.csv", [(path[src], path[trg], kps) for src, trg, kps in rows])
    assert match_listed(matcher, listed, tmp_path / "out", batch=5).failed == 0
    found = all_rows(tmp_path / "out")
    for index, (src, trg, kps) in enumerate(rows):
        keypoints = [[float(n) for n in point.split(",")] for point in kps.split(";")] if kps else None
        wanted = matcher.match(path[src], path[trg], keypoints)
        own = [row for row in found if row["pair"] == index]
        ends = np.array([[row[name] for name in ("x0", "y0", "x1", "y1", "confidence")] for row in own])
        np.testing.assert_allclose(ends[:, :2], wanted.keypoints0, atol=1e-3)
        # A large photo is reduced before it is cropped, which changes pixels a little.
        atol_px, atol = (4, 0.05) if trg == "d" else (0.05, 1e-4)
        np.testing.assert_allclose(ends[:, 2:4], wanted.keypoints1, atol=atol_px)
        np.testing.assert_allclose(ends[:, 4], wanted.confidence, atol=atol)
        assert {row["mirrored"] for row in own} == {wanted.mirrored}
        assert [row["same_kind"] for row in own] == pytest.approx([wanted.same_kind] * len(own), abs=atol)
    assert found[0]["mirrored"]

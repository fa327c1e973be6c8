"""What a list takes: counts are exact, times come from a sample, nothing is written."""

from pathlib import Path

import pytest
import torch
from conftest import write_image
from helpers.bulk import SMALL, write_csv

from transformatcher.config import model_config
from transformatcher.errors import InputError
from transformatcher.evaluation import pair_list_cost
from transformatcher.evaluation.pair_list_cost import DistinctCounter, count_photos, estimate_cost
from transformatcher.inference.bulk.pair_list import open_list
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.pair_matcher import PairMatcher
from transformatcher.models.build import build_matcher

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def small() -> Matcher:
    torch.manual_seed(0)
    config = model_config(SMALL)
    return Matcher(build_matcher(config), config, "cpu")


def test_a_list(small: Matcher, tmp_path: Path):
    for seed in range(4):
        write_image(tmp_path / f"{seed}.png", (30, 40), seed)
    rows = [(f"{i % 4}.png", f"{i // 4 % 4}.png", "5,5") for i in range(100)] + [("none.png", "0.png", "")]
    pairs = open_list(write_csv(tmp_path / "pairs.csv", rows))
    matcher = PairMatcher(small, device="cpu", root=tmp_path, store=tmp_path / "features")
    cost = estimate_cost(matcher, pairs, shard_size=30)
    assert (cost.pairs, cost.photos, cost.shards, cost.sampled, cost.failed) == (101, 5, 4, 24, 1)
    assert [(stage.unit, stage.count) for stage in cost.stages] == 2 * [("photo", 5)] + 2 * [("pair", 101)]
    assert all(stage.seconds > 0 for stage in cost.stages)
    assert cost.hours == pytest.approx(sum(stage.count * stage.seconds for stage in cost.stages) / 3600)
    sizes = [(tmp_path / f"{seed}.png").stat().st_size for seed in range(4)]
    assert min(sizes) * 5 <= cost.read_bytes <= max(sizes) * 5
    assert cost.photo_bytes == 2 * sum(f.numel() for f in small.encode([tmp_path / "0.png"])[0].features)
    assert not list(tmp_path.glob("*.parquet"))


def test_photos_that_a_cache_has_lost_are_encoded_again(tmp_path: Path):
    rows = [("a", "b"), ("a", "c"), ("a", "b"), ("d", "a")]
    pairs = open_list(write_csv(tmp_path / "pairs.csv", rows, ("src", "trg")))
    assert count_photos(pairs, 100) == (4, 4)
    assert count_photos(pairs, 2) == (4, 6)  # b and a again
    assert count_photos(pairs, 1) == (4, 8)


def test_many_names_in_little_memory(monkeypatch):
    monkeypatch.setattr(pair_list_cost, "MAX_HASHES", 2000)
    counter = DistinctCounter()
    for i in range(60_000):
        counter.add(f"{i % 30_000}.jpg")
    assert len(counter._kept) <= 2000
    assert counter.count == pytest.approx(30_000, rel=0.1)
    few = DistinctCounter()
    for i in range(3000):
        few.add(f"{i % 1500}.jpg")
    assert few.count == 1500


def test_photos_that_cannot_be_read(small: Matcher, tmp_path: Path):
    pairs = open_list(write_csv(tmp_path / "pairs.csv", [("a.png", "b.png")], ("src", "trg")))
    with pytest.raises(InputError, match=r"none of 2 photos of a sample can be read; the first: .*a\.png"):
        estimate_cost(PairMatcher(small, device="cpu", root=tmp_path), pairs, 10)

"""Records of benchmarks: found by name, complete, and all that a new benchmark needs."""

import subprocess
import sys
from pathlib import Path

import pytest

from transformatcher.data.benchmarks import (
    BENCHMARKS,
    SPLITS,
    benchmark_title,
    find_benchmark,
    load_benchmark,
    with_training_pairs,
)
from transformatcher.errors import InputError


def test_by_name(spair_root: Path, coco_root: Path):
    assert len(load_benchmark("spair", spair_root, "val")) == 2
    assert len(load_benchmark("coco", coco_root, "trn", limit=1)) == 1
    drawn = load_benchmark("coco", coco_root, "trn", limit=5)
    assert sorted(pair.name for pair in drawn) == ["1-2-cat", "2-1-cat"]  # there are no others


def test_unknown_names():
    with pytest.raises(InputError, match=r"benchmark 'spiar' is none of spair, .*coco; did you mean 'spair'"):
        find_benchmark("spiar")
    assert benchmark_title("pfwillow", "test") == "PF-WILLOW test"
    assert benchmark_title("coco", None) == "COCO"
    assert benchmark_title("mine") == "mine"


@pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=list(BENCHMARKS))
def test_a_record_is_complete(benchmark, tmp_path: Path):
    assert benchmark.citation
    assert set(benchmark.n_pairs) <= set(SPLITS)
    assert (benchmark.content == "pairs") == bool(benchmark.n_pairs) == ("{split}" in benchmark.pair_lists)
    with pytest.raises(InputError, match="no such folder"):  # raised by the loader, so it is found
        benchmark.load(tmp_path / "nowhere", "test")


def test_benchmarks_with_training_pairs():
    assert with_training_pairs() == ["spair", "pfpascal"]


def test_names_do_not_wait_for_torch():
    code = "import sys, transformatcher.data.benchmarks; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_limit_is_spread_over_categories(pascal_root: Path):
    """The list is sorted by category, as those of the benchmarks are."""
    lines = [f"a.jpg,b.jpg,{number},1;2,3;4,5;6,7;8" for number in (1, 2, 3, 8) for _ in range(5)]
    header = "source_image,target_image,class,XA,YA,XB,YB"
    (pascal_root / "test_pairs.csv").write_text("\n".join([header, *lines, ""]))
    limited = load_benchmark("pfpascal", pascal_root, "test", limit=4)
    assert [pair.category for pair in limited] == ["aeroplane", "bicycle", "bird", "cat"]
    assert len(load_benchmark("pfpascal", pascal_root, "test")) == 20


@pytest.mark.data
@pytest.mark.parametrize(
    ("benchmark", "folder", "split", "n_pairs", "n_points"),
    [
        ("pfpascal", "PF-PASCAL", "trn", 2928, None),
        ("pfpascal", "PF-PASCAL", "val", 307, None),
        ("pfpascal", "PF-PASCAL", "test", 299, 2414),
        ("pfwillow", "PF-WILLOW", "test", 900, 9000),
        ("spair", "SPair-71k", "val", 360, 2615),
    ],
)
def test_real_benchmarks(data_root: Path, benchmark, folder, split, n_pairs, n_points):
    pairs = load_benchmark(benchmark, data_root / folder, split)
    assert len(pairs) == n_pairs
    assert len({pair.name for pair in pairs}) == n_pairs
    assert all(pair.visible.any() for pair in pairs)
    if n_points is not None:
        assert sum(int(pair.visible.sum()) for pair in pairs) == n_points

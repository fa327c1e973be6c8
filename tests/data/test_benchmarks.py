"""Records of benchmarks: found by name, complete, and all that a new benchmark needs."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import write_image
from helpers.analysis import write_checkpoint

from transformatcher.cli.main import main
from transformatcher.data.benchmarks import (
    BENCHMARKS,
    SPLITS,
    Benchmark,
    benchmark_title,
    find_benchmark,
    find_split,
    load_benchmark,
    with_training_pairs,
)
from transformatcher.data.pairs import raise_problem
from transformatcher.errors import InputError
from transformatcher.evaluation.analysis.run_folders import read_eval
from transformatcher.schema import ImagePair


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
    assert with_training_pairs() == ["spair", "pfpascal", "ap10k-intra-species"]


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


def load_toy(root: Path, split: str = "test", *, on_problem=raise_problem) -> list[ImagePair]:
    """The loader of a benchmark that nobody knew before."""
    assert find_split(split)
    assert callable(on_problem)
    points = np.array([[4.0, 4.0], [20.0, 30.0]])
    box = np.array([1.0, 1.0, 60.0, 50.0])
    images = [write_image(root / f"{letter}.png", seed=seed) for seed, letter in enumerate("ab")]
    return [ImagePair(name, name, *images, points, points, np.ones(2, dtype=bool), box, box) for name in ("cat", "cow")]


TOY = """
from transformatcher.data.benchmarks import BENCHMARKS, Benchmark
BENCHMARKS["toy"] = Benchmark("toy", "Toy-2", "toy:load_toy", "objects", "img", "nobody, never")
from transformatcher.config import run_config
item = {"benchmark": "toy", "folder": "Toy-2"}
print(run_config({"data": {"train": [item], "validate": [item], "pairs_per_epoch": 8}}).data.train[0].benchmark)
run_config({"data": {"train": [item], "validate": [item]}})
"""


def test_a_config_takes_every_recorded_benchmark():
    done = subprocess.run([sys.executable, "-c", TOY], capture_output=True, text=True, check=False)
    assert done.stdout == "toy\n"
    assert "data.pairs_per_epoch: must be given" in done.stderr  # as for all benchmarks of annotated objects


def test_a_new_benchmark_is_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """A loader and a record: every command and table knows the benchmark."""
    record = Benchmark(
        name="toy", title="Toy-2", loader=f"{__name__}:load_toy", content="pairs", pck_threshold="bbox-kp",
        pair_lists="*.png", n_pairs={"trn": 2, "test": 2}, citation="nobody, never",
    )  # fmt: skip
    monkeypatch.setitem(BENCHMARKS, record.name, record)
    root, out = tmp_path / "toy", tmp_path / "out"
    load_toy(root)
    data = ["--benchmark", "toy", "--root", str(root)]
    assert main(["data", "check", *data]) == 0
    weights = write_checkpoint(tmp_path / "weights")
    assert main(["eval", *data, "--weights", str(weights), "--device", "cpu", "--out", str(out)]) == 0
    assert "PCK (%) per pair, bbox-kp" in capsys.readouterr().out
    run = read_eval(out)
    assert (run.data, run.pck_threshold) == ("Toy-2 test", "bbox-kp")
    assert "--benchmark toy --root Toy-2 --split test" in run.command
    assert main(["analyse", "tables", str(out), "--out", str(tmp_path / "tables")]) == 0
    assert "Toy-2 by category" in (tmp_path / "tables" / "classes-toy.md").read_text()
    overlap = ["analyse", "overlap", str(out), "--root", str(root), "--out", str(tmp_path / "overlap")]
    assert main(overlap) == 0
    assert "Toy-2 test by overlap with Toy-2 trn" in (tmp_path / "overlap" / "overlap.md").read_text()

import csv
import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import write_image

from transformatcher.cli.main import main
from transformatcher.config import model_config
from transformatcher.errors import InputError
from transformatcher.inference.bulk import encode_cache as matching
from transformatcher.inference.bulk import parquet_shards as parts
from transformatcher.inference.bulk.encode_cache import CachedFeatures, FeatureCache
from transformatcher.inference.bulk.pair_list import open_list
from transformatcher.inference.bulk.parquet_shards import Progress, WorkerShare, match_list
from transformatcher.inference.calibration import Calibration, save_calibration
from transformatcher.inference.checkpoint import save_checkpoint
from transformatcher.inference.matcher import Matcher
from transformatcher.models.build import build_matcher

pq = pytest.importorskip("pyarrow.parquet")
SMALL = {
    "backbone": "resnet50", "stages": [1], "image_size": [32, 48], "depth": 1, "raw_gain": 200, "sigma": 2.5,
    "gaussian": "probabilities", "sampler": "bilinear",
}  # fmt: skip
COLUMNS = ["pair", "src", "trg", "x0", "y0", "x1", "y1", "confidence", "is_match", "error"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("weights")
    config = model_config(SMALL)
    save_checkpoint(folder, build_matcher(config), config)
    save_calibration(folder, Calibration(bias=1.0, sharpness=0.5, consistency=-1.0))
    return folder


@pytest.fixture(scope="module")
def small(weights: Path) -> Matcher:
    return Matcher.from_pretrained(weights, device="cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Six photos, one of them no photo at all."""
    folder = tmp_path_factory.mktemp("photos")
    for seed in range(5):
        write_image(folder / f"{seed}.png", (30 + seed, 40 + 2 * seed), seed)
    (folder / "bad.jpg").write_bytes(b"no photo")
    return folder


def write_csv(
    path: Path, rows: list[tuple[object, ...]], header: tuple[str, ...] = ("src", "trg", "keypoints")
) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def all_rows(out: Path) -> list[dict[str, object]]:
    return [row for path in sorted(out.glob("part-*.parquet")) for row in pq.read_table(path).to_pylist()]


def names(photos: Path) -> list[str]:
    return [str(photos / f"{seed}.png") for seed in range(5)]


def pairs_of(out: Path) -> list[int]:
    """The pairs of all parts, each as often as it is there."""
    found = []
    for path in sorted(out.glob("part-*.parquet")):
        table = pq.read_table(path, columns=["pair"])
        found += sorted(set(table["pair"].to_pylist()))
        assert int(pq.read_schema(path).metadata[b"pairs"]) == len(set(table["pair"].to_pylist()))
    return found


# ---------------------------------------------------------------- results


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_list_says_what_match_says(kind: str, weights: Path, small: Matcher, photos: Path, tmp_path: Path, capsys):
    a, b, c, d, _ = names(photos)
    rows = [(a, b, "10,12;3,4"), (c, a, ""), (a, d, "1,2"), (a, b, ""), (b, b, "")]
    if kind == "csv":
        path = write_csv(tmp_path / "pairs.csv", rows)
    else:
        lines = [{"src": src, "trg": trg} for src, trg, _ in rows]
        lines[0]["keypoints"], lines[2]["keypoints"] = [[10, 12], [3, 4]], [[1, 2]]
        path = tmp_path / "pairs.jsonl"
        path.write_text("\n\n".join(map(json.dumps, lines)))
    out = tmp_path / "out"
    arguments = [str(path), "--out", str(out), "--weights", str(weights), "--device", "cpu"]
    assert main(["match-pairs", *arguments, "--shard-size", "2", "--batch", "3", "--threads", "1"]) == 0
    printed = capsys.readouterr()
    assert "5 pairs, 0 of them failed" in printed.out
    assert "pairs/s" in printed.err
    assert sorted(file.name for file in out.iterdir()) == [
        "_run.json", "part-0.parquet", "part-2.parquet", "part-4.parquet",
    ]  # fmt: skip
    found = all_rows(out)
    assert list(found[0]) == COLUMNS
    assert pq.read_table(out).num_rows == len(found)  # the folder as a whole
    assert [row["pair"] for row in found] == sorted(row["pair"] for row in found)
    for index, (src, trg, points) in enumerate(rows):
        keypoints = [[float(n) for n in point.split(",")] for point in points.split(";")] if points else None
        wanted = small.match(src, trg, keypoints)
        own = [row for row in found if row["pair"] == index]
        assert [(row["src"], row["trg"], row["error"]) for row in own] == [(src, trg, None)] * len(wanted.confidence)
        ends = np.array([[row[name] for name in ("x0", "y0", "x1", "y1", "confidence")] for row in own])
        np.testing.assert_allclose(ends[:, :2], wanted.keypoints0, atol=1e-3)
        np.testing.assert_allclose(ends[:, 2:4], wanted.keypoints1, atol=0.02)
        np.testing.assert_allclose(ends[:, 4], wanted.confidence, atol=1e-3)
        assert [row["is_match"] for row in own] == wanted.is_match.tolist()


def test_what_is_bad_never_stops_the_rest(weights: Path, photos: Path, tmp_path: Path, capsys):
    a, b, *_ = names(photos)
    bad = str(photos / "bad.jpg")
    rows = [
        (a, bad, ""), (bad, a, ""), (a, b, "1,1"), (a, "nowhere.png", ""), (a, b, "999,1"), (a, b, "1,x"), ("", b, ""),
        (b, a, "2,2"), (a, b, "1,2,3"), (a,), (a, b, "nan,1"),
    ]  # fmt: skip
    path = write_csv(tmp_path / "pairs.csv", rows)
    out = tmp_path / "out"
    arguments = ["match-pairs", str(path), "--out", str(out), "--weights", str(weights), "--device", "cpu"]
    assert main([*arguments, "--batch", "2"]) == 1
    printed = capsys.readouterr()
    assert "11 pairs, 9 of them failed" in printed.out
    assert "failed: pair 0: " in printed.err
    found = all_rows(out)
    assert [row["pair"] for row in found] == list(range(11))
    assert [row["pair"] for row in found if row["error"] is None] == [2, 7]
    faults = [row["error"] for row in found]
    for index, words in {
        0: "bad.jpg: not an image", 1: "bad.jpg: not an image", 3: "no such image file", 4: "lies outside the image",
        5: "keypoints must be 'x,y;x,y'", 6: "must be names of images", 8: "expected n points", 9: "must be names",
        10: "NaN or infinite",
    }.items():  # fmt: skip
        assert words in faults[index]
    assert all(row["x1"] is None and row["confidence"] is None for row in found if row["error"])
    assert not any(row["is_match"] for row in found if row["error"])
    assert main(arguments) == 1  # what is done already says it again
    assert "11 pairs, 9 of them failed" in capsys.readouterr().out


def test_bad_lines_of_json(small: Matcher, photos: Path, tmp_path: Path):
    a, b, *_ = names(photos)
    lines = [
        "{",
        '{"src": "\\ud800.png", "trg": "a.png"}',
        "[1]",
        json.dumps({"src": 1, "trg": b}),
        json.dumps({"src": a, "trg": b, "keypoints": {"x": 1}}),
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join([*lines, json.dumps({"src": a, "trg": b, "keypoints": [[1, 1]]})]))
    summary = match_list(small, open_list(path), tmp_path / "out")
    assert (summary.pairs, summary.failed, summary.complete, summary.all_failed) == (6, 5, True, 5)
    assert [fault.split(":")[0] for fault in summary.faults] == [f"pair {index}" for index in range(5)]


def test_a_pair_without_a_match_is_there_all_the_same(small: Matcher, photos: Path, tmp_path: Path, monkeypatch):
    a, b, *_ = names(photos)
    monkeypatch.setattr(matching, "cycle_error", lambda _back, src, _trg: torch.full(src.shape[:2], 2.0))
    match_list(small, open_list(write_csv(tmp_path / "pairs.csv", [(a, b, "")])), tmp_path / "out")
    (row,) = all_rows(tmp_path / "out")
    assert row == {
        "pair": 0, "src": a, "trg": b, "x0": None, "y0": None, "x1": None, "y1": None, "confidence": None,
        "is_match": False, "error": None,
    }  # fmt: skip


def test_names_start_at_the_list(small: Matcher, photos: Path, tmp_path: Path):
    path = write_csv(photos / "pairs.csv", [("0.png", "1.png", "1,1")])
    assert match_list(small, open_list(path), tmp_path / "out").failed == 0
    path.unlink()


# ---------------------------------------------------------------- exactly once


def start(weights: Path, path: Path, out: Path, rank: int, world: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "transformatcher", "match-pairs", str(path), "--out", str(out)]
    options = ["--weights", str(weights), "--device", "cpu", "--shard-size", "2", "--threads", "1", "--batch", "1"]
    environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, *options], env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE)


def test_one_of_two_killed_and_restarted(weights: Path, photos: Path, tmp_path: Path):
    images = names(photos)
    rows = [(images[i % 5], images[i // 5 % 5], "") for i in range(121)]
    path, out = write_csv(tmp_path / "pairs.csv", rows), tmp_path / "out"
    first, second = (start(weights, path, out, rank, 2) for rank in (0, 1))
    deadline = time.monotonic() + 120
    while not (out / "part-062.parquet").exists():  # the first few of the second process' share
        assert second.poll() is None, second.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    second.send_signal(signal.SIGKILL)
    assert second.wait() == -signal.SIGKILL
    assert first.wait(120) == 0, first.communicate()  # goes on by itself, and says nothing of a whole that is none
    for process in (first, second):
        process.communicate()
    before = {file: file.stat().st_mtime_ns for file in out.glob("part-*.parquet")}
    done = pairs_of(out)
    assert set(range(60)) <= set(done) < set(range(121))
    (out / ".part-120.parquet.new").write_bytes(b"half a file")  # what a kill may leave
    for process in [start(weights, path, out, rank, 2) for rank in (0, 1)]:
        output = process.communicate(timeout=120)
        assert process.returncode == 0, output
    assert pairs_of(out) == list(range(121))
    assert {file: file.stat().st_mtime_ns for file in before} == before  # nothing was done twice
    assert sorted(file.name for file in out.iterdir()) == [
        "_run.json",
        *(f"part-{begin:03d}.parquet" for begin in range(0, 121, 2)),
    ]


@pytest.mark.parametrize("world", [1, 3, 7])
def test_another_number_of_processes_goes_on(world: int, small: Matcher, photos: Path, tmp_path: Path):
    images = names(photos)
    rows = [(images[i % 5], images[(i + 1) % 5], "5,5") for i in range(11)]
    pairs, out = open_list(write_csv(tmp_path / "pairs.csv", rows)), tmp_path / "out"
    assert not match_list(small, pairs, out, share=WorkerShare(1, 2), part=2).complete
    assert pairs_of(out) == [6, 7, 8, 9, 10]
    last = [match_list(small, pairs, out, share=WorkerShare(rank, world), part=2) for rank in range(world)][-1]
    assert last.complete
    assert pairs_of(out) == list(range(11))
    assert [i for rank in range(world) for i in WorkerShare(rank, world).of(range(11))] == list(range(11))


def test_torchrun_ends_when_all_is_done(weights: Path, photos: Path, tmp_path: Path):
    a, b, c, *_ = names(photos)
    rows = [(str(photos / "bad.jpg"), a, "")] + [(a, trg, "3,3") for trg in [b, c] * 20]  # the first share ends at once
    path, out = write_csv(tmp_path / "pairs.csv", rows), tmp_path / "out"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ["-m", "transformatcher", "match-pairs", str(path), "--out", str(out), "--shard-size", "21"]
    options = ["--weights", str(weights), "--device", "cpu", "--threads", "1"]
    done = subprocess.run([*launcher, *command, *options], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert "41 pairs, 1 of them failed" in done.stdout
    assert "process 2 of 2: " in done.stderr
    assert pairs_of(out) == list(range(41))


# ---------------------------------------------------------------- memory and order


def test_each_image_is_looked_at_once(small: Matcher, photos: Path, tmp_path: Path):
    images = names(photos)
    rows = [(src, trg, "") for trg in images for src in images]  # sources in the worst order
    pairs = open_list(write_csv(tmp_path / "pairs.csv", rows))
    seen: list[Progress] = []
    match_list(small, pairs, tmp_path / "once", part=5, batch=2, track=seen.append)
    assert seen[-1] == Progress(done=25, total=25, matched=25, encoded=5, failed=0)
    match_list(small, pairs, tmp_path / "again", part=5, batch=2, cache_bytes=1, track=seen.append)
    assert seen[-1].encoded > 5
    for one, other in zip(all_rows(tmp_path / "once"), all_rows(tmp_path / "again"), strict=True):
        assert one["pair"] == other["pair"]
        np.testing.assert_allclose(one["x1"], other["x1"], atol=0.02)
    match_list(small, pairs, tmp_path / "grouped", part=25, batch=1, cache_bytes=700_000, track=seen.append)
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


def test_a_long_list_is_never_in_memory(tmp_path: Path):
    path = tmp_path / "pairs.csv"
    with path.open("w") as file:
        file.write("src,trg\n")
        file.writelines(f"folder/image-{i}.jpg,folder/image-{i + 1}.jpg\n" for i in range(20_000))
    tracemalloc.start()
    pairs = open_list(path)
    parts = dict(pairs.parts([2_000, 19_990], 100))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pairs.count == 20_000
    assert parts[2_000][0].src == "folder/image-2000.jpg"
    assert [len(part) for part in parts.values()] == [100, 10]
    assert peak < 1_000_000


# ---------------------------------------------------------------- refusals


def test_a_folder_of_another_run_is_refused(small: Matcher, photos: Path, tmp_path: Path):
    a, b, *_ = names(photos)
    pairs, out = open_list(write_csv(tmp_path / "pairs.csv", [(a, b, "")])), tmp_path / "out"
    match_list(small, pairs, out)
    other = open_list(write_csv(tmp_path / "other.csv", [(b, a, "")]))
    with pytest.raises(InputError, match=r"results of another run \(its list differ"):
        match_list(small, other, out)
    with pytest.raises(InputError, match="its part differ"):
        match_list(small, pairs, out, part=7)
    (out / "_run.json").unlink()
    with pytest.raises(InputError, match=r"holds parts, but no _run\.json"):
        match_list(small, pairs, out)
    (tmp_path / "strange").mkdir()
    match_list(small, pairs, tmp_path / "strange")
    (tmp_path / "strange" / "part-0.parquet").write_bytes(b"garbage")
    with pytest.raises(InputError, match=r"part-0\.parquet: no part that was written here"):
        match_list(small, pairs, tmp_path / "strange")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("pairs.csv", "source,target\na,b\n", "no column src and no column trg; the first line names source, target"),
        ("pairs.csv", "", "the first line names nothing"),
        ("pairs.csv", "src,trg\n", "holds no pair at all"),
        ("pairs.csv", "src,trg\n" + '"' + 200_000 * "x", "not a .csv file that can be read"),
        ("pairs.txt", "a b", "is a .csv file .* or a .jsonl file"),
        ("pairs.jsonl", None, "no such list of pairs"),
    ],
)
def test_bad_lists(name: str, text: str | None, message: str, tmp_path: Path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        open_list(tmp_path / name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: LIST, --out"),
        (["a.jpg", "b.jpg", "--out", "out"], "unexpected argument: b.jpg"),
        (["pairs.csv"], "required: --out"),
        (["pairs.csv", "--out", "out", "--json"], "unknown option --json"),
        (["pairs.csv", "--out", "out", "--keypoints", "1,1"], "unknown option --keypoints"),
        (["pairs.csv", "--out", "out", "--cache-gb", "0"], "'0' is not a number from 0.001"),
        (["pairs.csv", "--out", "out", "--shard-size", "0"], "'0' is not a whole number from 1"),
    ],
)
def test_options_of_other_commands(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["match-pairs", *arguments])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("rank", "world", "message"), [("2", "2", "does not go with"), ("x", "2", "whole numbers")])
def test_a_bad_environment(rank: str, world: str, message: str, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    with pytest.raises(InputError, match=message):
        WorkerShare.of_environment()


def test_without_pyarrow(monkeypatch, tmp_path: Path, capsys):
    monkeypatch.setattr(parts, "find_spec", lambda _: None)
    assert main(["match-pairs", "pairs.csv", "--out", str(tmp_path)]) == 2
    assert "pip install 'transformatcher[bulk]'" in capsys.readouterr().err

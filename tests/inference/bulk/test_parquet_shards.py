"""The files: what match says, each pair exactly once, and folders of other runs refused."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.bulk import all_rows, names, pairs_of, write_csv

from transformatcher.cli.main import main
from transformatcher.errors import InputError
from transformatcher.inference.bulk.pair_list import open_list
from transformatcher.inference.bulk.parquet_shards import WorkerShare, match_list
from transformatcher.inference.matcher import Matcher

pq = pytest.importorskip("pyarrow.parquet")
COLUMNS = ["pair", "src", "trg", "x0", "y0", "x1", "y1", "confidence", "is_match", "same_kind", "mirrored", "error"]


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
    assert not match_list(small, pairs, out, share=WorkerShare(1, 2), shard_size=2).complete
    assert pairs_of(out) == [6, 7, 8, 9, 10]
    last = [match_list(small, pairs, out, share=WorkerShare(rank, world), shard_size=2) for rank in range(world)][-1]
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


def test_a_folder_of_another_run_is_refused(small: Matcher, photos: Path, tmp_path: Path):
    a, b, *_ = names(photos)
    pairs, out = open_list(write_csv(tmp_path / "pairs.csv", [(a, b, "")])), tmp_path / "out"
    match_list(small, pairs, out)
    other = open_list(write_csv(tmp_path / "other.csv", [(b, a, "")]))
    with pytest.raises(InputError, match=r"holds another run, which differs in list \("):
        match_list(small, other, out)
    with pytest.raises(InputError, match="differs in shard_size \\(1000 there, 7 here\\)"):
        match_list(small, pairs, out, shard_size=7)
    (out / "_run.json").unlink()
    with pytest.raises(InputError, match=r"holds results, but no valid _run\.json"):
        match_list(small, pairs, out)
    (tmp_path / "strange").mkdir()
    match_list(small, pairs, tmp_path / "strange")
    (tmp_path / "strange" / "part-0.parquet").write_bytes(b"garbage")
    with pytest.raises(InputError, match=r"part-0\.parquet: not a file that match-pairs wrote"):
        match_list(small, pairs, tmp_path / "strange")


@pytest.mark.parametrize(("rank", "world", "message"), [("2", "2", "does not go with"), ("x", "2", "whole numbers")])
def test_a_bad_environment(rank: str, world: str, message: str, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    with pytest.raises(InputError, match=message):
        WorkerShare.from_environment()

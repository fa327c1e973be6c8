"""The files: what match says, each pair exactly once, and folders of other runs refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
from helpers.bulk import all_rows, match_listed, names, pairs_of, write_csv

from transformatcher.cli.main import main
from transformatcher.errors import InputError
from transformatcher.files import exclusive_lock
from transformatcher.inference.bulk.parquet_shards import BulkProgress
from transformatcher.inference.matcher import Matcher
from transformatcher.storage import Folder

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
    arguments = [str(path), "--out", str(out), "--weights", str(weights), "--device", "cpu", "--root", str(photos)]
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
    arguments += ["--root", str(photos)]
    assert main([*arguments, "--batch", "2"]) == 1
    printed = capsys.readouterr()
    assert "11 pairs, 9 of them failed" in printed.out
    assert "failed: pair 0: " in printed.err
    found = all_rows(out)
    assert [row["pair"] for row in found] == list(range(11))
    assert [row["pair"] for row in found if row["error"] is None] == [2, 7]
    faults = [row["error"] for row in found]
    for index, words in {
        0: "bad.jpg: not an image", 1: "bad.jpg: not an image", 3: "nowhere.png: no such image file",
        4: "lies outside the image", 5: "keypoints must be 'x,y;x,y'", 6: "must be names of images",
        8: "expected n points", 9: "must be names", 10: "NaN or infinite",
    }.items():  # fmt: skip
        assert words in faults[index]
    assert all(row["x1"] is None and row["confidence"] is None for row in found if row["error"])
    assert not any(row["is_match"] for row in found if row["error"])
    assert main(arguments) == 1  # what is done already says it again
    assert "11 pairs, 9 of them failed" in capsys.readouterr().out


def start(weights: Path, path: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "transformatcher", "match-pairs", str(path), "--out", str(out), "--allow-outside"]
    options = ["--weights", str(weights), "--device", "cpu", "--shard-size", "2", "--threads", "1", "--batch", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, *options], env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE)


def test_killed_and_started_again(weights: Path, photos: Path, tmp_path: Path):
    images = names(photos)
    rows = [(images[i % 5], images[i // 5 % 5], "") for i in range(121)]
    path, out = write_csv(tmp_path / "pairs.csv", rows), tmp_path / "out"
    first = start(weights, path, out)
    deadline = time.monotonic() + 120
    while not (out / "part-006.parquet").exists():
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    first.communicate()
    before = {file: file.stat().st_mtime_ns for file in out.glob("part-*.parquet")}
    assert set(range(8)) <= set(pairs_of(out)) < set(range(121))
    (out / ".part-120.parquet.new").write_bytes(b"half a file")  # what a kill may leave
    second = start(weights, path, out)
    output = second.communicate(timeout=120)
    assert second.returncode == 0, output
    assert pairs_of(out) == list(range(121))
    assert {file: file.stat().st_mtime_ns for file in before} == before  # nothing was done twice
    assert sorted(file.name for file in out.iterdir()) == [
        "_run.json",
        *(f"part-{begin:03d}.parquet" for begin in range(0, 121, 2)),
    ]


def test_failed_pairs_again(small: Matcher, photos: Path, tmp_path: Path):
    a, b, c, *_ = names(photos)
    late, bad = tmp_path / "late.png", str(photos / "bad.jpg")
    rows = [(a, b, "5,5"), (a, late, "5,5;6,6"), (b, c, "3,3"), (a, bad, ""), (c, a, "2,2")]
    path, out = write_csv(tmp_path / "pairs.csv", rows), tmp_path / "out"
    assert match_listed(small, path, out, shard_size=2).failed == 2
    first = all_rows(out)
    shutil.copy(photos / "3.png", late)
    times = {file.name: file.stat().st_mtime_ns for file in out.glob("part-*")}
    assert match_listed(small, path, out, shard_size=2).failed == 2  # what is done is done
    seen: list[BulkProgress] = []
    summary = match_listed(small, path, out, shard_size=2, retry_failed=True, track=seen.append)
    assert summary.failed == 1
    assert summary.errors == [next(f"pair 3: {row['error']}" for row in first if row["pair"] == 3)]
    assert seen[-1] == BulkProgress(done=5, total=5, matched=2, failed=1)
    again = all_rows(out)
    assert [row["pair"] for row in again] == [0, 1, 1, 2, 3, 4]
    assert [row for row in again if row["pair"] != 1] == [row for row in first if row["pair"] != 1]
    assert all(row["error"] is None and row["x1"] is not None for row in again if row["pair"] == 1)
    assert times["part-4.parquet"] == (out / "part-4.parquet").stat().st_mtime_ns
    assert pairs_of(out) == list(range(5))


def test_overwritten(small: Matcher, photos: Path, tmp_path: Path):
    a, b, *_ = names(photos)
    out = tmp_path / "out"
    match_listed(small, write_csv(tmp_path / "pairs.csv", [(a, b, "5,5")] * 3), out, shard_size=1)
    other = write_csv(tmp_path / "other.csv", [(b, a, "")])
    match_listed(small, other, out, overwrite=True)
    assert sorted(file.name for file in out.iterdir()) == ["_run.json", "part-0.parquet"]
    assert {row["src"] for row in all_rows(out)} == {b}


def test_two_at_once_are_refused(small: Matcher, photos: Path, tmp_path: Path):
    a, b, *_ = names(photos)
    path = write_csv(tmp_path / "pairs.csv", [(a, b, "5,5")])
    with exclusive_lock(tmp_path / "out"), pytest.raises(InputError, match="another process is writing there"):
        match_listed(small, path, tmp_path / "out")


def test_list_photos_and_results_at_urls(small: Matcher, photos: Path, tmp_path: Path):
    """Bit for bit what the same files give here; the driver continues what it finds there."""
    rows = [("0.png", "1.png", "5,5"), ("0.png", "bad.jpg", ""), ("2.png", "1.png", ""), ("0.png", "none.png", "")]
    write_csv(photos / "pairs.csv", rows)
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    for file in photos.iterdir():
        memory.pipe_file(f"/bucket/photos/{file.name}", file.read_bytes())
    here = match_listed(small, photos / "pairs.csv", tmp_path / "out", root=photos, anywhere=False, shard_size=2)
    path, out = "memory://bucket/photos/pairs.csv", "memory://bucket/out"
    options = {"root": "memory://bucket/photos", "anywhere": False, "shard_size": 2}
    there = match_listed(small, path, out, **options)
    assert (here.failed, there.failed) == (2, 2)
    assert sorted(Folder(out).names()) == ["_run.json", "part-0.parquet", "part-2.parquet"]
    memory.get(f"{out}/", str(tmp_path / "copy"), recursive=True)
    one, other = all_rows(tmp_path / "out"), all_rows(tmp_path / "copy")
    assert [row | {"error": None} for row in one] == [row | {"error": None} for row in other]
    assert other[-1]["error"] == "memory://bucket/photos/none.png: no such file"
    memory.rm("/bucket/out/part-2.parquet")
    assert match_listed(small, path, out, **options).encoded == 3
    with pytest.raises(InputError, match="holds another run"):
        match_listed(small, path, out, **(options | {"shard_size": 3}))
    assert match_listed(small, path, out, **(options | {"shard_size": 3}), overwrite=True).encoded == 3
    (photos / "pairs.csv").unlink()


def test_names_stay_inside_the_root(small: Matcher, photos: Path, tmp_path: Path):
    inside = tmp_path / "root"
    shutil.copytree(photos, inside / "sub")
    (inside / "link.png").symlink_to(photos / "0.png")
    outside = f"../{photos.name}/0.png"
    rows = [
        ("sub/0.png", "sub/1.png", "5,5"), ("sub/../sub/0.png", "sub/1.png", "5,5"),
        (str(photos / "0.png"), "sub/1.png"),
        ("sub/0.png", outside), ("link.png", "sub/1.png"), ("file:///etc/passwd", "sub/1.png"),
        ("memory://bucket/photos/0.png", "sub/1.png"), ("sub/0.png", "sub\0.png"),
    ]  # fmt: skip
    path = write_csv(tmp_path / "pairs.csv", rows)
    summary = match_listed(small, path, tmp_path / "out", root=inside, anywhere=False)
    assert summary.failed == 6
    faults = [row["error"] for row in all_rows(tmp_path / "out")]
    assert faults[:2] == [None, None]
    assert all(f"lies outside {inside}; choose another --root" in fault for fault in faults[2:7])
    assert "not the name of a file" in faults[7]


def test_features_on_disk(weights: Path, photos: Path, tmp_path: Path):
    """Who computed the features of a photo, and when, makes no difference."""
    small = Matcher.from_pretrained(weights, device="cpu")
    images = names(photos)
    rows = [(src, trg, "5,5") for src in images for trg in images[:3]]
    path, store = write_csv(tmp_path / "pairs.csv", rows), tmp_path / "features"
    assert match_listed(small, path, tmp_path / "one", store=store, shard_size=4).encoded == 5
    assert match_listed(small, path, tmp_path / "two", store=store, shard_size=4).encoded == 0
    assert match_listed(small, path, tmp_path / "cold", store=tmp_path / "cold-features", shard_size=4).encoded == 5
    assert all_rows(tmp_path / "one") == all_rows(tmp_path / "two") == all_rows(tmp_path / "cold")
    assert match_listed(small, path, tmp_path / "none", shard_size=4).encoded == 5
    with pytest.raises(InputError, match="features"):  # of float32
        match_listed(small, path, tmp_path / "one", shard_size=4)
    half = match_listed(small, path, tmp_path / "small", store=store, store_bytes=1, shard_size=4)
    assert half.failed == 0


def test_a_folder_of_another_run_is_refused(small: Matcher, photos: Path, tmp_path: Path):
    a, b, *_ = names(photos)
    pairs, out = write_csv(tmp_path / "pairs.csv", [(a, b, "")]), tmp_path / "out"
    match_listed(small, pairs, out)
    other = write_csv(tmp_path / "other.csv", [(b, a, "")])
    with pytest.raises(InputError, match=r"holds another run, which differs in list \("):
        match_listed(small, other, out)
    with pytest.raises(InputError, match="differs in shard_size \\(1000 there, 7 here\\)"):
        match_listed(small, pairs, out, shard_size=7)
    (out / "_run.json").unlink()
    with pytest.raises(InputError, match=r"holds results, but no valid _run\.json"):
        match_listed(small, pairs, out)
    (tmp_path / "strange").mkdir()
    match_listed(small, pairs, tmp_path / "strange")
    (tmp_path / "strange" / "part-0.parquet").write_bytes(b"garbage")
    with pytest.raises(InputError, match=r"part-0\.parquet: not a file that match-pairs wrote"):
        match_listed(small, pairs, tmp_path / "strange")

"""Lists of pairs: CSV and JSON lines, good and bad."""

import json
import tracemalloc
from pathlib import Path

import fsspec
import pytest
from helpers.bulk import match_listed, names, write_csv

from transformatcher.errors import InputError
from transformatcher.inference.bulk.pair_list import ListedPair, open_list
from transformatcher.inference.matcher import Matcher

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


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
    summary = match_listed(small, path, tmp_path / "out")
    assert (summary.pairs, summary.failed) == (6, 5)
    assert [error.split(":")[0] for error in summary.errors] == [f"pair {index}" for index in range(5)]


def test_a_list_knows_its_folder(tmp_path: Path):
    write_csv(tmp_path / "pairs.csv", [("0.png", "1.png", "1,1")])
    assert open_list(tmp_path / "pairs.csv").folder == str(tmp_path)
    with fsspec.open("memory://lists/pairs.csv", "wb") as file:
        file.write((tmp_path / "pairs.csv").read_bytes())
    remote = open_list("memory://lists/pairs.csv")
    assert remote.folder == "memory://lists"
    assert (remote.count, remote.digest) == (1, open_list(tmp_path / "pairs.csv").digest)


def test_a_list_as_parquet(tmp_path: Path):
    columns = {"trg": ["b", "c", None], "src": ["a", "a", "a"], "keypoints": [[[1.0, 2.0], [3.0, 4.0]], None, []]}
    pq.write_table(pa.table(columns), tmp_path / "pairs.parquet")
    pq.write_table(pa.table({"src": ["a"], "trg": ["b"], "keypoints": ["1,2;3,4"]}), tmp_path / "text.parquet")
    pairs, text = open_list(tmp_path / "pairs.parquet"), open_list(tmp_path / "text.parquet")
    ((_, read),) = pairs.shards([0], 10)
    assert pairs.count == 3
    assert read[0] == ListedPair(0, "a", "b", [[1.0, 2.0], [3.0, 4.0]])
    assert read[1] == ListedPair(1, "a", "c", None)
    assert read[2].error == "src and trg must be names of images"
    assert next(text.shards([0], 1))[1] == [ListedPair(0, "a", "b", [[1.0, 2.0], [3.0, 4.0]])]
    assert len({pairs.digest, text.digest}) == 2


def test_a_long_list_is_never_in_memory(tmp_path: Path):
    path = tmp_path / "pairs.csv"
    with path.open("w") as file:
        file.write("src,trg\n")
        file.writelines(f"folder/image-{i}.jpg,folder/image-{i + 1}.jpg\n" for i in range(20_000))
    tracemalloc.start()
    pairs = open_list(path)
    parts = dict(pairs.shards([2_000, 19_990], 100))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pairs.count == 20_000
    assert parts[2_000][0].src == "folder/image-2000.jpg"
    assert [len(part) for part in parts.values()] == [100, 10]
    assert peak < 1_000_000


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("pairs.csv", "source,target\na,b\n", "no column src and no column trg; its columns are source, target"),
        ("pairs.csv", "", "its columns are nothing"),
        ("pairs.csv", "src,trg\n", "lists no pairs"),
        ("pairs.csv", "src,trg\n" + '"' + 200_000 * "x", "not a valid .csv file"),
        ("pairs.txt", "a b", "is a .csv, .jsonl or .parquet file"),
        ("pairs.parquet", "no table", "not a valid .parquet file"),
        ("pairs.jsonl", None, "no such list of pairs"),
    ],
)
def test_bad_lists(name: str, text: str | None, message: str, tmp_path: Path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        open_list(tmp_path / name)

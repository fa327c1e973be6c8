"""Lists of pairs: CSV and JSON lines, good and bad."""

import json
import tracemalloc
from pathlib import Path

import pytest
from helpers.bulk import names, write_csv

from transformatcher.errors import InputError
from transformatcher.inference.bulk.pair_list import open_list
from transformatcher.inference.bulk.parquet_shards import match_list
from transformatcher.inference.matcher import Matcher

pytest.importorskip("pyarrow")


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
    assert (summary.pairs, summary.failed, summary.complete, summary.total_failed) == (6, 5, True, 5)
    assert [error.split(":")[0] for error in summary.errors] == [f"pair {index}" for index in range(5)]


def test_names_start_at_the_list(small: Matcher, photos: Path, tmp_path: Path):
    path = write_csv(photos / "pairs.csv", [("0.png", "1.png", "1,1")])
    assert match_list(small, open_list(path), tmp_path / "out").failed == 0
    path.unlink()


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
        ("pairs.csv", "source,target\na,b\n", "no column src and no column trg; the first line names source, target"),
        ("pairs.csv", "", "the first line names nothing"),
        ("pairs.csv", "src,trg\n", "lists no pairs"),
        ("pairs.csv", "src,trg\n" + '"' + 200_000 * "x", "not a valid .csv file"),
        ("pairs.txt", "a b", "is a .csv file .* or a .jsonl file"),
        ("pairs.jsonl", None, "no such list of pairs"),
    ],
)
def test_bad_lists(name: str, text: str | None, message: str, tmp_path: Path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        open_list(tmp_path / name)

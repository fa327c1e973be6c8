"""Files of points: what is read, what is refused by name, and that they are scored like eval's own predictions."""

import json
import math
from pathlib import Path

import pytest
from conftest import coco_file

from transformatcher.data.benchmarks import load_benchmark
from transformatcher.errors import InputError
from transformatcher.evaluation.points_file import (
    PredictedPoint,
    missing_points,
    predictions_from_points,
    read_points,
    write_points,
    write_points_to_predict,
)

HEADER = "pair,keypoint,x,y\n"
NAMES = ["000000-a-b:cat", "000001-b-a:cat"]
LINES = [f"{name},{index},{10 + index},{20.5}" for name in NAMES for index in (0, 1)]


def written(folder: Path, text: str, name: str = "points.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_both_formats_say_the_same(tmp_path: Path):
    csv = written(tmp_path, "\ufeffkeypoint, pair, y, x, confidence\n1, a, 2.5, 1, 0.5\n0, a, 4, 3,\n")
    lines = [
        {"pair": "a", "keypoint": 1, "x": 1, "y": 2.5, "confidence": 0.5},
        {"pair": "a", "keypoint": 0, "x": 3, "y": 4},
    ]
    text = "\n\n".join(json.dumps(line) for line in lines)  # blank lines are skipped
    points = read_points(csv)
    assert points == {("a", 1): PredictedPoint(1.0, 2.5, 0.5, 2), ("a", 0): PredictedPoint(3.0, 4.0, None, 3)}
    assert [point[:3] for point in read_points(written(tmp_path, text, "p.jsonl")).values()] == [
        point[:3] for point in points.values()
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.csv", "pair,x,y\na,1,2\n", "p.csv: no column keypoint; the first line is pair,keypoint,x,y"),
        ("p.csv", HEADER, "holds no point"),
        ("p.csv", HEADER + "a,0,1,nan\n", r"line 2: not a point \(a number is NaN or infinite\)"),
        ("p.csv", HEADER + "a,0,one,2\n", r"line 2: not a point"),
        ("p.csv", HEADER + "a,-1,1,2\n", "indices start at 0"),
        ("p.csv", HEADER + "a,0,1\n", "line 2: not a point"),
        ("p.jsonl", '{"pair": "a", "keypoint": 0, "x": 1}', "line 1: 'y' is missing"),
        ("p.jsonl", '{"pair": "a", "keypoint": 0.5, "x": 1, "y": 2}', "keypoint 0.5 is not an index"),
        ("p.jsonl", "[1, 2]", "line 1: not a JSON object"),
        ("p.jsonl", "{}\n{", "line 1: 'pair' is missing"),
        ("p.jsonl", "\n{", "line 2: not JSON"),
        ("p.txt", HEADER, "ends in .csv or .jsonl"),
    ],
)
def test_what_is_no_point_is_named(tmp_path: Path, name, text, message):
    with pytest.raises(InputError, match=message):
        read_points(written(tmp_path, text, name))


def test_points_that_are_there_twice_are_named_with_their_lines(tmp_path: Path):
    text = HEADER + "a,0,1,2\nb,0,1,2\na,0,1,2\n" + "".join(f"a,{i},0,0\n" * 2 for i in range(1, 5))
    with pytest.raises(InputError, match=r"keypoint 0 of a \(lines 2 and 4\), .* and 2 more points are twice"):
        read_points(written(tmp_path, text))


def test_missing_points_are_named_or_wrong(spair_root: Path, tmp_path: Path):
    pairs = load_benchmark("spair", spair_root, "val")
    path = written(tmp_path, HEADER + "\n".join(LINES[:-1]))
    with pytest.raises(InputError, match=r"keypoint 1 of 000001-b-a:cat is missing, of 4; --missing wrong"):
        predictions_from_points(path, read_points(path), pairs)
    predictions = predictions_from_points(path, read_points(path), pairs, "wrong")
    assert predictions[1].pred_kps == [[10.0, 20.5], [math.inf, math.inf]]
    assert missing_points(predictions) == ["keypoint 1 of 000001-b-a:cat"]


def test_points_of_something_else_are_refused(spair_root: Path, tmp_path: Path):
    pairs = load_benchmark("spair", spair_root, "val")
    path = written(tmp_path, HEADER + "\n".join([*LINES, "000002-c-d:dog,0,1,1"]))
    with pytest.raises(InputError, match="000002-c-d:dog is not among the 2 pairs asked for"):
        predictions_from_points(path, read_points(path), pairs)
    path = written(tmp_path, HEADER + "\n".join([*LINES, f"{NAMES[0]},2,1,1"]))
    with pytest.raises(InputError, match="line 6: 000000-a-b:cat has 2 keypoints, 0 to 1, not 2"):
        predictions_from_points(path, read_points(path), pairs)


def test_the_list_of_points_is_the_form_to_fill_in(tmp_path: Path):
    """Also of pairs with keypoints that only one photo shows: they are neither asked for nor scored."""
    root = tmp_path / "coco"
    coco_file(root)
    pairs = load_benchmark("coco", root, "trn", limit=2)
    asked = tmp_path / "asked.jsonl"
    count = write_points_to_predict(asked, pairs, root)
    rows = [json.loads(line) for line in asked.read_text().splitlines()]
    assert count == len(rows) == 6  # three of four keypoints are visible in both
    assert rows[0]["src_image"].startswith("images/")
    answers = [{key: row[key] for key in ("pair", "keypoint")} | {"x": 1.0, "y": 2.0} for row in rows]
    extra = {"pair": pairs[0].name, "keypoint": 3, "x": 0, "y": 0}  # visible in one photo only
    path = written(tmp_path, "\n".join(map(json.dumps, [*answers, extra])), "answers.jsonl")
    predictions = predictions_from_points(path, read_points(path), pairs)
    assert [item.kp_index for item in predictions] == [[0, 1, 2], [0, 1, 2]]
    assert write_points(tmp_path / "again.csv", predictions) == 6
    assert read_points(tmp_path / "again.csv").keys() == {(row["pair"], row["keypoint"]) for row in rows}


def test_points_of_a_mirrored_pair_are_those_of_the_mirrored_photo(pascal_root: Path, tmp_path: Path):
    (pair,) = load_benchmark("pfpascal", pascal_root, "trn")
    assert pair.trg_flip
    path = written(tmp_path, HEADER + "\n".join(f"{pair.name},{i},1,1" for i in (0, 2)))
    (prediction,) = predictions_from_points(path, read_points(path), [pair])
    assert prediction.trg_kps[0][0] == 80 - pair.trg_kps_px[0][0]

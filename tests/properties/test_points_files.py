"""Files of points with any content: they are read, or one sentence says why not. Nothing else is ever raised."""

import json
import math
import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from transformatcher.errors import InputError
from transformatcher.evaluation.points_file import read_points

VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers()))
ROWS = st.lists(st.dictionaries(st.sampled_from(["pair", "keypoint", "x", "y", "confidence", "z"]), VALUES), max_size=4)


def read(name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            points = read_points(path)
        except InputError as error:
            assert str(path) in str(error)  # noqa: PT017 (the file may be readable)
        else:
            assert all(math.isfinite(point.x) and index >= 0 for (_, index), point in points.items())


@given(st.one_of(st.binary(), st.text().map(str.encode)))
@example(b"pair,keypoint,x,y\n\x00")
@example(b'pair,keypoint,x,y\n"a')
@example(b"pair,keypoint,x,y\na," + b"9" * 5000 + b",1,2\n")
def test_any_bytes(content: bytes):
    for name in ("p.csv", "p.jsonl"):
        read(name, content)


@given(ROWS)
@example([{"pair": "a", "keypoint": 1e300, "x": 1, "y": 1}])
@example([{"pair": "a", "keypoint": float("nan"), "x": 1, "y": 1}])
@example([{"pair": "a", "keypoint": 0, "x": True, "y": 10**400}])
def test_any_rows(rows: list[dict[str, object]]):
    read("p.jsonl", "\n".join(json.dumps(row) for row in rows).encode())
    read(
        "p.csv",
        b"pair,keypoint,x,y\n" + "\n".join(",".join(map(str, row.values())) for row in rows).encode("utf-8", "replace"),
    )

"""A session's points as a COCO-keypoint file, and back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.web_session import FakePair

from transformatcher.data.coco_keypoints import load_coco_objects
from transformatcher.errors import InputError
from transformatcher.web.coco import from_coco, to_coco
from transformatcher.web.session import XY, Session


@pytest.fixture
def annotated(session: Session) -> Session:
    session.add_point(XY(150, 80), "left ear")
    session.add_point(XY(7.25, 9), "tail")
    session.pin(1, "one", XY(50, 60))
    session.pin(3, "one", None)
    session.pairs["src", "two"] = FakePair(2, 0.4, is_match=False)
    session.pairs["one", "two"] = FakePair(3, 0.9)
    return session


def test_our_loader_reads_it(annotated: Session, tmp_path: Path):
    path = tmp_path / "keypoints.json"
    path.write_text(json.dumps(to_coco(annotated, "cat")))
    source, one, two = load_coco_objects(path, tmp_path)
    assert source.kp_names == ("nose", "left ear", "tail")
    assert (source.category, source.image, source.image_size) == ("cat", tmp_path / "src.jpg", (100, 200))
    np.testing.assert_allclose(source.kps_px, [[20, 30], [150, 80], [7.25, 9]])
    assert one.visible.tolist() == [True, True, False]
    np.testing.assert_allclose(one.kps_px, [[50, 60], [152, 82], [0, 0]])
    assert two.visible.tolist() == [True, False, False]  # the others have no match
    annotation = json.loads(path.read_text())["annotations"][2]
    assert annotation["keypoint_scores"] == [0.9, 0.4, 0.4]
    assert (annotation["score"], annotation["num_keypoints"], annotation["pinned"]) == (0.9, 1, [False, False, False])


def test_round_trip(annotated: Session):
    points, pins = [(p.name, p.xy) for p in annotated.points.values()], dict(annotated.pins)
    data = json.loads(json.dumps(to_coco(annotated, "cat")))
    annotated.add_point(XY(1, 1), "other")
    assert from_coco(data, annotated, "file.json") == []
    assert [(p.name, p.xy) for p in annotated.points.values()] == points
    assert annotated.pins == pins
    assert annotated.add_point(XY(1, 1)).id == 4


def test_files_of_other_tools_are_all_pinned(annotated: Session):
    data = to_coco(annotated, "cat")
    for entry in data["annotations"]:
        del entry["pinned"]
    from_coco(data, annotated, "file.json")
    assert annotated.pins == {(1, "one"): XY(50, 60), (2, "one"): XY(152, 82), (1, "two"): XY(56, 66)}


def test_warnings(annotated: Session):
    data = to_coco(annotated, "cat")
    data["images"][1]["file_name"] = "folder/elsewhere.jpg"
    data["annotations"][0]["keypoints"][5] = 0
    data["annotations"].append({**data["annotations"][2], "id": 9})
    warnings = from_coco(data, annotated, "file.json")
    assert [p.name for p in annotated.points.values()] == ["nose", "tail"]
    assert "Not among the photos here: elsewhere.jpg" in warnings[0]
    assert "src.jpg does not show them: left ear" in warnings[1]
    assert "1 further object(s)" in warnings[2]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: d.pop("images"), "not a COCO-keypoint file"),
        (lambda d: d["images"][0].update(file_name="x.jpg"), "no keypoints for the source photo, src.jpg"),
        (lambda d: d["images"][0].update(width=20, height=20), "no keypoints for the source|has 20 × 20 pixels"),
        (lambda d: d["images"][1].update(width=400), "one.jpg has 400 × 100 pixels there, but 200 × 100 here"),
        (lambda d: d["annotations"][1].update(pinned=[True]), "'pinned' of annotation 2"),
        (lambda d: d["annotations"][0].update(keypoints=[1, 2]), "not a list of x, y, v"),
        (lambda d: d["annotations"][0].update(keypoints=[10**400, 2, 2] * 3), "malformed"),
        (lambda d: d["categories"][0].update(keypoints=["a", "a", "b"]), "Another point is called “a”"),
        (lambda d: d["annotations"].__setitem__(0, 7), "malformed"),
    ],
)
def test_an_unusable_file_changes_nothing(annotated: Session, spoil: Any, message: str):
    data = json.loads(json.dumps(to_coco(annotated, "cat")))
    spoil(data)
    points, pins = dict(annotated.points), dict(annotated.pins)
    with pytest.raises(InputError, match=message):
        from_coco(data, annotated, "file.json")
    assert (annotated.points, annotated.pins) == (points, pins)


def test_nothing_to_export():
    with pytest.raises(InputError, match="no point to export"):
        to_coco(Session(), "cat")

"""Any project → COCO → a fresh project: the same marks; any damage to a file is one sentence."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from helpers.annotation_project import SIZE, mark, open_project, photo_id, predict, snapshot
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from transformatcher.annotation import edits
from transformatcher.annotation.formats.coco_import import import_coco
from transformatcher.annotation.formats.export import export_project
from transformatcher.annotation.project import Project
from transformatcher.annotation.scan import scan_photos
from transformatcher.data.coco_keypoints import ROUNDING, box_around
from transformatcher.errors import InputError

PHOTOS = ("1.png", "sub/1.png", "sub/2.jpg")
NAMES = ["left wing", "right wing", "beak"]
H, W = SIZE

x, y = (st.floats(0, side, allow_nan=False).map(lambda v: round(v, 2)) for side in (W, H))
marks = st.one_of(st.none(), st.just((0, None)), st.tuples(st.sampled_from([1, 2]), st.tuples(x, y)))
boxes = st.one_of(
    st.none(),
    st.tuples(st.integers(0, 50), st.integers(0, 30), st.integers(55, W), st.integers(35, H)).map(
        lambda box: tuple(map(float, box))
    ),
)
objects = st.fixed_dictionaries(
    {
        "category": st.sampled_from(["bird", "plane"]),
        "box": boxes,
        "marks": st.lists(marks, min_size=3, max_size=3),
        "predicted": st.lists(st.one_of(st.none(), st.tuples(x, y, st.floats(0.5, 1))), min_size=3, max_size=3),
    }
)
photos = st.fixed_dictionaries({"objects": st.lists(objects, max_size=3), "reviewed": st.booleans()})
projects = st.fixed_dictionaries(dict.fromkeys(PHOTOS, photos))


def build(project: Project, content: dict[str, Any]) -> None:
    categories = {name: edits.add_category(project, name, NAMES, [(0, 2)]) for name in ("bird", "plane")}
    for path, photo in content.items():
        number = photo_id(project, path)
        for item in photo["objects"]:
            instance = edits.add_instance(project, number, categories[item["category"]].id, item["box"])
            mark(project, instance, {k: m for k, m in zip(NAMES, item["marks"], strict=True) if m is not None})
            predict(project, instance, {k: p for k, p in zip(NAMES, item["predicted"], strict=True) if p is not None})
        if photo["reviewed"]:
            edits.accept(project, number) if photo["objects"] else edits.skip(project, number)


def is_object(row: list[Any]) -> bool:
    return row[1] is not None or any(visibility for visibility, _ in row[3].values())


def has_ambiguous_box(item: dict[str, Any], *, predictions: bool) -> bool:
    """Whether a box looks like one that exports draw around points, which is no box of the object."""
    guesses = item["predicted"] if predictions else [None] * len(NAMES)
    points = [
        m[1] if m is not None else p[:2] if p is not None else None for m, p in zip(item["marks"], guesses, strict=True)
    ]
    there = np.array([point for point in points if point is not None], dtype=np.float64)
    if item["box"] is None or not len(there):
        return False
    x, y, w, h = box_around(there, SIZE)
    return bool(np.allclose(item["box"], (x, y, x + w, y + h), rtol=0, atol=ROUNDING))


def expected(before: dict[str, Any]) -> dict[str, Any]:
    """What a file can hold of a project: no object of which nothing is known but that it is not there."""
    after = {}
    for path, (skipped, *rows) in before.items():
        kept = [row for row in rows if is_object(row)]
        reviewed = skipped or (bool(rows) and all(row[2] for row in rows))
        after[path] = [reviewed and not kept, *kept]
    return after


def copied(before: dict[str, Any], folder: Path) -> dict[str, Any]:
    with Project(folder, folder.with_name("fresh.sqlite")) as fresh:
        scan_photos(fresh)
        assert import_coco(fresh, folder.with_name("out.json")).skipped == []
        state = snapshot(fresh)
        fresh.undo()
        assert snapshot(fresh) == {path: [False] for path in before}
    return state


def two_in_one_box(*, reviewed: bool, **second: list[Any]) -> dict[str, Any]:
    """A photo with two objects in the same box, of which the second alone has a keypoint."""
    bare = {"category": "plane", "box": (0.0, 0.0, 55.0, 35.0), "marks": 3 * [None], "predicted": 3 * [None]}
    empty = {"objects": [], "reviewed": False}
    return {"1.png": empty, "sub/1.png": empty, "sub/2.jpg": {"objects": [bare, bare | second], "reviewed": reviewed}}


@example(two_in_one_box(reviewed=False, marks=[None, None, (1, (0.0, 0.0))]), "omit")
@example(two_in_one_box(reviewed=True, predicted=[None, None, (0.0, 0.0, 1.0)]), "omit")
@given(projects, st.sampled_from(["omit", "include"]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_export_then_import_keeps_all_marks(content: dict[str, Any], predictions: Any):
    items = [item for photo in content.values() for item in photo["objects"]]
    assume(not any(has_ambiguous_box(item, predictions=included) for item in items for included in (True, False)))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "photos"
        with open_project(folder, PHOTOS) as project:
            build(project, content)
            before = snapshot(project)
            assume(any(len(rows) > 1 or rows[0] for rows in expected(before).values()))
            export_project(project, "coco", folder.with_name("out.json"), predictions=predictions)
            revision = len(project.database.rows("SELECT * FROM change"))
            import_coco(project, folder.with_name("out.json"))
            assert snapshot(project) == before
            assert len(project.database.rows("SELECT * FROM change")) == revision  # it has changed nothing
        found, wanted = copied(before, folder), expected(before)
        if predictions == "include":  # objects with nothing but predictions come along
            found = {path: [rows[0], *filter(is_object, rows[1:])] for path, rows in found.items()}
        assert found == wanted


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 200) | st.floats() | st.text(max_size=4),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=4), children, max_size=3),
    max_leaves=6,
)


def paths_in(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(inner for key, value in items for inner in paths_in(value, (*path, key)))]


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_damaged_file_is_imported_or_refused_with_a_sentence(data: st.DataObject):
    points = [10, 20, 2, 30, 40, 1, 0, 0, 0]
    note = {
        "id": 1, "image_id": 1, "category_id": 1, "keypoints": points, "bbox": [1, 2, 30, 40], "pinned": [True] * 3,
        "predicted_keypoints": points, "keypoint_scores": [0.5, 0.5, 0.1], "reviewed": True, "score": 0.4,
    }  # fmt: skip
    content: Any = {
        "images": [{"id": 1, "file_name": "1.png", "width": W, "height": H, "reviewed": True}],
        "annotations": [note, note | {"id": 2, "predicted": True}],
        "categories": [{"id": 1, "name": "bird", "keypoints": NAMES, "skeleton": [[1, 3]]}],
    }
    content = json.loads(json.dumps(content))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(paths_in(content)[1:]))
        place = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = data.draw(values)
    with tempfile.TemporaryDirectory() as temporary, open_project(Path(temporary) / "photos", ("1.png",)) as project:
        try:
            import_coco(project, content, name="a.json")
        except InputError as error:
            message = str(error)
        else:
            message = "a.json"
        assert "a.json" in message
        for instance in project.instances():
            for found in (*instance.marks.values(), *instance.predictions.values()):
                assert found.xy is None or (0 <= found.xy[0] <= W + ROUNDING and 0 <= found.xy[1] <= H + ROUNDING)

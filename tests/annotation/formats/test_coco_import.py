"""COCO files of our own and of others become marks."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.annotation_project import SIZE, bicycles, mark, open_project, photo_id, predict, snapshot

from transformatcher.annotation import edits
from transformatcher.annotation.formats.coco_import import import_coco
from transformatcher.annotation.formats.export import export_project
from transformatcher.annotation.project import Project
from transformatcher.annotation.scan import scan_photos
from transformatcher.errors import InputError

FISH = {"id": 1, "name": "fish", "keypoints": ["left eye", "right eye", "tail"], "skeleton": [[1, 3], [2, 3]]}


def coco(*notes: dict[str, Any], categories: Any = (FISH,), **image: Any) -> dict[str, Any]:
    """A file with one image, 1.png."""
    images = [{"id": 1, "file_name": "1.png", "width": SIZE[1], "height": SIZE[0]} | image]
    numbered = [{"id": i, "image_id": 1, "category_id": 1} | note for i, note in enumerate(notes, 1)]
    return {"images": images, "annotations": numbered, "categories": list(categories)}


@pytest.fixture
def project(tmp_path: Path):
    with open_project(tmp_path / "photos", ("1.png",)) as project:
        yield project


def marks_of(project: Project) -> list[dict[str, tuple[int, Any]]]:
    return [row[3] for row in snapshot(project)["1.png"][1:]]


@pytest.mark.parametrize("predictions", ["omit", "include"])
def test_export_and_import_into_a_fresh_project(tmp_path: Path, predictions: Any):
    with bicycles(tmp_path / "photos") as project:
        export_project(project, "coco", tmp_path / "out.json", predictions=predictions)
        before = snapshot(project)
        categories = project.categories()
    before["4.png"] = [False] + ([["bird", None, False, {}]] if predictions == "include" else [])
    with Project(tmp_path / "photos", tmp_path / "fresh.sqlite") as fresh:
        scan_photos(fresh)
        summary = import_coco(fresh, tmp_path / "out.json")
        assert snapshot(fresh) == before
        assert summary.skipped == []
        assert summary.images == (5 if predictions == "include" else 4)
        assert summary.predictions == (3 if predictions == "include" else 0)
        found = fresh.categories()
        for old, new in zip(categories, found, strict=True):
            assert (old.name, old.names) == (new.name, new.names)
            assert [k.twin and old.position(k.twin) for k in old.keypoints] == [
                k.twin and new.position(k.twin) for k in new.keypoints
            ]
            assert [(old.position(a), old.position(b)) for a, b in old.skeleton] == [
                (new.position(a), new.position(b)) for a, b in new.skeleton
            ]
        sources = {m.source for instance in fresh.instances() for m in instance.marks.values()}
        assert sources == {"import: out.json"}


@pytest.mark.parametrize("predictions", ["omit", "include", "only"])
def test_import_of_an_own_export_changes_nothing(tmp_path: Path, predictions: Any):
    with bicycles(tmp_path / "photos") as project:
        export_project(project, "coco", tmp_path / "out.json", predictions=predictions)
        tables = ("category", "keypoint", "edge", "instance", "mark", "prediction", "action", "change")
        before = [[tuple(row) for row in project.database.rows(f"SELECT * FROM {table}")] for table in tables]
        summary = import_coco(project, tmp_path / "out.json")
        after = [[tuple(row) for row in project.database.rows(f"SELECT * FROM {table}")] for table in tables]
        assert after == before
        assert summary.skipped == []
        assert summary.objects == {"omit": 4, "include": 5, "only": 2}[predictions]


def test_undo_takes_all_of_it_back(tmp_path: Path):
    with bicycles(tmp_path / "photos") as project:
        export_project(project, "coco", tmp_path / "out.json", predictions="include")
    with open_project(tmp_path / "other", ("a/1.png", "a/1.jpg", "3.png", "4.png")) as other:
        before = snapshot(other)
        assert import_coco(other, tmp_path / "out.json").images == 4
        after = snapshot(other)
        name, photos = other.undo()
        assert name == "import out.json"
        assert len(photos) == 4
        assert snapshot(other) == before
        assert other.categories() == []
        assert other.database.rows("SELECT * FROM prediction") == []
        other.redo()
        assert snapshot(other) == after


def test_what_visibilities_mean(project: Project):
    import_coco(project, coco({"keypoints": [10, 20, 2, 30, 40.5, 1, 0, 0, 0]}), name="a.json")
    (instance,) = project.instances()
    assert marks_of(project) == [
        {"left eye": (2, (10, 20)), "right eye": (1, (30, 40.5))}
    ]  # nothing is known of the tail
    assert not instance.reviewed
    assert {m.source for m in instance.marks.values()} == {"import: a.json"}
    left, right, tail = project.categories()[0].keypoints
    assert (left.twin, right.twin, tail.twin) == (right.id, left.id, None)


def test_an_object_with_all_keypoints_is_reviewed(project: Project):
    import_coco(project, coco({"keypoints": [10, 20, 2, 30, 40, 1, 5, 5, 2]}))
    assert project.instances()[0].reviewed
    assert project.counts() == {"reviewed": 1}


def test_not_there_where_the_file_says_that_it_is_complete(project: Project):
    import_coco(project, coco({"keypoints": [10, 20, 2, 0, 0, 0, 0, 0, 0], "reviewed": True}))
    assert marks_of(project) == [{"left eye": (2, (10, 20)), "right eye": (0, None), "tail": (0, None)}]
    assert project.instances()[0].reviewed


def test_boxes_are_taken_and_those_around_the_points_are_not(project: Project):
    notes = (
        {"keypoints": [10, 20, 2, 30, 40, 2, 0, 0, 0], "bbox": [8, 18, 24, 24]},  # as exports draw it
        {"keypoints": [60, 20, 2, 70, 30, 2, 0, 0, 0], "bbox": [55, 10, 500, 40]},
        {"bbox": [0, 60, 20, 20]},
        {"keypoints": [90, 70, 2, 0, 0, 0, 0, 0, 0], "bbox": [90, 70, 0, 0]},
    )
    summary = import_coco(project, coco(*notes))
    assert [instance.box for instance in project.instances()] == [None, (55, 10, 120, 50), (0, 60, 20, 80), None]
    assert (summary.images, summary.objects, summary.keypoints) == (1, 4, 5)


def test_boxes_of_a_file_without_keypoints(project: Project):
    edits.add_category(project, "fish", FISH["keypoints"])
    plain = [{"id": 1, "name": "fish"}, {"id": 2, "name": "ship"}]
    notes = {"bbox": [10, 10, 50, 50]}, {"bbox": [0, 0, 10, 10], "category_id": 2}
    summary = import_coco(project, coco(*notes, categories=plain))
    assert [instance.box for instance in project.instances()] == [(10, 10, 60, 60)]
    assert summary.skipped == ["the category 'ship' has no keypoints; its 1 annotations are left out"]


def test_objects_are_updated(project: Project):
    box = {"bbox": [10, 10, 60, 60]}
    import_coco(project, coco({"keypoints": [20, 20, 2, 30, 40, 2, 0, 0, 0]} | box))
    import_coco(project, coco({"keypoints": [20, 20, 2, 31, 42, 1, 50, 50, 2]} | box))  # same box
    assert marks_of(project) == [{"left eye": (2, (20, 20)), "right eye": (1, (31, 42)), "tail": (2, (50, 50))}]
    import_coco(
        project, coco({"keypoints": [20.4, 20, 2, 31, 42, 1, 50, 55, 2], "bbox": [5, 5, 80, 70]})
    )  # most points
    assert marks_of(project) == [{"left eye": (2, (20, 20)), "right eye": (1, (31, 42)), "tail": (2, (50, 55))}]
    (instance,) = project.instances()
    assert instance.box == (5, 5, 85, 75)
    import_coco(project, coco({"keypoints": [80, 20, 2, 90, 40, 2, 0, 0, 0]}))  # another one
    assert len(project.instances()) == 2


def test_the_object_that_the_program_has_added_is_the_one(project: Project):
    fish = edits.add_category(project, "fish", FISH["keypoints"])
    guess = edits.add_instance(project, photo_id(project, "1.png"), fish.id)
    predict(project, guess, {"tail": (100, 70, 0.9)})
    import_coco(project, coco({"keypoints": [20, 20, 2, 30, 40, 2, 0, 0, 0], "bbox": [10, 10, 60, 60]}))
    (instance,) = project.instances()
    assert (instance.id, instance.box) == (guess.id, (10, 10, 70, 70))
    assert not instance.predictions  # they were found in another box


def test_marks_of_a_person_that_the_file_does_not_know_are_kept(project: Project):
    fish = edits.add_category(project, "fish", FISH["keypoints"])
    item = edits.add_instance(project, photo_id(project, "1.png"), fish.id)
    mark(project, item, {"left eye": (2, (20, 20)), "tail": (0, None)})
    import_coco(project, coco({"keypoints": [20, 20, 2, 30, 40, 2, 0, 0, 0]}))
    assert marks_of(project) == [{"left eye": (2, (20, 20)), "right eye": (2, (30, 40)), "tail": (0, None)}]


def test_points_outside_are_skipped_and_named(project: Project):
    summary = import_coco(project, coco({"keypoints": [10, 20, 2, 130, 40, 2, 5, 5, 2]}), name="a.json")
    assert marks_of(project) == [{"left eye": (2, (10, 20)), "tail": (2, (5, 5))}]
    assert summary.skipped == [
        "1.png: 'right eye' of annotation 1 at (130, 40) lies outside the photo of 120 × 80 pixels"
    ]
    assert not project.instances()[0].reviewed


def test_photos_that_are_not_there_are_named(project: Project):
    data = coco({"keypoints": [10, 20, 2, 3, 40, 2, 5, 5, 2]})
    data["images"].append({"id": 2, "file_name": "gone.png"})
    assert import_coco(project, data).skipped == ["gone.png: this photo is not in the folder"]


def test_a_photo_of_another_size_is_named(project: Project):
    summary = import_coco(project, coco({"keypoints": [10, 20, 2, 3, 40, 2, 5, 5, 2]}, width=1200, height=800))
    assert summary.skipped == ["1.png: annotated at 1200 × 800 pixels, but the photo has 120 × 80"]
    assert project.instances() == []


def test_none_of_the_photos(project: Project):
    with pytest.raises(InputError, match=r"a\.json: none of its 1 photos is in .*photos, such as 'x\.png'"):
        import_coco(project, coco(file_name="x.png"), name="a.json")
    assert project.categories() == []


@pytest.mark.parametrize("name", ["1.png", "./1.png", "train2017/1.png", "C:\\data\\1.png"])
def test_photos_are_found_by_path_or_unique_name(project: Project, name: str):
    assert import_coco(project, coco({"keypoints": [1, 2, 2, 3, 4, 2, 5, 5, 2]}, file_name=name)).images == 1


def test_photos_with_one_name_are_told_apart_by_their_folders(tmp_path: Path):
    with open_project(tmp_path / "photos", ("a/1.png", "b/1.png", "b/images/1.png")) as project:
        data = coco({"keypoints": [1, 2, 2, 3, 4, 2, 5, 5, 2]})
        with pytest.raises(InputError, match="none of its 1 photos"):
            import_coco(project, data)
        import_coco(project, data, images_root=tmp_path / "photos" / "b")
        assert [len(rows) - 1 for rows in snapshot(project).values()] == [0, 1, 0]
        # A file says itself, as propagate writes it, what its names are relative to.
        path = tmp_path / "out" / "coco.json"
        path.parent.mkdir()
        path.write_text(json.dumps(data | {"info": {"images_root": "../photos/b/images"}}))
        import_coco(project, path)
        assert [len(rows) - 1 for rows in snapshot(project).values()] == [0, 1, 1]
        with pytest.raises(InputError, match="none of its 1 photos"):
            import_coco(project, data, images_root=tmp_path)


def test_a_category_with_other_keypoints(project: Project):
    edits.add_category(project, "fish", ["mouth", "fin"])
    expected = (
        r"a\.json: its category 'fish' has the keypoints left eye, right eye, tail, "
        "that of the project mouth, fin; rename"
    )
    with pytest.raises(InputError, match=expected):
        import_coco(project, coco({"keypoints": [1, 2, 2, 3, 4, 2, 5, 5, 2]}), name="a.json")
    assert project.instances() == []


def test_keypoints_in_another_order_are_the_same(project: Project):
    edits.add_category(project, "fish", ["tail", "left eye", "right eye"])
    import_coco(project, coco({"keypoints": [1, 2, 2, 3, 4, 2, 5, 5, 2]}))
    assert marks_of(project) == [{"left eye": (2, (1, 2)), "right eye": (2, (3, 4)), "tail": (2, (5, 5))}]


def test_a_correction_in_another_tool_is_a_mark(project: Project):
    """Beside one that a person had marked: a prediction that was left, one that was moved, and a new point."""
    category = {"id": 1, "name": "fish", "keypoints": ["a", "b", "c", "d"]}
    before = [10, 10, 2, 20, 20, 2, 30, 30, 2, 0, 0, 0]
    now = [10, 10, 2, 20, 20, 2, 35, 30, 2, 40, 40, 2]
    note = {"keypoints": now, "predicted_keypoints": before, "pinned": [True, False, False, False],
            "keypoint_scores": [1, 0.8, 0.7, 0.1]}  # fmt: skip
    summary = import_coco(project, coco(note, categories=[category]))
    assert marks_of(project) == [{"a": (2, (10, 10)), "c": (2, (35, 30)), "d": (2, (40, 40))}]
    assert (summary.keypoints, summary.predictions) == (3, 1)
    (instance,) = project.instances()
    ((_, found),) = instance.predictions.items()
    assert (found.xy, found.confidence) == ((20, 20), 0.8)


def test_predictions_are_never_marks(project: Project):
    points = [10, 20, 2, 30, 40, 2, 0, 0, 0]
    note = {"keypoints": points, "predicted_keypoints": points, "predicted": True, "score": 0.6, "mirrored": True}
    import_coco(project, coco(note))
    (instance,) = project.instances()
    assert not instance.marks
    assert not instance.reviewed
    assert [(p.xy, p.confidence, p.mirrored) for p in instance.predictions.values()] == [
        ((10, 20), 0.6, True), ((30, 40), 0.6, True),
    ]  # fmt: skip
    assert project.counts() == {"predicted": 1}


def test_a_prediction_does_not_open_a_skipped_photo(project: Project):
    edits.skip(project, photo_id(project, "1.png"))
    points = [10, 20, 2, 30, 40, 2, 0, 0, 0]
    import_coco(project, coco({"keypoints": points, "predicted": True}))
    assert project.photos()[0].skipped
    import_coco(project, coco({"keypoints": [12, 20, 2, 30, 40, 2, 0, 0, 0]}))
    assert not project.photos()[0].skipped


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"keypoints": [1, 2, 2]}, r"annotation 1: 1 keypoints, its category 'fish' names 3"),
        ({"keypoints": [float("nan")] * 9}, r"annotation 1: a keypoint is NaN or infinite"),
        ({"image_id": 7}, r"annotation 1: no image has the id 7"),
        ({"category_id": 7}, r"annotation 1: no category has the id 7"),
        ({"keypoints": "abc"}, r"annotation 1: 'keypoints' is not a list"),
    ],
)
def test_malformed_annotations_are_named_and_the_others_taken(project: Project, change: dict[str, Any], sentence: str):
    good = {"keypoints": [1, 2, 2, 3, 4, 2, 5, 5, 2]}
    summary = import_coco(project, coco(good | change, good))
    assert len(summary.skipped) == 1
    assert sentence in summary.skipped[0]
    assert summary.objects == 1


def test_other_malformed_entries_are_named(project: Project):
    good = {"keypoints": [1, 2, 2, 3, 4, 2, 5, 5, 2]}
    data = coco(good, good | {"id": 1}, categories=[FISH | {"skeleton": [[1, 4], [1, 2], "x"]}, "rubbish"])
    data["images"].append({"id": 9})
    summary = import_coco(project, data, name="a.json")
    assert sorted(summary.skipped) == [
        "a.json, annotation 1: its id occurs twice in the file",
        "a.json: the entry of id 9 in 'images' has no string 'file_name'",
        "the category 'fish': [1, 4] is no edge between two of 3 keypoints",
        "the category 'fish': x is no edge between two of 3 keypoints",
    ]
    (category,) = project.categories()
    assert len(category.skeleton) == 1


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], "not a COCO-keypoint file, it has no list 'images'"),
        (coco(categories=[FISH, FISH | {"id": 2}]), "two categories are called 'fish'"),
        (
            coco(categories=[FISH | {"keypoints": ["a", 1]}]),
            "'keypoints' of the category 'fish' is not a list of names",
        ),
        (coco(categories=[FISH | {"keypoints": ["a", "a"]}]), "two keypoints are called 'a'"),
        (coco(categories=[FISH | {"name": "\n"}]), "is not a name"),
    ],
)
def test_unusable_files(project: Project, data: Any, sentence: str):
    with pytest.raises(InputError, match=rf"a\.json.*{sentence}"):
        import_coco(project, data, name="a.json")
    assert project.categories() == []
    assert project.journal.names() == (None, None)


def test_a_skeleton_that_is_no_list(project: Project):
    summary = import_coco(project, coco(categories=[FISH | {"skeleton": 1}]))
    assert summary.skipped == ["the category 'fish': 1 is no edge between two of 3 keypoints"]


def test_unreadable_photo_is_named(tmp_path: Path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.png").write_bytes(b"not a photo")
    with Project(tmp_path / "photos") as project:
        scan_photos(project)
        (problem,) = import_coco(project, coco({"keypoints": [1, 2, 2, 3, 4, 2, 5, 5, 2]})).skipped
    assert "1.png" in problem


IMPORT_MANY = """
import sys, time
from pathlib import Path
from transformatcher.annotation.formats.coco_import import import_coco
from transformatcher.annotation.project import Project

n, k = 5000, 20
data = {
    "images": [{"id": i, "file_name": f"many/{i}.jpg", "width": 120, "height": 80} for i in range(n)],
    "annotations": [
        {"id": i, "image_id": i, "category_id": 1, "bbox": [0, 0, 120, 80],
         "keypoints": [v for j in range(k) for v in (j * 5 + i % 7, j + 0.25, 2)]}
        for i in range(n)
    ],
    "categories": [{"id": 1, "name": "car", "keypoints": [f"p{j}" for j in range(k)], "skeleton": []}],
}
with Project(Path(sys.argv[1])) as project:
    with project.changing():
        project.database.run_many(
            "INSERT INTO photo (path, bytes, mtime_ns, width, height) VALUES (?, 1, 1, 120, 80)",
            [(f"many/{i}.jpg",) for i in range(n)],
        )
    for _ in range(2):
        start = time.process_time()
        summary = import_coco(project, data)
        print(summary.images, summary.objects, summary.keypoints, time.process_time() - start)
    print(len(project.instances()))
"""


def test_five_thousand_photos_in_a_few_seconds(tmp_path: Path):
    """In a process of its own, without the checks of types that tests have."""
    command = [sys.executable, "-c", IMPORT_MANY, str(tmp_path)]
    first, again, count = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for line in (first, again):
        *numbers, seconds = line.split()
        assert numbers == ["5000", "5000", "100000"]
        assert float(seconds) < 20  # 5 s on a busy core of a laptop
    assert count == "5000"

"""What a COCO file of a project holds, read back with pycocotools and with our own reader."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.annotation_project import bicycles, photo_id
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from transformatcher.annotation import edits
from transformatcher.annotation.formats.export import export_project
from transformatcher.data.coco_keypoints import is_prediction, load_coco_objects


def export(tmp_path: Path, predictions: Any = "omit") -> dict[str, Any]:
    with bicycles(tmp_path / "photos") as project:
        export_project(project, "coco", tmp_path / "out.json", predictions=predictions)
    return json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))


def by_file(data: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    names = {image["id"]: image["file_name"] for image in data["images"]}
    notes: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    for note in data["annotations"]:
        notes[names[note["image_id"]]].append(note)
    return notes


def test_marks_alone(tmp_path: Path):
    data = export(tmp_path)
    notes = by_file(data)
    assert {name: len(found) for name, found in notes.items()} == {
        "a/1.png": 1,
        "a/1.jpg": 1,
        "images/2.png": 2,
        "3.png": 0,
    }
    (whole,), (part,) = notes["a/1.png"], notes["a/1.jpg"]
    assert whole["keypoints"] == [20.5, 30, 2, 40, 30.25, 1, 0, 0, 0]
    assert (whole["bbox"], whole["area"], whole["num_keypoints"], whole["reviewed"]) == (
        [10, 10, 60, 50],
        3000,
        2,
        True,
    )
    assert whole["pinned"] == [True, True, True]  # also the one that is not there
    assert part["keypoints"] == [0, 0, 0, 0, 0, 0, 50, 20, 2]
    assert part["pinned"] == [False, False, True]
    assert part["reviewed"] is False
    assert not any(is_prediction(note) for note in data["annotations"])
    assert {image["file_name"]: image["reviewed"] for image in data["images"]} == {
        "3.png": True, "a/1.jpg": False, "a/1.png": True, "images/2.png": False,
    }  # fmt: skip


def test_skeletons_count_from_one(tmp_path: Path):
    bicycle, bird = export(tmp_path)["categories"]
    assert bicycle["keypoints"] == ["left pedal", "right pedal", "saddle"]
    assert bicycle["skeleton"] == [[1, 3], [2, 3]]
    assert (bird["name"], bird["skeleton"]) == ("bird", [[1, 2]])


def test_predictions_beside_marks_are_told_apart(tmp_path: Path):
    notes = by_file(export(tmp_path, "include"))
    (part,), (guess,) = notes["a/1.jpg"], notes["4.png"]
    assert part["keypoints"] == [30, 60, 2, 0, 0, 0, 50, 20, 2]  # 0.2 is too unsure
    assert part["pinned"] == [False, False, True]
    assert part["keypoint_scores"] == [0.9, 0.2, 1.0]
    assert not is_prediction(part)
    assert guess["keypoints"] == guess["predicted_keypoints"] == [12.5, 70, 2, 99, 5, 2]
    assert guess["predicted"] is True
    assert guess["score"] == 0.7
    assert is_prediction(guess)


def test_references_are_marks_alone(tmp_path: Path):
    """What propagate and training take from a file with predictions are the points that a person marked."""
    export(tmp_path, "include")
    objects = load_coco_objects(tmp_path / "out.json", tmp_path / "photos", predictions=False)
    assert {item.image.name: int(item.visible.sum()) for item in objects if item.category == "bicycle"} == {
        "1.png": 1, "1.jpg": 1, "2.png": 1,
    }  # fmt: skip


def test_predictions_alone(tmp_path: Path):
    data = export(tmp_path, "only")
    notes = by_file(data)
    assert notes.keys() == {"a/1.jpg", "4.png"}
    assert all(is_prediction(note) for note in data["annotations"])
    assert notes["a/1.jpg"][0]["keypoints"] == [30, 60, 2, 0, 0, 0, 0, 0, 0]


def test_corrected_elsewhere_is_no_prediction(tmp_path: Path):
    (guess,) = by_file(export(tmp_path, "include"))["4.png"]
    assert not is_prediction({**guess, "keypoints": [15, 70, 2, 99, 5, 2]})


def test_the_file_says_where_the_photos_are(tmp_path: Path):
    with bicycles(tmp_path / "photos") as project:
        export_project(project, "coco", tmp_path / "deep" / "er" / "out.json")
    info = json.loads((tmp_path / "deep" / "er" / "out.json").read_text(encoding="utf-8"))["info"]
    assert info["images_root"] == "../../photos"


def test_photo_without_the_object_is_an_image_without_annotations(tmp_path: Path):
    with bicycles(tmp_path / "photos") as project:
        number = photo_id(project, "5.png")
        edits.add_instance(project, number, project.categories()[0].id)
        edits.accept(project, number)  # nothing predicted, nothing marked: not there
        export_project(project, "coco", tmp_path / "out.json")
    assert by_file(json.loads((tmp_path / "out.json").read_text()))["5.png"] == []


def test_failed_photos_with_marks_are_named(tmp_path: Path):
    with bicycles(tmp_path / "photos") as project:
        with project.changing():
            project.database.run("UPDATE photo SET problem = 'cannot be decoded' WHERE path = 'a/1.png'")
        summary = export_project(project, "coco", tmp_path / "out.json")
    assert summary.notes == ["a/1.png: cannot be decoded; its marks are left out"]
    assert (summary.images, summary.objects, summary.keypoints, summary.predicted) == (3, 3, 4, 0)


@pytest.mark.parametrize("predictions", ["omit", "include", "only"])
def test_pycocotools_reads_it(tmp_path: Path, predictions: str):
    data = export(tmp_path, predictions)
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(tmp_path / "out.json"))
        assert len(coco.getAnnIds()) == len(data["annotations"])
        assert len(coco.getImgIds()) == len(data["images"])
        (bicycle,) = coco.loadCats(coco.getCatIds(catNms=["bicycle"]))
        notes = coco.loadAnns(coco.getAnnIds(catIds=[bicycle["id"]]))
        assert all(len(note["keypoints"]) == 3 * len(bicycle["keypoints"]) for note in notes)
        # its own evaluation: the annotations as results are perfect
        results = coco.loadRes([note | {"score": 1.0} for note in data["annotations"]])
        scores = COCOeval(coco, results, "keypoints")
        scores.params.catIds = [bicycle["id"]]
        scores.params.kpt_oks_sigmas = scores.params.kpt_oks_sigmas[: len(bicycle["keypoints"])]
        scores.evaluate()
    ious = [value for table in scores.ious.values() if len(table) for value in table.max(axis=0)]
    assert len(ious) == sum(note["num_keypoints"] > 0 for note in notes)
    assert min(ious) == 1

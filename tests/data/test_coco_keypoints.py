"""COCO-keypoint files → annotated objects."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import coco_file

from transformatcher.data.coco_keypoints import find_coco, is_prediction, load_coco, load_coco_objects
from transformatcher.errors import InputError


def test_objects(coco_root: Path):
    objects = load_coco_objects(*find_coco(coco_root, "trn"))
    assert [item.category for item in objects] == ["cat", "cat", "cat", "dog"]
    assert objects[0].bbox_px.tolist() == [1, 2, 31, 42]
    assert objects[1].visible.tolist() == [True, True, True, False]
    assert load_coco_objects(*find_coco(coco_root, "trn"), occluded=True)[1].visible.all()
    assert objects[0].kp_names == ("a", "b", "c", "d")


def test_keypoints_outside_are_not_visible(tmp_path: Path):
    note = {"id": 1, "image_id": 1, "category_id": 2, "bbox": [0, 0, 9, 9], "keypoints": [-3, 5, 2, 7, 8, 2]}
    coco_file(tmp_path, annotations=[note])
    assert load_coco_objects(*find_coco(tmp_path, "trn"))[0].visible.tolist() == [False, True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keypoints": [1, 2, 2]}, "annotation 9: 1 keypoints, its category 'dog' names 2"),
        ({"keypoints": [1, 2, 2, float("nan"), 1, 2]}, "annotation 9: a keypoint is NaN"),
        ({"image_id": "1"}, "no image has the id '1'"),
        ({"category_id": 5}, "no category has the id 5"),
        ({"bbox": [1, 2]}, "annotation 9: malformed"),
        ({"bbox": [1, 2, -3, 4]}, "is not x0 < x1"),
        ({"keypoints": None}, "'keypoints' is not a list of x, y, v"),
    ],
)
def test_malformed_annotation(tmp_path: Path, change, message):
    good = {"id": 9, "image_id": 1, "category_id": 2, "bbox": [0, 0, 9, 9], "keypoints": [1, 1, 2, 2, 2, 2]}
    path = coco_file(tmp_path, annotations=[good | change])
    with pytest.raises(InputError, match=message):
        load_coco_objects(path, tmp_path / "images")


@pytest.mark.parametrize("value", ["5", True, None, [5], {"a": 1}])
def test_values_are_numbers_and_not_what_could_become_one(tmp_path: Path, value):
    good = {"id": 1, "image_id": 1, "category_id": 2, "bbox": [0, 0, 9, 9], "keypoints": [3, 5, 2, 7, 8, 2]}
    for change, message in (
        ({"keypoints": [value, 5, 2, 7, 8, 2]}, "'keypoints' is not a list of numbers"),
        ({"keypoints": [3, 5, value, 7, 8, 2]}, "'keypoints' is not a list of numbers"),
        ({"bbox": [0, 0, value, 9]}, "'bbox' is not a list of numbers"),
    ):
        coco_file(tmp_path, annotations=[good | change])
        with pytest.raises(InputError, match=message):
            load_coco_objects(*find_coco(tmp_path, "trn"))
    coco_file(tmp_path, images=[{"id": 1, "file_name": "1.jpg", "width": value, "height": 60}], annotations=[good])
    with pytest.raises(InputError, match="'height and width' is not a list of numbers"):
        load_coco_objects(*find_coco(tmp_path, "trn"))


@pytest.mark.parametrize("name", ["../1.jpg", "a/../../1.jpg", "/etc/passwd", "..", ".", "", "a\0b.jpg"])
def test_images_stay_in_their_folder(tmp_path: Path, name):
    coco_file(tmp_path, images=[{"id": i, "file_name": name} for i in (1, 2, 3)])
    with pytest.raises(InputError, match=r"annotation 1: the image .* is not in .*images; names are relative to that"):
        load_coco_objects(*find_coco(tmp_path, "trn"))


def test_names_that_only_look_as_if_they_left_it(tmp_path: Path):
    names = ["deep/../1.jpg", "./2.jpg", str(tmp_path / "images" / "3.jpg")]
    coco_file(tmp_path, images=[{"id": i, "file_name": name} for i, name in enumerate(names, 1)])
    assert len(load_coco_objects(*find_coco(tmp_path, "trn"))) == 4


def test_ids_are_labels_and_must_differ(tmp_path: Path):
    note = {"id": "ann", "image_id": 1, "category_id": 2, "keypoints": [1, 1, 2, 2, 2, 2]}
    path = coco_file(tmp_path, annotations=[note, note])
    with pytest.raises(InputError, match="annotation ann: its id occurs twice"):
        load_coco_objects(path, tmp_path / "images")
    problems: list[str] = []
    path = coco_file(tmp_path, annotations=[note], images=[{"id": 1, "file_name": "1.jpg"}] * 2 + [{}])
    (item,) = load_coco_objects(path, tmp_path / "images", on_problem=problems.append)
    assert (item.id, item.bbox_px) == ("ann", None)
    assert ["id 1 occurs twice" in problems[0], "no usable id" in problems[1]] == [True, True]


def test_bad_files(tmp_path: Path):
    path = tmp_path / "annotations.json"
    with pytest.raises(InputError, match=r"neither annotations\.json nor"):
        find_coco(tmp_path, "val")
    path.write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        load_coco_objects(path, tmp_path)
    path.write_text('{"images": []}')
    with pytest.raises(InputError, match="it has no list 'annotations'"):
        load_coco_objects(path, tmp_path)


def test_official_layout(tmp_path: Path):
    coco_file(tmp_path)
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations.json").rename(tmp_path / "annotations" / "person_keypoints_val2017.json")
    (tmp_path / "images").rename(tmp_path / "val2017")
    annotations, images = find_coco(tmp_path, "val")
    assert (annotations.name, images.name) == ("person_keypoints_val2017.json", "val2017")


def test_a_split_by_its_usual_names(coco_root: Path):
    assert len(load_coco(coco_root, "train")) == len(load_coco(coco_root, "val")) == 4  # one file for all
    with pytest.raises(InputError, match="split 'tst' is none of"):
        load_coco(coco_root, "tst")


class TestPredictions:
    POINTS = (1, 1, 2, 20, 30, 2)

    @pytest.mark.parametrize(
        ("keys", "expected"),
        [
            ({}, False),
            ({"predicted": True}, True),
            ({"predicted": False, "keypoint_scores": [1, 1], "reference": 3}, False),  # accepted
            ({"predicted": True, "predicted_keypoints": [1.4, 0.6, 2, 20, 30.5, 2]}, True),  # rounded
            ({"predicted": True, "predicted_keypoints": [1, 1, 2, 20, 31, 2]}, False),  # moved
            ({"predicted": True, "predicted_keypoints": [1, 1, 2, 20, 30, 1]}, False),  # hidden
            ({"predicted": True, "predicted_keypoints": [1, 1, 2]}, False),  # a keypoint was added
            ({"predicted": True, "predicted_keypoints": ["x"]}, False),
            ({"keypoint_scores": [1, 1], "reference": 3}, True),  # of earlier versions
            ({"keypoint_scores": [1, 1]}, False),  # another program's
            ({"pinned": [False, False], "keypoint_scores": [1, 1]}, True),
            ({"pinned": [False, True], "keypoint_scores": [1, 1]}, False),
        ],
    )
    def test_which_annotations_they_are(self, keys: dict[str, Any], expected: bool):
        assert is_prediction({"id": 1, "keypoints": list(self.POINTS), **keys}) is expected

    def test_they_are_no_truth(self, tmp_path: Path):
        note = {"id": 1, "image_id": 1, "category_id": 2, "keypoints": list(self.POINTS)}
        notes = [note, {**note, "id": 2, "predicted": True}, {**note, "id": 3, "pinned": [True, False]}]
        path = coco_file(tmp_path, annotations=notes)
        assert [item.id for item in load_coco_objects(path, tmp_path)] == ["1", "2", "3"]
        true = load_coco(tmp_path)
        assert [item.id for item in true] == ["1", "3"]
        assert [item.visible.tolist() for item in true] == [[True, True], [True, False]]

    def test_the_folder_of_the_images_that_a_result_names(self, coco_root: Path, tmp_path: Path):
        data = json.loads((coco_root / "annotations.json").read_text())
        result = tmp_path / "results" / "all.json"
        result.parent.mkdir()
        result.write_text(json.dumps({"info": {"images_root": "../coco/images"}, **data}))
        assert all(item.image.is_file() for item in load_coco(result))

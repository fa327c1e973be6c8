"""A YOLO-pose dataset, read by hand and by Ultralytics itself."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from helpers.annotation_project import SIZE, bicycles, mark, open_project, photo_id

from transformatcher.annotation import edits
from transformatcher.annotation.formats.export import export_project
from transformatcher.annotation.formats.linked_photos import unique_names
from transformatcher.errors import InputError

H, W = SIZE


def export(tmp_path: Path, predictions: Any = "omit") -> Path:
    with bicycles(tmp_path / "photos") as project:
        export_project(project, "yolo", tmp_path / "yolo", predictions=predictions)
    return tmp_path / "yolo"


def test_names_that_no_two_share():
    wanted = ["a/1.png", "A/1.jpg", "a/1.b.png", "images/x.png", "dot./x.png", "line\nbreak.png", "a/1_2.png"]
    assert list(unique_names({name: name for name in wanted}, reserved=["images"]).values()) == [
        "a/1.png", "A/1_2.jpg", "a/1.b.png", "images_/x.png", "dot._/x.png", "line_break.png", "a/1_2_2.png",
    ]  # fmt: skip


def test_labels_are_parts_of_the_sides(tmp_path: Path):
    out = export(tmp_path)
    with (out / "photos.csv").open(newline="") as file:
        links = {row["photo"]: row["link"] for row in csv.DictReader(file)}
    assert links == {"3.png": "3.png", "a/1.jpg": "a/1.jpg", "a/1.png": "a/1_2.png", "images/2.png": "images_/2.png"}
    (line,) = (out / "labels" / "a" / "1_2.txt").read_text().splitlines()
    number, *box = map(float, line.split()[:5])
    points = np.array(line.split()[5:], dtype=float).reshape(-1, 3)
    assert number == 0
    assert np.allclose(box, [40 / W, 35 / H, 60 / W, 50 / H], atol=1e-6)
    assert np.allclose(points, [[20.5 / W, 30 / H, 2], [40 / W, 30.25 / H, 1], [0, 0, 0]], atol=1e-6)
    assert (out / "labels" / "3.txt").read_text() == ""  # nothing to see there
    bicycle, bird = (out / "labels" / "images_" / "2.txt").read_text().splitlines()
    assert (bicycle.split()[0], bird.split()[0]) == ("0", "1")
    assert bird.split()[-3:] == ["0", "0", "0"]  # padded to three keypoints
    for photo, link in links.items():
        assert (out / "images" / link).samefile(tmp_path / "photos" / photo)
        assert (out / "images" / link).is_symlink()


def test_the_dataset_file(tmp_path: Path):
    out = export(tmp_path)
    data = yaml.safe_load((out / "dataset.yaml").read_text())
    assert data["kpt_shape"] == [3, 3]
    assert data["names"] == {0: "bicycle", 1: "bird"}
    assert data["kpt_names"] == {0: ["left pedal", "right pedal", "saddle"], 1: ["beak", "tail", "-"]}
    assert "flip_idx" not in data  # the twins of a bicycle are not those of a bird
    train, val = ((out / f"{split}.txt").read_text().splitlines() for split in ("train", "val"))
    assert len(train) + len(val) == len({*train, *val}) == 4
    assert train
    assert val


def test_twins_become_flip_idx_and_losses_are_named(tmp_path: Path):
    with open_project(tmp_path / "photos", ("1.png",)) as project:
        with pytest.raises(InputError, match="YOLO-pose needs a category with keypoints, and this project has none"):
            export_project(project, "yolo", tmp_path / "yolo")
        cat = edits.add_category(project, 'a "cat": #1', ["nose", "left ear", "right ear"], [(0, 1)])
        item = edits.add_instance(project, photo_id(project, "1.png"), cat.id)
        mark(project, item, {"nose": (2, (120, 80))})  # in the corner
        summary = export_project(project, "yolo", tmp_path / "yolo")
    data = yaml.safe_load((tmp_path / "yolo" / "dataset.yaml").read_text())
    assert (data["flip_idx"], data["names"]) == ([0, 2, 1], {0: 'a "cat": #1'})
    assert summary.notes == ["YOLO-pose has no skeletons"]
    assert (tmp_path / "yolo" / "train.txt").read_text() == (tmp_path / "yolo" / "val.txt").read_text() != ""
    numbers = [float(word) for word in (tmp_path / "yolo" / "labels" / "1.txt").read_text().split()]
    assert max(numbers[1:7]) <= 1


@pytest.mark.parametrize("predictions", ["omit", "include", "only"])
def test_ultralytics_reads_it(tmp_path: Path, predictions: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))  # it writes settings when it is imported
    pytest.importorskip("ultralytics", reason="ultralytics is not installed; make formats")
    from ultralytics.data import YOLODataset
    from ultralytics.data.utils import check_det_dataset

    out = export(tmp_path, predictions)
    data = check_det_dataset(str(out / "dataset.yaml"), autodownload=False)
    found = {}
    for split in ("train", "val"):
        dataset = YOLODataset(img_path=data[split], data=data, task="pose", augment=False, imgsz=64)
        for label in dataset.get_labels():
            found[Path(label["im_file"]).relative_to(out / "images").as_posix()] = label
    assert len(found) == {"omit": 4, "include": 5, "only": 2}[predictions]
    if predictions == "only":
        return
    label = found["a/1_2.png"]
    assert label["shape"] == (H, W)
    assert label["cls"].tolist() == [[0]]
    assert np.allclose(label["bboxes"] * [W, H, W, H], [[40, 35, 60, 50]], atol=1e-3)
    assert np.allclose(label["keypoints"][0] * [W, H, 1], [[20.5, 30, 2], [40, 30.25, 1], [0, 0, 0]], atol=1e-3)
    assert len(found["3.png"]["cls"]) == 0
    assert sorted(found["images_/2.png"]["cls"].ravel()) == [0, 1]
    assert found["3.png"]["normalized"]

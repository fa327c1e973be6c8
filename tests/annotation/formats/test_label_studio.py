"""Tasks of Label Studio, read by hand and checked by its own SDK."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers.annotation_project import SIZE, bicycles

from transformatcher.annotation.formats.export import export_project

H, W = SIZE


def export(tmp_path: Path, predictions: Any) -> tuple[list[dict[str, Any]], str]:
    with bicycles(tmp_path / "photos") as project:
        summary = export_project(project, "label-studio", tmp_path / "out", predictions=predictions)
    assert "Label Studio has no skeletons" in summary.notes
    tasks = json.loads((tmp_path / "out" / "tasks.json").read_text(encoding="utf-8"))
    return tasks, (tmp_path / "out" / "config.xml").read_text(encoding="utf-8")


def by_photo(tasks: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {task["data"]["image"].removeprefix("/data/local-files/?d=photos/"): task for task in tasks}


def test_percentages_boxes_and_hidden_points(tmp_path: Path):
    tasks, _ = export(tmp_path, "omit")
    task = by_photo(tasks)["a/1.png"]
    (annotation,) = task["annotations"]
    box, left, right, hidden = annotation["result"]
    assert task["predictions"] == []
    assert box["type"] == "rectanglelabels"
    assert box["value"].pop("rectanglelabels") == ["bicycle"]
    assert box["value"] == pytest.approx({"x": 100 * 10 / W, "y": 12.5, "width": 50, "height": 62.5, "rotation": 0})
    assert left["value"]["keypointlabels"] == ["left pedal"]
    assert (left["value"]["x"] * W / 100, left["value"]["y"] * H / 100) == pytest.approx((20.5, 30))
    assert left["parentID"] == right["parentID"] == box["id"]
    assert (hidden["id"], hidden["type"], hidden["value"]["choices"]) == (right["id"], "choices", ["hidden"])
    assert by_photo(tasks)["3.png"]["annotations"] == [{"result": []}]  # a person has seen that there is nothing


def test_predictions_are_kept_apart(tmp_path: Path):
    tasks = by_photo(export(tmp_path, "include")[0])
    part, guess = tasks["a/1.jpg"], tasks["4.png"]

    def labels(group: list[dict[str, Any]]) -> list[str]:
        return [
            r["value"]["keypointlabels"][0] for one in group for r in one["result"] if r["type"] == "keypointlabels"
        ]

    assert (labels(part["annotations"]), labels(part["predictions"])) == (["saddle"], ["left pedal"])
    assert (guess["annotations"], labels(guess["predictions"])) == ([], ["beak", "tail"])
    assert guess["predictions"][0]["score"] == 0.7
    assert guess["predictions"][0]["result"][1]["score"] == 0.75
    ids = [
        (region["id"], region["type"]) for one in part["annotations"] + part["predictions"] for region in one["result"]
    ]
    assert len(ids) == len(set(ids))


def test_the_configuration_names_each_label_once(tmp_path: Path):
    _, config = export(tmp_path, "omit")
    view = ElementTree.fromstring(config)
    values = {tag.tag: [label.get("value") for label in tag] for tag in view if len(tag)}
    assert values == {
        "RectangleLabels": ["bicycle", "bird"],
        "KeyPointLabels": ["left pedal", "right pedal", "saddle", "beak", "tail"],
        "Choices": ["hidden"],
    }


@pytest.mark.parametrize("predictions", ["omit", "include", "only"])
def test_its_own_sdk_accepts_all_of_it(tmp_path: Path, predictions: str):
    interface = pytest.importorskip(
        "label_studio_sdk.label_interface", reason="label-studio-sdk is not installed; make formats"
    )
    tasks, config = export(tmp_path, predictions)
    label = interface.LabelInterface(config)
    label.validate()
    regions = 0
    for task in tasks:
        for annotation in task["annotations"]:
            assert label.validate_annotation(annotation)
        for prediction in task["predictions"]:
            assert label.validate_prediction(prediction)
        for one in task["annotations"] + task["predictions"]:
            for region in one["result"]:
                assert label.validate_region(region), region
                regions += 1
    assert regions > 4
    first = tasks[-1]["annotations"] or tasks[-1]["predictions"]
    with pytest.raises(Exception, match="Name unknown is not found"):  # the check can fail
        label.validate_region(first[0]["result"][0] | {"from_name": "unknown"})

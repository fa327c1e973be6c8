"""The keypoints of an object, its box, and its removal."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.studio_client import StudioClient, open_project, predict
from PIL import Image

from transformatcher.annotation.revote import HeatMap


@pytest.fixture
def cat(studio: StudioClient) -> dict[str, Any]:
    return studio.add_category()


@pytest.fixture
def instance(studio: StudioClient, cat: dict[str, Any]) -> int:
    return studio.add_object(studio.photo_ids()["0.jpg"], cat)


def points(detail: Any) -> list[tuple[str | None, int, float | None, float | None]]:
    return [(p["source"], p["visibility"], p["x"], p["y"]) for p in detail["instances"][0]["points"]]


def test_marks(studio: StudioClient, cat: dict[str, Any], instance: int):
    left, right, nose = (keypoint["id"] for keypoint in cat["keypoints"])
    studio.mark(instance, left, 1, 2)
    studio.put(f"/instances/{instance}/points/{right}", {"visibility": 1, "x": 80, "y": 60})
    detail = studio.put(f"/instances/{instance}/points/{nose}", {"visibility": 0})
    assert points(detail) == [("person", 2, 1, 2), ("person", 1, 80, 60), ("person", 0, None, None)]
    assert detail["photo"]["state"] == "marked"
    detail = studio.send("DELETE", f"/instances/{instance}/points/{left}")
    assert points(detail)[0] == (None, 0, None, None)


def test_a_mark_taken_back_is_the_prediction_again(studio: StudioClient, cat: dict[str, Any]):
    photo = studio.photo_ids()["1.jpg"]
    instance, keypoint = predict(studio.project, photo, cat, 0.7), cat["keypoints"][0]["id"]
    studio.mark(instance, keypoint, 1, 2)
    assert points(studio.get(f"/photos/{photo}"))[0] == ("person", 2, 1, 2)
    detail = studio.send("DELETE", f"/instances/{instance}/points/{keypoint}")
    assert points(detail)[0] == ("prediction", 2, 10, 20)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"visibility": 2, "x": 81, "y": 1}, "(81, 1) lies outside the photo of 80 × 60 pixels"),
        ({"visibility": 2, "x": 1}, "both x and y"),
        ({"visibility": 2}, "needs a position"),
        ({"visibility": 3, "x": 1, "y": 1}, "visibility"),
        ({"visibility": 2, "x": "far", "y": 1}, "x: Input should be a valid number"),
        ({"visibility": 2, "x": 1, "y": 1, "z": 1}, "z: Extra inputs are not permitted"),
        ([], "malformed"),
    ],
)
def test_bad_marks(studio: StudioClient, cat: dict[str, Any], instance: int, body: Any, problem: str):
    path = f"/instances/{instance}/points/{cat['keypoints'][0]['id']}"
    assert problem in studio.error("PUT", path, 422, body)
    assert studio.get("/project")["undo"] == "add an object"


def test_numbers_that_are_none(studio: StudioClient, cat: dict[str, Any], instance: int):
    path = f"/instances/{instance}/points/{cat['keypoints'][0]['id']}"
    body = b'{"visibility": 2, "x": NaN, "y": 1}'
    assert "x: " in studio.error("PUT", path, 422, content=body, headers={"Content-Type": "application/json"})


def test_unknown_ids(studio: StudioClient, cat: dict[str, Any], instance: int):
    body = {"visibility": 0}
    keypoint = cat["keypoints"][0]["id"]
    dog = studio.add_category("dog", ["tail"])
    assert "no object has the id 99" in studio.error("PUT", f"/instances/99/points/{keypoint}", 404, body)
    assert "has no keypoint" in studio.error("PUT", f"/instances/{instance}/points/99", 404, body)
    assert "has no keypoint" in studio.error("DELETE", f"/instances/{instance}/points/{dog['keypoints'][0]['id']}", 404)
    studio.error("DELETE", f"/instances/{10**40}", 404)
    assert "instance_id" in studio.error("PUT", "/instances/one/box", 422, {"box": None})


def test_boxes(studio: StudioClient, instance: int):
    detail = studio.put(f"/instances/{instance}/box", {"box": [-5, 10, 70, 100]})
    assert detail["instances"][0]["box"] == [0, 10, 70, 60]
    assert "at least 4 × 4" in studio.error("PUT", f"/instances/{instance}/box", 422, {"box": [1, 2, 3, 40]})
    assert studio.put(f"/instances/{instance}/box", {"box": None})["instances"][0]["box"] is None
    assert "box" in studio.error("PUT", f"/instances/{instance}/box", 422, {})


def test_several_objects_of_one_photo(studio: StudioClient, cat: dict[str, Any], instance: int):
    photo = studio.photo_ids()["0.jpg"]
    second = studio.add_object(photo, cat, [10, 10, 40, 40])
    studio.mark(second, cat["keypoints"][0]["id"], 12, 13)
    detail = studio.get(f"/photos/{photo}")
    assert [i["id"] for i in detail["instances"]] == [instance, second]
    assert detail["photo"]["instances"] == 2
    detail = studio.send("DELETE", f"/instances/{second}")
    assert [i["id"] for i in detail["instances"]] == [instance]
    studio.error("DELETE", f"/instances/{second}", 404)


def test_an_object_is_added_once_if_the_answer_was_lost(studio: StudioClient, cat: dict[str, Any]):
    photo = studio.photo_ids()["1.jpg"]
    body = {"category_id": cat["id"], "box": [5, 5, 40.001, 99], "known": []}
    first = studio.post(f"/photos/{photo}/instances", body, 201)
    again = studio.post(f"/photos/{photo}/instances", body, 201)
    assert again["instance"] == first["instance"]
    assert len(again["instances"]) == 1
    body["known"] = [first["instance"]]  # another one that is just like it
    assert studio.post(f"/photos/{photo}/instances", body, 201)["instance"] != first["instance"]
    del body["known"]
    assert len(studio.post(f"/photos/{photo}/instances", body, 201)["instances"]) == 3
    body |= {"known": [], "box": None}
    assert len(studio.post(f"/photos/{photo}/instances", body, 201)["instances"]) == 4
    assert [studio.post("/undo")["name"] for _ in range(4)] == ["add an object"] * 4
    assert studio.get(f"/photos/{photo}")["instances"] == []


def test_a_photo_whose_size_nobody_has_read_yet(folder: Path):
    with open_project(folder) as project, StudioClient(project) as studio:
        photo = studio.photo_ids()["2.jpg"]
        assert project.photo(photo).size is None
        instance = studio.add_object(photo, studio.add_category(), [1, 2, 30, 40])
        assert studio.get(f"/photos/{photo}")["instances"][0]["id"] == instance


def test_heat_maps(studio: StudioClient, cat: dict[str, Any]):
    instance, keypoint = predict(studio.project, studio.photo_ids()["1.jpg"], cat, 0.7), cat["keypoints"][1]["id"]
    path = f"/instances/{instance}/points/{keypoint}/heatmap"
    assert studio.get(path, 204).content == b""
    values = np.array([[0, 64, 255]], dtype=np.uint8)
    studio.worker.heatmaps[instance, keypoint] = HeatMap((1, 2, 31, 42), values)
    response = studio.get(path)
    assert response.headers["content-type"] == "image/png"
    assert response.headers["x-box"] == "1,2,31,42"
    pixels = np.asarray(Image.open(io.BytesIO(response.content)))
    assert pixels.shape == (1, 3, 4)
    assert pixels[0, :, 3].tolist() == [0, 127, 255]
    assert "has no keypoint" in studio.error("GET", f"/instances/{instance}/points/99/heatmap", 404)
    assert "no object" in studio.error("GET", f"/instances/99/points/{keypoint}/heatmap", 404)

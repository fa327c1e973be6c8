"""Categories with their keypoints."""

from typing import Any

import pytest
from helpers.studio_client import StudioClient


def test_add_and_change(studio: StudioClient):
    cat = studio.add_category()
    left, right, nose = cat["keypoints"]
    assert [keypoint["name"] for keypoint in cat["keypoints"]] == ["left eye", "right eye", "nose"]
    assert (left["twin"], right["twin"], nose["twin"]) == (right["id"], left["id"], None)
    assert cat["skeleton"] == [[left["id"], right["id"]], [right["id"], nose["id"]]]
    photo = studio.photo_ids()["0.jpg"]
    instance = studio.add_object(photo, cat)
    for keypoint in (left, nose):
        studio.mark(instance, keypoint["id"], 5, 6)
    changed = [{"id": nose["id"], "name": "snout"}, {"id": None, "name": "tail"}, {"id": right["id"], "name": "eye"}]
    state = studio.put(f"/categories/{cat['id']}", {"name": "dog", "keypoints": changed, "skeleton": [[0, 1]]})
    (dog,) = state["categories"]
    assert dog["name"] == "dog"
    assert [keypoint["name"] for keypoint in dog["keypoints"]] == ["snout", "tail", "eye"]
    assert [keypoint["twin"] for keypoint in dog["keypoints"]] == [None, None, None]
    points = studio.get(f"/photos/{photo}")["instances"][0]["points"]
    assert [point["source"] for point in points] == ["person", None, None]
    studio.post("/undo")
    assert studio.get("/project")["categories"] == [cat]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"name": "cat", "keypoints": []}, "there is a category 'cat' already"),
        ({"name": "", "keypoints": []}, "is not a name"),
        ({"name": "dog", "keypoints": ["a", "a"]}, "two keypoints are called 'a'"),
        ({"name": "dog", "keypoints": ["a", "b"], "skeleton": [[0, 2]]}, "an edge of the skeleton"),
        ({"name": "dog", "keypoints": ["a", "b"], "skeleton": [[0]]}, "skeleton.0"),
        ({"name": "dog", "keypoints": ["a"] * 201}, "keypoints"),
        ({"name": "dog\n", "keypoints": ["a\u0000"]}, "is not a name"),
        ({"keypoints": []}, "name: Field required"),
    ],
)
def test_bad_categories(studio: StudioClient, body: Any, problem: str):
    studio.add_category()
    assert problem in studio.error("POST", "/categories", 422, body)
    assert len(studio.get("/project")["categories"]) == 1


def test_unknown_ids(studio: StudioClient):
    body: dict[str, Any] = {"name": "dog", "keypoints": []}
    assert "no category has the id 9" in studio.error("PUT", "/categories/9", 404, body)
    cat = studio.add_category()
    body["keypoints"] = [{"id": 99, "name": "a"}]
    assert "no keypoint with the id 99" in studio.error("PUT", f"/categories/{cat['id']}", 422, body)

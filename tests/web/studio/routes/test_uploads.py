"""Photos uploaded into a temporary project, and examples."""

import io
from pathlib import Path

import numpy as np
import pytest
from helpers.studio_client import StudioClient, open_project
from helpers.web_client import encode_image, picture
from PIL import Image

from transformatcher.web.uploads import Limits


def test_an_upload_keeps_its_bytes(temporary: StudioClient):
    data = encode_image(picture(3), "JPEG")
    answer = temporary.post("/photos?name=a/b/my%20cat.jpg", content=data, status=201)
    assert answer["photo"]["path"] == "my cat.jpg"
    assert (answer["photo"]["width"], answer["photo"]["height"]) == (200, 120)
    assert answer["project"]["counts"]["unmarked"] == 1
    assert (temporary.project.folder / "my cat.jpg").read_bytes() == data
    assert temporary.get(f"/photos/{answer['photo']['id']}/image").content == data
    again = temporary.post("/photos?name=my%20cat.jpg", content=data, status=201)
    assert again["photo"]["path"] == "my cat (2).jpg"


@pytest.mark.parametrize(
    ("name", "kind", "path"),
    [
        ("cat", "JPEG", "cat.jpg"),
        ("cat.png", "JPEG", "cat.jpg"),
        ("cat.JPEG", "JPEG", "cat.jpeg"),
        (".hidden.png", "PNG", "hidden.png"),
        ("", "WEBP", "photo.webp"),
        ("..", "BMP", "photo.bmp"),
        ('ab?"c.tiff', "TIFF", "ab__c.tiff"),
        ("dance.gif", "GIF", "dance.png"),
    ],
)
def test_names(temporary: StudioClient, name: str, kind: str, path: str):
    data = encode_image(picture(3), kind)
    photo = temporary.post("/photos", params={"name": name}, content=data, status=201)["photo"]
    assert photo["path"] == path
    shown = Image.open(io.BytesIO(temporary.get(f"/photos/{photo['id']}/image").content))
    assert shown.size == (200, 120)
    assert np.abs(np.asarray(shown, float) - picture(3)).mean() < 20


def test_more_examples_than_there_is_room_for(tmp_path: Path):
    limits = Limits(photos=2)
    with open_project(tmp_path) as project, StudioClient(project, temporary=True, limits=limits) as studio:
        assert "No more than 2 photos here" in studio.error("POST", "/examples", 413)
        assert [path.name for path in tmp_path.iterdir() if path.suffix == ".jpg"] == []
        assert studio.get("/project")["counts"]["unmarked"] == 0


def test_a_full_disk(temporary: StudioClient, monkeypatch: pytest.MonkeyPatch):
    def write(self: Path, _: bytes) -> int:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", write)
    message = temporary.error("POST", "/photos?name=a.jpg", 422, content=encode_image(picture(3), "JPEG"))
    assert "cannot be written (No space left on device)" in message


def test_examples(temporary: StudioClient):
    state = temporary.post("/examples", status=201)
    assert state["uploads"]
    assert state["temporary"]
    assert state["counts"] == {"unmarked": 2, "predicted": 0, "marked": 1, "reviewed": 0, "failed": 0}
    (cat,) = state["categories"]
    assert len(cat["keypoints"]) == 6
    photo = temporary.photo_ids()["cat_a.jpg"]
    points = temporary.get(f"/photos/{photo}")["instances"][0]["points"]
    assert (points[0]["source"], points[0]["visibility"], points[0]["x"], points[0]["y"]) == ("person", 2, 168, 115)
    again = temporary.post("/examples", status=201)  # the same three, and the same category
    assert again["counts"]["marked"] == 2
    assert [category["name"] for category in again["categories"]] == ["cat"]


def test_examples_beside_another_cat(temporary: StudioClient):
    temporary.add_category("cat", ["tail"])
    state = temporary.post("/examples", status=201)
    assert [category["name"] for category in state["categories"]] == ["cat", "cat 2"]


@pytest.mark.parametrize("path", ["/photos?name=a.jpg", "/examples"])
def test_only_into_a_temporary_project(studio: StudioClient, folder: Path, path: str):
    before = sorted(folder.iterdir())
    data = encode_image(picture(3), "JPEG")
    message = studio.error("POST", path, 403, content=data, headers={"Content-Type": "application/octet-stream"})
    assert f"Photos come from the folder {folder}" in message
    assert sorted(folder.iterdir()) == before

"""The project as files of other tools, and marks from a COCO-keypoint file."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from helpers.studio_client import StudioClient, predict


@pytest.fixture
def marked(studio: StudioClient) -> StudioClient:
    """One photo accepted with three keypoints, one predicted."""
    cat, ids = studio.add_category(), studio.photo_ids()
    instance = studio.add_object(ids["0.jpg"], cat)
    for n, keypoint in enumerate(cat["keypoints"]):
        studio.mark(instance, keypoint["id"], 10 + 20 * n, 30)
    studio.post(f"/photos/{ids['0.jpg']}/accept")
    predict(studio.project, ids["1.jpg"], cat, 0.8)
    return studio


def test_formats(studio: StudioClient):
    formats = {form["name"]: form for form in studio.get("/formats")}
    assert set(formats) == {"coco", "yolo", "label-studio", "deeplabcut", "sleap"}
    assert formats["coco"] == {"name": "coco", "title": "COCO keypoints", "available": True, "why": ""}


def test_coco_out_and_in(marked: StudioClient):
    response = marked.client.get("/api/export?format=coco")
    assert response.headers["content-disposition"] == 'attachment; filename="photos-coco.json"'
    content = response.json()
    assert content["info"]["images_root"] == "."  # not the way there from a folder of ours
    (note,) = content["annotations"]
    assert note["keypoints"] == [10, 30, 2, 30, 30, 2, 50, 30, 2]
    assert len(marked.client.get("/api/export?format=coco&predictions=include").json()["annotations"]) == 2
    for _ in range(5):  # marks, object, category
        marked.post("/undo")
    answer = marked.post("/import?name=mine.json", content=response.content)
    assert (answer["images"], answer["objects"], answer["keypoints"]) == (1, 1, 3)
    assert answer["project"]["undo"] == "import mine.json"
    assert answer["project"]["counts"]["reviewed"] == 1
    point = marked.get(f"/photos/{marked.photo_ids()['0.jpg']}")["instances"][0]["points"][0]
    assert (point["source"], point["x"], point["y"]) == ("import", 10, 30)


def test_a_format_of_several_files_is_a_zip_file(marked: StudioClient):
    response = marked.get("/export?format=yolo")
    assert response.headers["content-disposition"] == 'attachment; filename="photos-yolo.zip"'
    names = zipfile.ZipFile(io.BytesIO(response.content)).namelist()
    assert any(name.endswith("0.txt") for name in names)


def test_nothing_is_left_in_the_temporary_folder(marked: StudioClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    assert marked.get("/export?format=yolo").content
    marked.send("GET", "/export?format=coco")
    assert list((tmp_path / "temporary").iterdir()) == []


def test_what_is_left_out_is_told(marked: StudioClient):
    content = marked.client.get("/api/export?format=coco").json()
    content["images"] += [
        {"id": 100 + n, "file_name": f"elsewhere-{n}.jpg", "width": 80, "height": 60} for n in range(150)
    ]
    skipped = marked.post("/import?name=mine.json", content=json.dumps(content).encode())["skipped"]
    assert len(skipped) == 101
    assert "elsewhere-0.jpg" in skipped[0]
    assert skipped[-1] == "and 50 more"


def test_bad_requests(studio: StudioClient):
    assert "no format is called 'cocoa'" in studio.error("GET", "/export?format=cocoa", 404)
    assert "format" in studio.error("GET", "/export", 422)
    assert "predictions" in studio.error("GET", "/export?format=coco&predictions=all", 422)


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff\xfe", b"[]", b"{}", b'{"images": 3}', b"[" * 100_000, b'{"images": [], "annotations": "\\ud800"}'],
)
def test_bad_files(studio: StudioClient, body: bytes):
    assert studio.error("POST", "/import?name=../m%00ine.json", 422, content=body).startswith("mine.json: ")
    state: Any = studio.get("/project")
    assert state["undo"] is None

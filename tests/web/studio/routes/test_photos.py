"""A photo with its objects, its pictures, and what a person says of it."""

import io
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.studio_client import StudioClient, open_project, predict
from helpers.web_client import png_header
from PIL import Image

from transformatcher.web.studio import pictures


def size_of(response: Any) -> tuple[int, int]:
    assert response.headers["content-type"] == "image/jpeg"
    return Image.open(io.BytesIO(response.content)).size


class TestDetail:
    def test_a_photo_without_objects(self, studio: StudioClient):
        photo = studio.photo_ids()["0.jpg"]
        detail = studio.get(f"/photos/{photo}")
        assert detail["instances"] == []
        assert detail["photo"] | {"revision": 0} == {
            "id": photo, "path": "0.jpg", "width": 80, "height": 60, "state": "unmarked", "sureness": None,
            "instances": 0, "problem": None, "revision": 0, "other_kind": False,
        }  # fmt: skip

    def test_points_are_marks_or_predictions_or_nothing(self, studio: StudioClient):
        category, photo = studio.add_category(), studio.photo_ids()["1.jpg"]
        left, right, nose = (keypoint["id"] for keypoint in category["keypoints"])
        instance = predict(studio.project, photo, category, 0.495)
        with studio.project.changing([photo]):
            studio.project.database.run("DELETE FROM prediction WHERE keypoint_id = ?", nose)
        studio.mark(instance, left, 1.25, 2.5)
        detail = studio.get(f"/photos/{photo}")
        (found,) = detail["instances"]
        assert found["points"] == [
            {"keypoint_id": left, "source": "person", "visibility": 2, "x": 1.25, "y": 2.5, "confidence": None,
             "is_match": True},
            {"keypoint_id": right, "source": "prediction", "visibility": 2, "x": 11.0, "y": 21.0,
             "confidence": 0.505, "is_match": True},
            {"keypoint_id": nose, "source": None, "visibility": 0, "x": None, "y": None, "confidence": None,
             "is_match": False},
        ]  # fmt: skip
        assert found["predicted_at"] == "2026-01-01T00:00:00+00:00"
        assert found["same_kind"] == 0.9
        assert not found["mirrored"]

    def test_without_a_calibration_every_prediction_is_a_match(self, folder: Path):
        from helpers.studio_client import FakeWorker

        with open_project(folder) as project, StudioClient(project, FakeWorker(calibrated=False)) as studio:
            category, photo = studio.add_category(), studio.photo_ids()["1.jpg"]
            predict(project, photo, category, 0.1)
            assert all(point["is_match"] for point in studio.get(f"/photos/{photo}")["instances"][0]["points"])
            detail = studio.post(f"/photos/{photo}/accept")
            assert [point["visibility"] for point in detail["instances"][0]["points"]] == [2, 2, 2]

    @pytest.mark.parametrize("path", ["", "/image", "/thumbnail"])
    def test_unknown_ids(self, studio: StudioClient, path: str):
        assert "no photo has the id 99" in studio.error("GET", f"/photos/99{path}", 404)
        studio.error("GET", f"/photos/{10**30}{path}", 404)
        assert "photo_id" in studio.error("GET", f"/photos/first{path}", 422)


class TestReview:
    def test_accept_reopen_skip(self, studio: StudioClient):
        category, photo = studio.add_category(), studio.photo_ids()["0.jpg"]
        predict(studio.project, photo, category, 0.495)
        detail = studio.post(f"/photos/{photo}/accept")
        points = detail["instances"][0]["points"]
        assert [(point["source"], point["visibility"]) for point in points] == [
            ("accepted", 0), ("accepted", 2), ("accepted", 2),
        ]  # fmt: skip
        assert detail["photo"]["state"] == "reviewed"
        assert studio.post(f"/photos/{photo}/reopen")["photo"]["state"] == "predicted"
        assert studio.post(f"/photos/{photo}/skip", {"skipped": True})["photo"]["state"] == "reviewed"
        assert studio.post(f"/photos/{photo}/skip", {"skipped": False})["photo"]["state"] == "predicted"
        assert studio.worker.edits == 5

    def test_nothing_to_accept(self, studio: StudioClient):
        photo = studio.photo_ids()["0.jpg"]
        assert "nothing to accept" in studio.error("POST", f"/photos/{photo}/accept", 422)

    def test_a_new_object_of_an_unknown_category(self, studio: StudioClient):
        photo = studio.photo_ids()["0.jpg"]
        assert "no category" in studio.error("POST", f"/photos/{photo}/instances", 404, {"category_id": 9})
        message = studio.error("POST", f"/photos/{photo}/instances", 422, {"category_id": 1, "box": [1, 2]})
        assert message.startswith("The request is malformed: box")


class TestPictures:
    def test_a_small_upright_jpeg_is_sent_as_it_is(self, studio: StudioClient, folder: Path):
        response = studio.get(f"/photos/{studio.photo_ids()['0.jpg']}/image")
        assert response.content == (folder / "0.jpg").read_bytes()

    def test_a_jpeg_that_is_cut_off_is_listed_as_failed(self, studio: StudioClient, folder: Path):
        whole = (folder / "0.jpg").read_bytes()
        (folder / "0.jpg").write_bytes(whole[: len(whole) // 2])
        photo = studio.photo_ids()["0.jpg"]
        assert "not an image that can be decoded" in studio.error("GET", f"/photos/{photo}/image", 422)
        assert studio.get(f"/photos/{photo}")["photo"]["state"] == "failed"

    @pytest.mark.parametrize("picture", ["image", "thumbnail"])
    def test_other_photos_are_turned_and_converted(self, studio: StudioClient, folder: Path, picture: str):
        pixels = np.zeros((60, 80, 3), np.uint8)
        pixels[:, :40] = (255, 0, 0)  # red on the left; turned, on top
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(pixels).save(folder / "turned.jpg", exif=exif, quality=95)
        Image.new("RGBA", (30, 20), (0, 0, 0, 0)).save(folder / "clear.png")
        studio.post("/scan")
        ids = studio.photo_ids()
        turned = studio.get(f"/photos/{ids['turned.jpg']}/{picture}")
        assert size_of(turned) == (60, 80)
        red, _, _ = Image.open(io.BytesIO(turned.content)).getpixel((30, 10))
        assert red > 200
        clear = Image.open(io.BytesIO(studio.get(f"/photos/{ids['clear.png']}/{picture}").content))
        assert min(clear.getpixel((5, 5))) > 250
        detail = studio.get(f"/photos/{ids['turned.jpg']}")
        assert (detail["photo"]["width"], detail["photo"]["height"]) == (60, 80)

    def test_sides_are_limited(self, studio: StudioClient, folder: Path):
        Image.new("RGB", (3000, 1500), "navy").save(folder / "large.jpg")
        studio.post("/scan")
        photo = studio.photo_ids()["large.jpg"]
        assert size_of(studio.get(f"/photos/{photo}/image")) == (2560, 1280)
        assert size_of(studio.get(f"/photos/{photo}/thumbnail")) == (256, 128)
        detail = studio.get(f"/photos/{photo}")["photo"]
        assert (detail["width"], detail["height"]) == (3000, 1500)  # coordinates are those of the photo itself

    def test_thumbnails_are_kept_until_the_photo_changes(
        self, studio: StudioClient, folder: Path, monkeypatch: pytest.MonkeyPatch
    ):
        photo = studio.photo_ids()["in/the-last.png"]
        first = studio.get(f"/photos/{photo}/thumbnail")
        kept = list((folder / "keypoints.sqlite.cache" / "thumbnails").iterdir())
        assert len(kept) == 1
        read = []
        original = pictures.read_reduced
        monkeypatch.setattr(pictures, "read_reduced", lambda *args: read.append(args) or original(*args))
        assert studio.get(f"/photos/{photo}/thumbnail").content == first.content
        assert not read
        kept[0].write_bytes(first.content[:50])  # the power failed
        assert studio.get(f"/photos/{photo}/thumbnail").content == first.content
        assert len(read) == 1
        Image.new("RGB", (50, 40)).save(folder / "in" / "the-last.png")
        later = time.time_ns() + 10**9
        os.utime(folder / "in" / "the-last.png", ns=(later, later))
        changed = studio.get(f"/photos/{photo}/thumbnail")
        assert size_of(changed) == (50, 40)
        assert changed.headers["etag"] != first.headers["etag"]

    def test_the_cache_is_not_taken_for_photos(self, studio: StudioClient):
        before = studio.photo_ids()
        for photo in before.values():
            studio.get(f"/photos/{photo}/thumbnail")
        assert studio.post("/scan")["added"] == 0
        assert studio.photo_ids() == before

    def test_large_pictures_are_kept_in_memory(self, studio: StudioClient, monkeypatch: pytest.MonkeyPatch):
        photo = studio.photo_ids()["in/the-last.png"]
        first = studio.get(f"/photos/{photo}/image")
        monkeypatch.setattr(pictures, "read_reduced", None)
        assert studio.get(f"/photos/{photo}/image").content == first.content

    def test_a_thumbnail_that_cannot_be_kept_is_shown_all_the_same(self, studio: StudioClient, folder: Path):
        (folder / "keypoints.sqlite.cache").write_text("in the way")
        assert size_of(studio.get(f"/photos/{studio.photo_ids()['0.jpg']}/thumbnail")) == (80, 60)

    def test_what_browsers_keep(self, studio: StudioClient):
        path = f"/photos/{studio.photo_ids()['0.jpg']}/thumbnail"
        response = studio.get(path)
        assert response.headers["cache-control"] == "private, no-cache"
        again = studio.get(path, 304, headers={"If-None-Match": response.headers["etag"]})
        assert again.content == b""
        assert "immutable" in studio.get(f"{path}?v=1").headers["cache-control"]

    @pytest.mark.parametrize("picture", ["image", "thumbnail"])
    def test_a_photo_that_cannot_be_shown_is_listed_as_failed(
        self, studio: StudioClient, folder: Path, picture: str, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(pictures, "MAX_PIXELS", 50_000_000)
        (folder / "text.png").write_text("Dear all,")
        (folder / "bomb.png").write_bytes(png_header(8_000, 7_000))
        studio.post("/scan")
        ids = studio.photo_ids()
        assert "not an image that can be decoded" in studio.error("GET", f"/photos/{ids['text.png']}/{picture}", 422)
        message = studio.error("GET", f"/photos/{ids['bomb.png']}/{picture}", 422)
        assert message.startswith("bomb.png: ")
        assert "too many" in message
        photos = {photo["path"]: photo for photo in studio.get("/photos")["photos"]}
        assert photos["text.png"]["state"] == photos["bomb.png"]["state"] == "failed"
        assert "too many" in photos["bomb.png"]["problem"]
        revision = studio.get("/project")["revision"]
        studio.error("GET", f"/photos/{ids['text.png']}/{picture}", 422)
        assert studio.get("/project")["revision"] == revision

    def test_a_photo_that_is_gone(self, studio: StudioClient, folder: Path):
        photo = studio.photo_ids()["0.jpg"]
        (folder / "0.jpg").unlink()
        assert "not there any more" in studio.error("GET", f"/photos/{photo}/thumbnail", 422)
        assert studio.get(f"/photos/{photo}")["photo"]["state"] == "failed"

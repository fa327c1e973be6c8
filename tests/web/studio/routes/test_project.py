"""The project as a whole: its state, changes, undo and redo, the prediction, a new look at the folder."""

import gzip
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import write_image
from helpers.studio_client import KEYPOINTS, FakeWorker, StudioClient, open_project, predict

from transformatcher import __version__


class TestState:
    def test_of_a_new_project(self, studio: StudioClient, folder: Path):
        state = studio.get("/project")
        assert state == {
            "revision": 1, "folder": str(folder), "file": str(folder / "keypoints.sqlite"), "temporary": False,
            "uploads": False, "calibrated": True, "threshold": 0.5, "categories": [],
            "counts": {"unmarked": 4, "predicted": 0, "marked": 0, "reviewed": 0, "failed": 0}, "unsure": 0,
            "undo": None, "redo": None, "suggestion": None,
            "prediction": {"state": "idle", "done": 2, "total": 5, "photos_per_second": 1.23, "problem": None},
            "pace": {"seconds_per_photo": None, "remaining_s": None},
        }  # fmt: skip
        assert studio.get("/health") == {"status": "ok", "version": __version__}

    def test_counts(self, studio: StudioClient):
        cat, ids = studio.add_category(), studio.photo_ids()
        predict(studio.project, ids["0.jpg"], cat, 0.49)
        predict(studio.project, ids["1.jpg"], cat, 0.5, same_kind=0.4)
        studio.mark(studio.add_object(ids["2.jpg"], cat), cat["keypoints"][0]["id"], 1, 1)
        state = studio.get("/project")
        assert state["counts"] == {"unmarked": 1, "predicted": 2, "marked": 1, "reviewed": 0, "failed": 0}
        assert state["unsure"] == 1
        photos = {photo["path"]: photo for photo in studio.get("/photos")["photos"]}
        assert photos["0.jpg"]["sureness"] == 0.49
        assert [name for name, photo in photos.items() if photo["other_kind"]] == ["1.jpg"]
        studio.post(f"/photos/{ids['0.jpg']}/accept")
        studio.post(f"/photos/{ids['1.jpg']}/accept")
        state = studio.get("/project")
        assert state["counts"] == {"unmarked": 1, "predicted": 0, "marked": 1, "reviewed": 2, "failed": 0}
        assert state["unsure"] == 0
        assert not any(photo["other_kind"] for photo in studio.get("/photos")["photos"])

    def test_the_prediction(self, studio: StudioClient):
        worker = studio.worker
        worker.state, worker.problem, worker.suggested = "problem", "the disk is full", 3
        state = studio.get("/project")
        assert state["prediction"]["state"] == "problem"
        assert state["prediction"]["problem"] == "the disk is full"
        assert state["suggestion"] == 3
        studio.post("/prediction", {"paused": True})
        assert worker.paused
        studio.post("/prediction", {"paused": False})
        assert not worker.paused
        assert "paused" in studio.error("POST", "/prediction", 422, {"paused": "perhaps"})
        assert studio.post("/view", {"photos": [3, 1]}) == {}
        assert worker.in_view == [3, 1]
        assert "photos" in studio.error("POST", "/view", 422, {"photos": ["all"]})
        assert "photos" in studio.error("POST", "/view", 422, {"photos": list(range(1001))})

    def test_pace(self, studio: StudioClient):
        times = [f"2026-01-01T00:{time}.000+00:00" for time in ("00:00", "00:10", "00:22", "09:00", "09:14")]
        with studio.project.changing():
            studio.project.database.run_many(
                "INSERT INTO action (name, at, state) VALUES ('accept', ?, 'done')", [(time,) for time in times]
            )
        assert studio.get("/project")["pace"] == {"seconds_per_photo": 12.0, "remaining_s": 48}


class TestPhotos:
    def test_only_those_that_have_changed(self, studio: StudioClient):
        everything = studio.get("/photos")
        assert [photo["path"] for photo in everything["photos"]] == ["0.jpg", "1.jpg", "2.jpg", "in/the-last.png"]
        photo = everything["photos"][1]["id"]
        studio.post(f"/photos/{photo}/skip", {"skipped": True})
        later = studio.get(f"/photos?since={everything['revision']}")
        assert [entry["id"] for entry in later["photos"]] == [photo]
        assert studio.get(f"/photos?since={later['revision']}")["photos"] == []
        assert len(studio.get(f"/photos?since={later['revision'] + 9}")["photos"]) == 4  # of another project

    @pytest.mark.parametrize("since", ["-2", "now"])
    def test_a_bad_revision(self, studio: StudioClient, since: str):
        assert "since" in studio.error("GET", f"/photos?since={since}", 422)
        assert "since" in studio.error("GET", f"/changes?since={since}", 422)

    def test_a_long_answer_is_compressed_for_those_who_can_read_it(self, tmp_path: Path):
        for n in range(150):
            (tmp_path / f"photo-{n:03}.jpg").write_bytes(b"")
        with open_project(tmp_path) as project, StudioClient(project) as studio:
            plain = studio.client.get("/api/photos", headers={"Accept-Encoding": "identity"})
            assert "content-encoding" not in plain.headers
            with studio.client.stream("GET", "/api/photos", headers={"Accept-Encoding": "gzip"}) as response:
                assert response.headers["content-encoding"] == "gzip"
                packed = b"".join(response.iter_raw())
            assert len(packed) < len(plain.content) / 5
            assert json.loads(gzip.decompress(packed)) == plain.json()


class TestChanges:
    def test_two_windows_stay_in_step(self, studio: StudioClient):
        cat, photo = studio.add_category(), studio.photo_ids()["0.jpg"]
        studio.get(f"/photos/{photo}")  # its size is read, which is a change, too
        revision = studio.get("/photos")["revision"]
        with ThreadPoolExecutor() as threads:
            other_window = threads.submit(studio.get, f"/changes?since={revision}")
            time.sleep(0.1)
            assert not other_window.done()
            start = time.monotonic()
            instance = studio.add_object(photo, cat)
            answer = other_window.result(5)
            assert time.monotonic() - start < 1
        (summary,) = answer["photos"]
        assert (summary["id"], summary["instances"]) == (photo, 1)
        assert answer["project"]["undo"] == "add an object"
        assert answer["revision"] == answer["project"]["revision"] > revision
        studio.mark(instance, cat["keypoints"][0]["id"], 3, 4)
        (summary,) = studio.get(f"/changes?since={answer['revision']}")["photos"]  # at once
        assert summary["state"] == "marked"

    def test_many_windows_wait_without_holding_a_thread(self, studio: StudioClient):
        revision = studio.get("/photos")["revision"]
        with ThreadPoolExecutor(60) as threads:
            windows = [threads.submit(studio.get, f"/changes?since={revision}") for _ in range(50)]  # of 40 threads
            time.sleep(0.5)
            studio.add_category()
            assert all(window.result(10)["project"]["categories"] for window in windows)

    def test_nothing_changes(self, studio: StudioClient, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("transformatcher.web.studio.routes.project.POLL_S", 0.1)
        revision = studio.get("/photos")["revision"]
        answer = studio.get(f"/changes?since={revision}")
        assert (answer["revision"], answer["photos"]) == (revision, [])

    def test_another_state_of_the_prediction_is_a_change(self, studio: StudioClient):
        revision = studio.get("/photos")["revision"]
        with ThreadPoolExecutor() as threads:
            window = threads.submit(studio.get, f"/changes?since={revision}")
            time.sleep(0.1)
            studio.worker.state = "predicting"
            assert window.result(5)["project"]["prediction"]["state"] == "predicting"


class TestUndo:
    def test_undo_and_redo(self, studio: StudioClient):
        assert studio.post("/undo")["name"] is None
        cat, photo = studio.add_category(), studio.photo_ids()["0.jpg"]
        instance = studio.add_object(photo, cat)
        studio.mark(instance, cat["keypoints"][2]["id"], 3, 4)
        undone = studio.post("/undo")
        assert (undone["name"], undone["photos"]) == ("nose: move", [photo])
        assert undone["project"]["undo"] == "add an object"
        assert undone["project"]["redo"] == "nose: move"
        assert studio.get(f"/photos/{photo}")["photo"]["state"] == "unmarked"
        assert studio.post("/redo")["name"] == "nose: move"
        assert studio.get(f"/photos/{photo}")["photo"]["state"] == "marked"
        assert studio.post("/redo") == {"name": None, "photos": [], "project": studio.get("/project")}

    def test_after_a_restart(self, folder: Path):
        with open_project(folder) as project, StudioClient(project) as studio:
            cat, photo = studio.add_category(), studio.photo_ids()["0.jpg"]
            instance = studio.add_object(photo, cat)
            studio.mark(instance, cat["keypoints"][0]["id"], 1, 1)
            studio.mark(instance, cat["keypoints"][0]["id"], 30, 40)
        with open_project(folder) as project, StudioClient(project) as studio:
            assert studio.get("/project")["undo"] == "left eye: move"
            assert studio.post("/undo")["photos"] == [photo]
            point = studio.get(f"/photos/{photo}")["instances"][0]["points"][0]
            assert (point["x"], point["y"]) == (1, 1)

    def test_what_cannot_be_undone_any_more(self, studio: StudioClient, monkeypatch: pytest.MonkeyPatch):
        import sqlite3

        def fail() -> None:
            raise sqlite3.IntegrityError("FOREIGN KEY constraint failed")

        studio.add_category()
        monkeypatch.setattr(studio.project, "undo", fail)
        assert studio.error("POST", "/undo", 409) == (
            "“add the category cat” cannot be undone: something else in the project builds on it."
        )


class TestScan:
    def test_new_moved_changed_and_missing_photos(self, studio: StudioClient, folder: Path):
        ids = studio.photo_ids()
        for photo in ids.values():
            studio.get(f"/photos/{photo}")  # reads their hashes
        write_image(folder / "new.jpg", seed=20)
        (folder / "0.jpg").rename(folder / "moved.jpg")
        write_image(folder / "1.jpg", (70, 90), seed=21)
        (folder / "2.jpg").unlink()
        report = studio.post("/scan")
        assert {key: report[key] for key in ("added", "moved", "changed", "missing", "left_out")} == {
            "added": 1, "moved": 1, "changed": 1, "missing": 1, "left_out": {},
        }  # fmt: skip
        assert report["project"]["counts"]["failed"] == 1
        assert studio.photo_ids()["moved.jpg"] == ids["0.jpg"]


def test_predictions_in_the_background(folder: Path, matcher: Any):
    """With the real worker and a small model: a mark on one photo, and the others are predicted."""
    from transformatcher.annotation.predictor import Predictor
    from transformatcher.annotation.worker import PredictionWorker

    with open_project(folder) as project:
        worker = PredictionWorker(Predictor(project, matcher))
        with StudioClient(project, worker) as studio:
            worker.start()
            try:
                cat, photo = studio.add_category(), studio.photo_ids()["0.jpg"]
                instance = studio.add_object(photo, cat)
                assert studio.get("/project")["prediction"]["state"] == "no_references"
                for n, keypoint in enumerate(cat["keypoints"]):
                    studio.mark(instance, keypoint["id"], 20 + 5 * n, 30)
                state = studio.get("/project")
                end = time.monotonic() + 30
                while state["counts"]["predicted"] < 3 and time.monotonic() < end:
                    state = studio.get(f"/changes?since={state['revision']}")["project"]
                assert state["counts"] == {"unmarked": 0, "predicted": 3, "marked": 1, "reviewed": 0, "failed": 0}
                points = studio.get(f"/photos/{studio.photo_ids()['1.jpg']}")["instances"][0]["points"]
                assert [point["source"] for point in points] == ["prediction"] * len(KEYPOINTS)
            finally:
                worker.stop()


def test_the_fake_has_what_the_real_worker_has():
    from transformatcher.annotation.worker import PredictionWorker

    names = {"state", "person_is_active", "look_at"}
    assert names <= set(dir(PredictionWorker))
    assert names <= set(dir(FakeWorker))

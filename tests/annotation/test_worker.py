"""Predictions in the background."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.annotation import add_thing, make_photos, mark_and_accept, open_project, photo_named, predicted_points

from transformatcher.annotation import worker as worker_module
from transformatcher.annotation.edits import set_mark
from transformatcher.annotation.predictor import Predictor
from transformatcher.annotation.project import Project
from transformatcher.annotation.worker import PredictionWorker
from transformatcher.errors import InputError
from transformatcher.inference.matcher import Matcher


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with open_project(make_photos(tmp_path / "photos", {"a.png": 0, "b.png": 0, "c.png": 0})) as project:
        add_thing(project)
        yield project


@pytest.fixture
def worker(project: Project, matcher: Matcher, monkeypatch: pytest.MonkeyPatch) -> Iterator[PredictionWorker]:
    monkeypatch.setattr(worker_module, "IDLE_S", 0.2)
    monkeypatch.setattr(worker_module, "RETRY_S", 0.05)
    worker = PredictionWorker(Predictor(project, matcher, batch=1))
    worker.start()
    yield worker
    worker.stop()


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_marks_are_followed_by_predictions(project: Project, worker: PredictionWorker):
    until(lambda: worker.state == "no_references")
    mark_and_accept(project, "a.png")
    until(lambda: project.counts().get("predicted") == 2)
    until(lambda: worker.state == "idle")
    assert worker.problem is None


def test_it_waits_while_the_person_works(project: Project, worker: PredictionWorker):
    until(lambda: worker.state == "no_references")
    worker.person_is_active()
    mark_and_accept(project, "a.png")
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        worker.person_is_active()
        time.sleep(0.01)
    assert project.counts().get("predicted", 0) <= 1  # at most what was under way
    until(lambda: project.counts().get("predicted") == 2)


def test_it_can_be_paused(project: Project, worker: PredictionWorker):
    worker.paused = True
    time.sleep(0.1)
    mark_and_accept(project, "a.png")
    time.sleep(0.3)
    assert worker.state == "paused"
    assert project.counts().get("predicted", 0) == 0
    worker.paused = False
    until(lambda: project.counts().get("predicted") == 2)


def test_photos_on_the_screen_follow_a_moved_point(project: Project, worker: PredictionWorker):
    reference = mark_and_accept(project, "a.png")
    until(lambda: project.counts().get("predicted") == 2)
    worker.look_at([photo_named(project, "b.png").id])
    set_mark(project, reference.id, project.categories()[0].keypoints[0].id, 2, (60.0, 60.0))
    until(lambda: abs(predicted_points(project, "b.png")["one"][0] - 60) < 8)


def test_a_point_that_moves_during_a_vote_is_followed_at_once(
    project: Project, worker: PredictionWorker, monkeypatch: pytest.MonkeyPatch
):
    reference, times = mark_and_accept(project, "a.png"), []
    until(lambda: worker.state == "idle")
    keypoint = project.categories()[0].keypoints[0].id

    def revote() -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            set_mark(project, reference.id, keypoint, 2, (61.0, 60.0))

    monkeypatch.setattr(worker_module, "CHECK_S", 5.0)
    time.sleep(0.6)  # both threads now wait for as long
    monkeypatch.setattr(worker.predictor, "revote", revote)
    set_mark(project, reference.id, keypoint, 2, (60.0, 60.0))
    until(lambda: len(times) == 2)
    assert times[1] - times[0] < 1


def test_a_problem_is_told_and_goes_away(project: Project, worker: PredictionWorker, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:

        def fail(*_: object) -> None:
            raise InputError("keypoints.sqlite: the project cannot be written (the disk is full)")

        patch.setattr(worker.predictor, "_predict", fail)
        mark_and_accept(project, "a.png")
        until(lambda: worker.state == "problem")
        assert "disk is full" in str(worker.problem)
    until(lambda: project.counts().get("predicted") == 2)
    until(lambda: worker.problem is None)


def test_an_error_of_ours_is_logged(
    project: Project, worker: PredictionWorker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(worker.predictor, "_predict", lambda _: 1 / 0)
    mark_and_accept(project, "a.png")
    until(lambda: worker.state == "problem")
    assert "division by zero" in caplog.text


def test_it_stops_in_the_middle_of_a_batch(project: Project, matcher: Matcher):
    worker = PredictionWorker(Predictor(project, matcher))
    worker.start()
    mark_and_accept(project, "a.png")
    worker.person_is_active()
    begin = time.monotonic()
    worker.stop()
    assert time.monotonic() - begin < 5

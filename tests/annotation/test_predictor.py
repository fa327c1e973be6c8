"""Predictions of a project: who votes, what is computed again, what a person has locked."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.annotation import (
    add_thing,
    make_photos,
    mark,
    mark_and_accept,
    open_project,
    photo_named,
    predicted_points,
)
from helpers.propagation import POINTS, make_photo
from helpers.two_passes import two_pass_matcher

from transformatcher.annotation import predictor as predictor_module
from transformatcher.annotation.edits import (
    accept,
    add_category,
    add_instance,
    change_box,
    change_category,
    remove_instance,
    set_mark,
)
from transformatcher.annotation.predictor import Predictor
from transformatcher.annotation.project import Project
from transformatcher.annotation.references import find_references
from transformatcher.annotation.scan import scan_photos
from transformatcher.images import read_image
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.propagate import KeypointPropagator
from transformatcher.inference.propagate_inputs import read_annotations

NEAR = 8.0  # pixels: half a cell of the small matcher


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """Three photos of one thing and one of another."""
    make_photos(tmp_path / "photos", {"a.png": 0, "b.png": 0, "deep/c.png": 0, "other.png": 5})
    with open_project(tmp_path / "photos") as project:
        add_thing(project)
        yield project


def count_matches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many photos were matched, call by call."""
    counts: list[int] = []
    original = Matcher.match_many

    def counted(self, src, targets, keypoints=None, batch=4):
        targets = list(targets)
        counts.append(len(targets))
        return original(self, src, targets, keypoints, batch)

    monkeypatch.setattr(Matcher, "match_many", counted)
    return counts


def assert_near(found: dict[str, tuple[float, float]], expected: dict[str, tuple[float, float]]) -> None:
    assert found.keys() == expected.keys()
    for name, xy in expected.items():
        assert np.linalg.norm(np.subtract(found[name], xy)) < NEAR, name


def test_nothing_to_predict_without_a_reference(project: Project, matcher: Matcher):
    predictor = Predictor(project, matcher)
    predictor.run()
    assert predictor.progress().state == "no_references"
    assert not project.instances()
    assert all(photo.size == (120, photo.size[1]) for photo in project.photos() if photo.size)  # but read already
    assert predictor.suggestion() in {photo.id for photo in project.photos()}


def test_marks_reach_all_photos(project: Project, matcher: Matcher):
    reference = mark_and_accept(project, "a.png")
    predictor = Predictor(project, matcher)
    seen: list[tuple[int, int]] = []
    predictor.run(lambda done, total: seen.append((done, total)))
    assert seen[-1] == (3, 3)
    assert predictor.progress().state == "idle"
    assert_near(predicted_points(project, "b.png"), POINTS)
    assert_near(predicted_points(project, "deep/c.png"), POINTS)
    (instance,) = project.instances([photo_named(project, "b.png").id])
    assert {prediction.reference for prediction in instance.predictions.values()} == {reference.id}
    assert instance.predicted_at is not None
    assert not instance.marks


def test_the_vote_is_that_of_propagate(tmp_path: Path):
    """The same references on the same photo, from a COCO file and from a project."""
    matcher = two_pass_matcher()
    folder = make_photos(tmp_path / "photos", {"a.png": 0, "b.png": 1, "target.png": 0})
    marked = {"a.png": POINTS, "b.png": {name: POINTS[name] for name in ("one", "two")}}
    flat = {image: [v for name in POINTS for v in (*POINTS[name], 2 * (name in marked[image]))] for image in marked}
    data = {
        "images": [{"id": i, "file_name": image} for i, image in enumerate(flat)],
        "annotations": [
            {"id": i, "image_id": i, "category_id": 1, "keypoints": values} for i, values in enumerate(flat.values())
        ],
        "categories": [{"id": 1, "name": "thing", "keypoints": list(POINTS)}],
    }
    notes = tmp_path / "notes.json"
    notes.write_text(json.dumps(data))
    references = read_annotations(notes, folder, "thing").references
    (expected,) = KeypointPropagator(matcher, references)([read_image(folder / "target.png")])
    with open_project(folder) as project:
        add_thing(project)
        for image, points in marked.items():
            mark_and_accept(project, image, points)
        Predictor(project, matcher).run()
        (instance,) = project.instances([photo_named(project, "target.png").id])
        found = predicted_points(project, "target.png")
    np.testing.assert_allclose(list(found.values()), expected["thing"].kps_px, atol=0.01)
    confidence = [prediction.confidence for prediction in instance.predictions.values()]
    np.testing.assert_allclose(confidence, expected["thing"].confidence, atol=1e-4)
    assert instance.same_kind == pytest.approx(expected["thing"].same_kind)


def test_nothing_is_computed_twice(project: Project, matcher: Matcher, monkeypatch: pytest.MonkeyPatch):
    mark_and_accept(project, "a.png")
    predictor = Predictor(project, matcher)
    predictor.run()
    counts = count_matches(monkeypatch)
    predictor.run()
    Predictor(project, matcher).run()  # as after a restart
    assert counts == []
    mark_and_accept(project, "other.png")  # a new reference: only its votes are missing
    predictor.run()
    assert sum(counts) == 2
    predictor.matcher.precision = "bfloat16"
    Predictor(project, matcher).run()  # another way to compute: all votes anew
    predictor.matcher.precision = "auto"
    assert sum(counts) == 2 + 4


def test_features_are_read_from_disk(project: Project, matcher: Matcher, monkeypatch: pytest.MonkeyPatch):
    Predictor(project, matcher).run()
    mark_and_accept(project, "a.png")

    def encode(*_: object, **_options: object) -> None:
        pytest.fail("the features of all photos are on disk")

    monkeypatch.setattr(Matcher, "encode", encode)
    Predictor(project, matcher).run()
    assert_near(predicted_points(project, "b.png"), POINTS)


def test_a_moved_mark_moves_the_predictions(project: Project, matcher: Matcher):
    reference = mark_and_accept(project, "a.png")
    predictor = Predictor(project, matcher)
    predictor.run()
    keypoint = project.categories()[0].keypoints[0]
    set_mark(project, reference.id, keypoint.id, 2, (60.0, 60.0))
    predictor.run()
    assert_near(predicted_points(project, "b.png"), {**POINTS, "one": (60, 60)})


def test_what_is_reviewed_stays(project: Project, matcher: Matcher):
    mark_and_accept(project, "a.png")
    predictor = Predictor(project, matcher)
    predictor.run()
    photo = photo_named(project, "b.png")
    accept(project, photo.id)
    before = project.instances([photo.id])
    mark_and_accept(project, "other.png")
    predictor.run()
    assert project.instances([photo.id]) == before


def test_a_half_marked_object_keeps_its_marks_and_lends_them(project: Project, matcher: Matcher):
    mark(project, "a.png", {"one": POINTS["one"]})
    mark(project, "b.png", {"two": POINTS["two"]})
    Predictor(project, matcher).run()
    assert predicted_points(project, "deep/c.png").keys() == {"one", "two"}
    (instance,) = project.instances([photo_named(project, "a.png").id])
    assert len(instance.marks) == 1
    assert "two" in predicted_points(project, "a.png")


def test_of_many_references_the_most_similar_vote(project: Project, matcher: Matcher):
    alike = mark_and_accept(project, "a.png")
    mark_and_accept(project, "other.png")
    Predictor(project, matcher, most_references=1).run()
    (instance,) = project.instances([photo_named(project, "b.png").id])
    votes = project.database.rows("SELECT reference_id FROM vote WHERE instance_id = ?", instance.id)
    assert [row["reference_id"] for row in votes] == [alike.id]


def test_an_object_is_looked_for_inside_its_box(project: Project, matcher: Matcher):
    mark_and_accept(project, "a.png")
    photo = photo_named(project, "b.png")
    instance = add_instance(project, photo.id, project.categories()[0].id, (0.0, 0.0, 100.0, 60.0))
    Predictor(project, matcher).run()
    found = project.instance(instance.id).predictions.values()
    assert all(x <= 110 and y <= 70 for x, y in (prediction.xy for prediction in found))
    change_box(project, instance.id, (50.0, 30.0, 202.0, 120.0))
    Predictor(project, matcher).run()
    found = project.instance(instance.id).predictions.values()
    assert all(x >= 34 and y >= 14 for x, y in (prediction.xy for prediction in found))


def test_a_reference_with_a_box(project: Project, matcher: Matcher):
    mark(project, "a.png", POINTS, box=(20.0, 10.0, 180.0, 110.0))
    Predictor(project, matcher).run()
    assert predicted_points(project, "b.png").keys() == POINTS.keys()


def test_an_object_of_the_same_photo_does_not_vote(project: Project, matcher: Matcher):
    mark(project, "a.png", POINTS)
    photo = photo_named(project, "a.png")
    second = add_instance(project, photo.id, project.categories()[0].id, (100.0, 20.0, 200.0, 110.0))
    Predictor(project, matcher).run()
    assert not project.instance(second.id).predictions


def test_a_photo_takes_the_category_that_it_shows(tmp_path: Path):
    make_photos(tmp_path / "photos", {"a.png": 0, "b.png": 5, "like_a.png": 0, "like_b.png": 5})
    matcher = two_pass_matcher()
    kinds = {"a": 0.9, "b": 0.2}
    with open_project(tmp_path / "photos") as project:
        first = add_thing(project)
        mark_and_accept(project, "a.png")
        second = add_category(project, "other thing", ["four"])
        photo = photo_named(project, "b.png")
        instance = add_instance(project, photo.id, second.id)
        set_mark(project, instance.id, second.keypoints[0].id, 2, (50.0, 50.0))
        accept(project, photo.id)
        predictor = Predictor(project, matcher)
        original = predictor._cast

        def cast(reference, names, targets):  # the small matcher finds everything of the same kind
            for target, (state, vote) in original(reference, names, targets):
                shown = "a" if "a" in target.path else "b"
                likely = kinds["a" if (reference.category_id == first.id) == (shown == "a") else "b"]
                yield target, (state, predictor_module.replace(vote, same_kind=likely))

        predictor._cast = cast
        predictor.run()
        chosen = {project.photo(i.photo_id).path: i.category_id for i in project.instances() if not i.reviewed}
        assert chosen == {"like_a.png": first.id, "like_b.png": second.id}


def test_an_object_of_a_person_keeps_its_category(project: Project, matcher: Matcher):
    other = add_category(project, "other thing", ["four"])
    photo = photo_named(project, "b.png")
    instance = add_instance(project, photo.id, other.id)
    mark_and_accept(project, "a.png")
    Predictor(project, matcher).run()
    assert project.instance(instance.id).category_id == other.id
    assert not project.instance(instance.id).predictions


def test_a_box_replaces_the_object_that_was_added_by_itself(project: Project, matcher: Matcher):
    mark_and_accept(project, "a.png")
    Predictor(project, matcher).run()
    photo = photo_named(project, "b.png")
    (automatic,) = project.instances([photo.id])
    assert automatic.automatic
    drawn = add_instance(project, photo.id, automatic.category_id, (0.0, 0.0, 100.0, 60.0))
    assert [instance.id for instance in project.instances([photo.id])] == [drawn.id]
    project.undo()
    assert [instance.id for instance in project.instances([photo.id])] == [automatic.id]


def test_keypoints_that_change_in_the_middle_of_a_batch(project: Project, matcher: Matcher):
    mark_and_accept(project, "a.png")
    predictor = Predictor(project, matcher)

    def change() -> None:
        category = project.categories()[0]
        if len(category.keypoints) == 3:
            keypoints = [(keypoint.id, keypoint.name) for keypoint in category.keypoints[:2]]
            change_category(project, category.id, category.name, keypoints)

    predictor.interrupted = change
    predictor.run()
    assert predicted_points(project, "b.png").keys() == {"one", "two"}


def test_a_photo_that_cannot_be_read_is_listed(project: Project, matcher: Matcher):
    (project.folder / "broken.jpg").write_bytes(b"no photo")
    scan_photos(project)
    mark_and_accept(project, "a.png")
    Predictor(project, matcher).run()
    (summary,) = [s for s in project.summaries() if s.path == "broken.jpg"]
    assert summary.state == "failed"
    assert "image" in summary.problem
    assert project.counts() == {"failed": 1, "predicted": 3, "reviewed": 1}


def test_a_photo_that_changes_under_our_hands(project: Project, matcher: Matcher):
    mark_and_accept(project, "a.png")
    Predictor(project, matcher, cache_bytes=0).run()
    make_photo(1).resize((99, 77)).save(project.folder / "b.png")
    mark_and_accept(project, "other.png")
    Predictor(project, matcher, cache_bytes=0).run()
    assert "has changed" in photo_named(project, "b.png").problem
    os.utime(project.folder / "b.png", ns=(1, 1))
    scan_photos(project)
    Predictor(project, matcher, cache_bytes=0).run()
    assert photo_named(project, "b.png").size == (77, 99)


def test_an_object_removed_in_the_middle_of_a_batch(project: Project, matcher: Matcher):
    mark_and_accept(project, "a.png")
    instance = add_instance(project, photo_named(project, "b.png").id, project.categories()[0].id)
    predictor = Predictor(project, matcher)
    predictor.interrupted = lambda: remove_instance(project, instance.id) if instance in project.instances() else None
    predictor.run()
    assert photo_named(project, "deep/c.png").id in {i.photo_id for i in project.instances()}
    assert not project.database.rows("PRAGMA foreign_key_check")


def test_photos_on_the_screen_come_first(project: Project, matcher: Matcher):
    mark_and_accept(project, "a.png")
    predictor = Predictor(project, matcher, batch=1)
    predictor.look_at([photo_named(project, "other.png").id])
    predictor.step()
    assert [project.photo(i.photo_id).path for i in project.instances() if not i.reviewed] == ["other.png"]


def test_an_open_photo_is_made_ready_before_the_rest_is_predicted(project: Project, matcher: Matcher):
    reference = mark_and_accept(project, "a.png")
    before = Predictor(project, matcher, batch=1)
    before.look_at([photo_named(project, "b.png").id])
    before.step()
    predictor = Predictor(project, matcher, batch=1)  # the program was started again
    predictor.look_at([photo_named(project, "b.png").id])
    predictor.step()
    assert [project.photo(i.photo_id).path for i in project.instances() if not i.reviewed] == ["b.png"]
    set_mark(project, reference.id, project.categories()[0].keypoints[0].id, 2, (60.0, 60.0))
    assert predictor.revote() == [photo_named(project, "b.png").id]


def test_references_are_read_by_their_ids(project: Project):
    first, second = (mark_and_accept(project, name) for name in ("a.png", "b.png"))
    categories = project.categories()
    found = find_references(project, categories)
    assert [reference.id for reference in found] == [first.id, second.id]
    (one,) = find_references(project, categories, [second.id, 99])
    assert one is found[1]  # as nothing has changed
    assert find_references(project, categories, []) == []
    set_mark(project, second.id, categories[0].keypoints[0].id, 2, (60.0, 60.0))
    (moved,) = find_references(project, categories, [second.id])
    assert moved.state != one.state
    assert moved.kps_px[0].tolist() == [60, 60]


class TestRevote:
    def test_it_follows_a_moved_point_without_the_network(
        self, project: Project, matcher: Matcher, monkeypatch: pytest.MonkeyPatch
    ):
        reference = mark_and_accept(project, "a.png")
        predictor = Predictor(project, matcher)
        photo = photo_named(project, "b.png")
        predictor.run()
        predictor.look_at([photo.id])
        predictor.run()  # makes the photos on the screen ready
        set_mark(project, reference.id, project.categories()[0].keypoints[0].id, 2, (60.0, 60.0))
        counts = count_matches(monkeypatch)
        assert predictor.revote() == [photo.id]
        assert counts == []
        assert_near(predicted_points(project, "b.png"), {**POINTS, "one": (60, 60)})
        assert_near(predicted_points(project, "deep/c.png"), POINTS)  # is not on the screen
        assert predictor.revote() == []  # only once
        predictor.run()  # and then again, as if nobody had been in a hurry
        assert sum(counts) == 3

    def test_reviewed_photos_stay(self, project: Project, matcher: Matcher):
        reference = mark_and_accept(project, "a.png")
        predictor = Predictor(project, matcher)
        photo = photo_named(project, "b.png")
        predictor.look_at([photo.id])
        predictor.run()
        Predictor(project, matcher).run()
        accept(project, photo.id)
        set_mark(project, reference.id, project.categories()[0].keypoints[0].id, 2, (60.0, 60.0))
        assert predictor.revote() == []

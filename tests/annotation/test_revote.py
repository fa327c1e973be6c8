"""Matched pairs in memory: heat maps, and what they weigh. New votes: test_predictor.py."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.annotation import add_thing, make_photos, mark_and_accept, open_project, photo_named, predicted_points
from helpers.propagation import make_photo
from helpers.two_passes import two_pass_matcher
from PIL import ImageOps

from transformatcher.annotation.edits import add_instance, remove_mark, set_mark
from transformatcher.annotation.predictor import Predictor
from transformatcher.annotation.project import Project
from transformatcher.annotation.revote import HeatMap
from transformatcher.inference.matcher import Matcher

NEAR = 10.0  # pixels: about a cell of the small matcher


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with open_project(make_photos(tmp_path / "photos", {"a.png": 0, "b.png": 0})) as project:
        yield project


def peak(heat: HeatMap) -> tuple[float, float]:
    """Where it is hottest, in pixels of the photo."""
    h, w = heat.values.shape
    row, column = np.unravel_index(heat.values.argmax(), (h, w))
    x0, y0, x1, y1 = heat.box
    return float(x0 + (column + 0.5) / w * (x1 - x0)), float(y0 + (row + 0.5) / h * (y1 - y0))


def look(project: Project, matcher: Matcher, name: str = "b.png") -> tuple[Predictor, int, dict[str, int]]:
    """A photo on the screen, predicted: the predictor, the object, and its keypoints' ids by name."""
    predictor = Predictor(project, matcher)
    predictor.look_at([photo_named(project, name).id])
    predictor.run()
    (instance,) = project.instances([photo_named(project, name).id])
    category = project.category(instance.category_id)
    return predictor, instance.id, {keypoint.name: keypoint.id for keypoint in category.keypoints}


def test_it_is_hottest_where_the_keypoint_is_predicted(project: Project, matcher: Matcher):
    add_thing(project)
    mark_and_accept(project, "a.png")
    predictor, instance, ids = look(project, matcher)
    for name, xy in predicted_points(project, "b.png").items():
        heat = predictor.heatmap(instance, ids[name])
        assert heat is not None
        assert heat.box == (0, 0, 202, 120)
        assert heat.values.max() == 255
        assert np.abs(np.subtract(peak(heat), xy)).max() < NEAR


def test_within_a_box(project: Project, matcher: Matcher):
    category = add_thing(project)
    mark_and_accept(project, "a.png")
    add_instance(project, photo_named(project, "b.png").id, category.id, (30.0, 20.0, 170.0, 100.0))
    predictor, instance, ids = look(project, matcher)
    heat = predictor.heatmap(instance, ids["one"])
    assert heat is not None
    assert heat.box == (16, 6, 184, 114)  # with the margin
    assert np.abs(np.subtract(peak(heat), predicted_points(project, "b.png")["one"])).max() < NEAR


def test_sides_are_exchanged_where_the_match_is_mirrored(project: Project):
    ImageOps.mirror(make_photo(0)).save(project.folder / "b.png")
    add_thing(project, ("left eye", "right eye", "nose"))
    points = {"left eye": (40, 30), "right eye": (150, 30), "nose": (100, 90)}
    mark_and_accept(project, "a.png", points)
    predictor, instance, ids = look(project, two_pass_matcher())
    found = predicted_points(project, "b.png")
    assert abs(found["left eye"][0] - 50) < NEAR  # what was the right eye
    for name, xy in found.items():
        heat = predictor.heatmap(instance, ids[name])
        assert heat is not None
        assert np.abs(np.subtract(peak(heat), xy)).max() < NEAR


def test_there_is_none(project: Project, matcher: Matcher):
    category = add_thing(project)
    reference = mark_and_accept(project, "a.png")
    predictor, instance, ids = look(project, matcher)
    assert predictor.heatmap(instance, 999) is None
    assert predictor.heatmap(reference.id, ids["one"]) is None  # a person has set it
    assert Predictor(project, matcher).heatmap(instance, ids["one"]) is None  # after a restart
    remove_mark(project, reference.id, category.keypoints[0].id)
    assert predictor.heatmap(instance, ids["one"]) is None
    assert predictor.heatmap(instance, ids["two"]) is not None
    for keypoint in category.keypoints[1:]:
        set_mark(project, reference.id, keypoint.id, 0, None)
    assert predictor.heatmap(instance, ids["two"]) is None


def test_pairs_are_kept_without_pixels(project: Project, matcher: Matcher):
    add_thing(project)
    mark_and_accept(project, "a.png")
    predictor, *_ = look(project, matcher)
    pairs = [known.pair for known in predictor.revoting._pairs.values()]
    assert len(pairs) == 1
    for photo, size in ((pairs[0].src, (120, 200)), (pairs[0].trg, (120, 202))):
        assert photo.size == size
        assert photo.pixels.strides == (0, 0, 0)  # one byte for all
        assert photo.features == []

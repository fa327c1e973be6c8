"""What the photos of a project take of the memory while they are encoded."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.annotation import add_thing, make_photos, mark_and_accept, open_project

from transformatcher.annotation import region_encoder
from transformatcher.annotation.predictor import Predictor
from transformatcher.annotation.project import Project
from transformatcher.annotation.references import find_references
from transformatcher.annotation.targets import find_targets
from transformatcher.inference.matcher import Matcher

NAMES = {"a.png": 0, "b.png": 1, "c.png": 2, "d.png": 3}
PIXELS = 210 * 120  # of a photo, about


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with open_project(make_photos(tmp_path / "photos", NAMES)) as project:
        add_thing(project)
        yield project


@pytest.mark.parametrize(("limit", "n"), [(4 * PIXELS, 3), (2 * PIXELS, 2), (10, 1)])
def test_few_large_photos_are_read_ahead(
    project: Project, matcher: Matcher, limit: int, n: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(region_encoder, "MAX_AHEAD_PIXELS", limit)
    mark_and_accept(project, "a.png")
    predictor = Predictor(project, matcher)
    references = find_references(project, project.categories())
    targets = find_targets(project, project.categories(), {references[0].category_id: references}, "model")
    predictor.encoder.decode_ahead(targets)
    assert [targets[i].photo_id for i in range(n)] == list(predictor.encoder._decoding)
    predictor.run()  # those that were not read ahead are read when they are needed
    assert project.counts()["predicted"] == 3


@pytest.mark.parametrize(("limit", "n"), [(5 * PIXELS, 4), (2 * PIXELS, 2), (10, 1)])
def test_few_large_references_stay_in_memory(
    project: Project, matcher: Matcher, limit: int, n: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(region_encoder, "MAX_ENCODED_PIXELS", limit)
    for name in NAMES:
        mark_and_accept(project, name)
    encoder = Predictor(project, matcher).encoder
    references = find_references(project, project.categories())
    for reference in references:
        photo = encoder.encode_reference(reference)
        assert photo is not None
    assert list(encoder._references) == [reference.region.key for reference in references[-n:]]


def test_a_part_of_a_photo_does_not_keep_all_of_it(project: Project, matcher: Matcher):
    mark_and_accept(project, "a.png")
    (reference,) = find_references(project, project.categories())
    region = replace(reference.region, box=(20.0, 20.0, 60.0, 60.0))
    photo = Predictor(project, matcher).encoder.encode([region])[region.key]
    assert photo.size == (48, 48)
    assert photo.pixels.base is None

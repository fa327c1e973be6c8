"""A simulated person: every decision is one click, and photos are finished in the order of the studio."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from helpers.propagation import POINTS, make_photo
from helpers.two_passes import two_pass_matcher

from transformatcher.annotation.known_photos import KnownPhoto, choose_photos, fingerprint
from transformatcher.annotation.simulate import Rules, read_simulated_run, run_name, simulate
from transformatcher.annotation.simulation_report import make_report
from transformatcher.data.coco_keypoints import AnnotatedObject
from transformatcher.errors import InputError
from transformatcher.inference.matcher import Matcher

NAMES = tuple(POINTS)
BOX = np.array([30.0, 20.0, 160.0, 100.0])  # its longer side is 130 pixels


def thing(image: Path, *, missing: tuple[str, ...] = (), shift: float = 0.0, box: np.ndarray | None = BOX):
    kps = np.array(list(POINTS.values()), dtype=float)
    visible = np.array([name not in missing for name in NAMES])
    kps[0] += shift
    return AnnotatedObject(image.stem, image, (120, 200), "thing", kps, visible, box, NAMES)


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """The same photo under five names."""
    paths = [tmp_path / "given" / f"{name}.png" for name in "abcde"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        make_photo(0).save(path)
    return paths


@pytest.fixture(scope="module")
def sure() -> Matcher:
    return two_pass_matcher()


def known(*objects: AnnotatedObject) -> list[KnownPhoto]:
    return [KnownPhoto(item.image, (item,)) for item in objects]


def test_right_predictions_cost_the_click_that_accepts_them(images: list[Path], sure: Matcher, tmp_path: Path):
    seen: list[int] = []
    run = simulate(sure, known(*map(thing, images)), Rules(), tmp_path / "work", track=seen.append)
    assert [step.clicks for step in run.steps] == [4, 1, 1, 1, 1]
    assert (run.clicks, run.by_hand) == (8, 5 * 4)
    assert seen == [1, 2, 3, 4, 5]
    assert sorted(step.image for step in run.steps) == [f"{i:05d}.png" for i in range(5)]
    assert run.mean_error < 0.06
    assert [row.references for row in run.unreviewed] == [1, 2, 3]
    first = run.unreviewed[0]
    assert (first.clicks, first.photos, first.photos_right, first.visible, first.found) == (4, 4, 4, 12, 12)


def test_each_correction_is_one_click(images: list[Path], sure: Matcher, tmp_path: Path):
    a, b, c, d, e = images
    objects = [thing(a), thing(b), thing(c), thing(d, shift=60), thing(e, missing=("two", "three"))]
    rules = Rules(
        "random", references=1, seed=next(s for s in range(99) if np.random.default_rng(s).permutation(5)[0] == 0)
    )
    run = simulate(sure, known(*objects), rules, tmp_path / "work")
    steps = {step.image: step for step in run.steps}
    assert run.steps[0].image == "00000.png"
    assert (steps["00000.png"].placed, steps["00000.png"].clicks) == (3, 4)
    assert [steps[f"0000{i}.png"].clicks for i in (1, 2)] == [1, 1]
    moved, removed = steps["00003.png"], steps["00004.png"]
    assert (moved.placed, moved.moved, moved.removed, moved.clicks, moved.by_hand) == (0, 1, 0, 2, 4)
    assert (removed.placed, removed.moved, removed.removed, removed.clicks, removed.by_hand) == (0, 0, 2, 3, 2)
    before = run.unreviewed[0]
    assert (before.visible, before.found, before.absent, before.left_out, before.photos_right) == (10, 9, 2, 0, 2)


def test_a_wider_tolerance_accepts_more(images: list[Path], sure: Matcher, tmp_path: Path):
    objects = known(*(thing(image, shift=20 * (number == 4)) for number, image in enumerate(images)))
    clicks = [
        simulate(sure, objects, Rules("random", 1, tolerance, seed=1), tmp_path / "work").clicks
        for tolerance in (0.3, 0.1)
    ]
    assert clicks[0] < clicks[1]


def test_unsure_points_are_placed_anew(images: list[Path], tmp_path: Path):
    unsure = two_pass_matcher(confidence_logit=-2.0)
    run = simulate(unsure, known(*map(thing, images)), Rules(), tmp_path / "work")
    assert run.clicks == run.by_hand
    assert all(step.placed == 3 and step.moved == 0 for step in run.steps)
    assert run.unreviewed[0].found == 0
    assert run.mean_error == 0
    absent = [thing(images[0]), *(thing(image, missing=("two",)) for image in images[1:])]
    left = simulate(unsure, known(*absent), Rules("random", 1, seed=0), tmp_path / "other").unreviewed[0]
    assert left.left_out == left.absent > 0


def test_only_some_photos_are_predicted_anew(images: list[Path], sure: Matcher, tmp_path: Path):
    objects = known(*map(thing, images))
    run = simulate(sure, objects, Rules(references=1, refresh=1), tmp_path / "work", batch=4)
    assert run.clicks == 8


def test_objects_with_boxes(images: list[Path], sure: Matcher, tmp_path: Path):
    photos = [KnownPhoto(image, (thing(image), thing(image))) for image in images[:3]]
    run = simulate(sure, photos, Rules(references=1), tmp_path / "work", boxes=True)
    assert [step.by_hand for step in run.steps] == [7, 7, 7]
    assert run.steps[0].clicks == 7
    assert run.unreviewed[0].visible == 12
    assert run.clicks < run.by_hand


@pytest.mark.parametrize("first", ["suggested", "random", "least_like"])
def test_a_run_is_read_as_it_was_written(images: list[Path], sure: Matcher, tmp_path: Path, first):
    run = simulate(sure, known(*map(thing, images)), Rules(first), tmp_path / "work")
    assert len({step.image for step in run.steps}) == 5
    assert read_simulated_run(json.loads(json.dumps(asdict(run)))) == run
    assert run.name == run_name("thing", run.rules) == f"thing, {first}, 0.1"


def test_the_report_has_shares_and_means(images: list[Path], sure: Matcher, tmp_path: Path):
    run = simulate(sure, known(*map(thing, images)), Rules(), tmp_path / "work")
    dear = replace(run, category="other", steps=[replace(step, placed=3) for step in run.steps])
    report = make_report([run, dear])
    assert report["runs"][0]["clicks"] == [4, 5, 6, 7, 8]
    assert report["runs"][0]["by_hand"] == [4, 8, 12, 16, 20]
    assert [row["share"] for row in report["runs"]] == [0.4, 1.0]
    assert report["runs"][0]["untouched"] == 4
    (mean,) = report["means"]
    assert (mean["share"], mean["least"], mean["most"], mean["categories"]) == (pytest.approx(0.7), 0.4, 1.0, 2)
    assert mean["one_reference"] == 1.0
    json.dumps(report)


def test_which_photos_are_taken(tmp_path: Path):
    single = [thing(tmp_path / f"{i}.png") for i in range(9)]
    double = [replace(thing(tmp_path / "two.png"), id=str(i)) for i in range(2)]
    mixed = [thing(tmp_path / "mixed.png"), replace(thing(tmp_path / "mixed.png"), category="pot")]
    objects = [*single, *double, *mixed]
    assert [p.image.stem for p in choose_photos(objects, "thing", 3)] == ["0", "4", "8"]
    assert len(choose_photos(objects, "thing", 60)) == 9
    with_boxes = {p.image.stem: len(p.objects) for p in choose_photos(objects, "thing", 60, boxes=True)}
    assert with_boxes == {**{str(i): 1 for i in range(9)}, "two": 2, "mixed": 1}
    boxless = [*objects, thing(tmp_path / "none.png", box=None)]
    assert "none" not in {p.image.stem for p in choose_photos(boxless, "thing", 60, boxes=True)}
    assert choose_photos(single, "thing", 2)[0].clicks_by_hand == 4
    with pytest.raises(InputError, match="no annotated object is of the category 'cup'; there are pot, thing"):
        choose_photos(objects, "cup", 3)
    with pytest.raises(InputError, match="0 photos of pot can be used, two are the least"):
        choose_photos(objects, "pot", 3)


def test_without_a_box_the_keypoints_are_measured(images: list[Path], sure: Matcher, tmp_path: Path):
    objects = known(*(thing(image, box=None) for image in images))
    assert simulate(sure, objects, Rules(), tmp_path / "work").clicks == 8


def test_the_fingerprint_tells_other_data(tmp_path: Path):
    item = thing(tmp_path / "a.png")
    others = [
        thing(tmp_path / "b.png"),
        thing(tmp_path / "a.png", shift=1),
        thing(tmp_path / "a.png", missing=("one",)),
    ]
    prints = {fingerprint([one]) for one in (item, *others, thing(tmp_path / "a.png", box=None))}
    assert len(prints) == 5
    assert fingerprint([item]) == fingerprint([thing(tmp_path / "a.png")])


def test_photos_that_cannot_be_used(images: list[Path], sure: Matcher, tmp_path: Path):
    objects = known(*map(thing, images))
    images[2].write_bytes(b"no photo")
    with pytest.raises(InputError, match=r"c\.png: not an image"):
        simulate(sure, objects, Rules(), tmp_path / "work")
    images[2].unlink()
    with pytest.raises(InputError, match=r"c\.png: cannot be read"):
        simulate(sure, objects, Rules(), tmp_path / "other")
    odd = images[0].rename(images[0].with_suffix(".odd"))
    with pytest.raises(InputError, match=r"a\.odd: not a photo by its name"):
        simulate(sure, known(thing(odd), thing(images[1])), Rules(), tmp_path / "third")

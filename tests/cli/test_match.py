"""``match``: tables, JSON, pictures, and the sentence that a mistake gets."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import write_image
from helpers.command import run
from helpers.propagation import POINTS, make_photo
from helpers.two_passes import two_pass_matcher
from PIL import ImageOps

from transformatcher.cli import match as module
from transformatcher.errors import printable


def test_json_and_picture(spair_root: Path, tmp_path: Path, raw, capsys):
    images = [spair_root / "JPEGImages" / "cat" / name for name in ("a.jpg", "b.jpg")]
    picture = tmp_path / "p.png"
    assert run("match", *images, "--keypoints", "10,20;30,40", "--json", "--out", picture, *raw) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["keypoints0"] == [[10, 20], [30, 40]]
    assert len(result["keypoints1"]) == len(result["confidence"]) == 2
    assert picture.stat().st_size > 10_000
    points = tmp_path / "points.json"
    points.write_text('{"\\ud800": [10, 20]}')  # half a character
    assert run("match", *images, "--keypoints", points, *raw) == 2
    points.write_text('{"[/x] [bold]": [10, 20]}')
    capsys.readouterr()
    assert run("match", *images, "--keypoints", points, *raw) == 0
    assert "│ [/x] [bold] │" in capsys.readouterr().out
    points.write_text('{"nose": [10, 20]}')
    assert run("match", *images, "--keypoints", points, *raw) == 0
    printed = capsys.readouterr().out
    assert "1 points of a.jpg on b.jpg" in printed
    assert "│  nose │" in printed
    assert run("match", *images, "--keypoints", points, "--json", *raw) == 0
    assert json.loads(capsys.readouterr().out)["names"] == ["nose"]
    assert run("match", *images, *raw) == 0
    assert "no match" not in capsys.readouterr().out  # of what it picked by itself


def test_flow_and_heatmap(spair_root: Path, tmp_path: Path, raw, capsys):
    images = [spair_root / "JPEGImages" / "cat" / name for name in ("a.jpg", "b.jpg")]
    arguments = ["--flow", tmp_path / "new" / "flow.jpg", "--heatmap", tmp_path / "heat.png"]
    assert run("match", *images, "--keypoints", "10,20", *arguments, *raw) == 0
    assert f"picture: {tmp_path / 'heat.png'}" in capsys.readouterr().out
    assert (tmp_path / "heat.png").stat().st_size > 10_000
    assert (tmp_path / "new" / "flow.jpg").stat().st_size > 10_000
    assert run("match", *images, "--keypoints", "10,20;30,40", *arguments[2:], "--json", *raw) == 0
    assert {"heat-1.png", "heat-2.png"} <= {path.name for path in tmp_path.iterdir()}


def test_several_targets(spair_root: Path, tmp_path: Path, raw, capsys):
    a, b = (spair_root / "JPEGImages" / "cat" / name for name in ("a.jpg", "b.jpg"))
    other = write_image(tmp_path / "b.png", (50, 90), seed=5)
    points = ["--keypoints", "10,20;30,40", *raw]
    alone = []
    for target in (b, a, other):
        assert run("match", a, target, "--json", *points) == 0
        alone.append(json.loads(capsys.readouterr().out))
    out = tmp_path / "new" / "folder"
    pictures = ["--out", out, "--flow", out, "--heatmap", out]
    assert run("match", a, b, a, other, "--json", "--batch", 2, "--threads", 1, *pictures, *points) == 0
    together = json.loads(capsys.readouterr().out)
    assert [entry.pop("target") for entry in together] == [str(b), str(a), str(other)]
    for one, many in zip(alone, together, strict=True):
        assert one.keys() == many.keys()
        for key in ("keypoints0", "keypoints1", "confidence"):
            np.testing.assert_allclose(one[key], many[key], atol=2e-3)
    kinds = ("", "-flow", "-heatmap-1", "-heatmap-2")
    names = {f"{stem}{kind}.png" for stem in ("a-b", "a-a", "a-b (2)") for kind in kinds}
    assert {path.name for path in out.iterdir()} == names
    assert run("match", a, b, other, *points) == 0
    printed = capsys.readouterr().out
    assert "2 points of a.jpg on b.jpg" in printed
    assert "2 points of a.jpg on b.png" in printed


@pytest.fixture
def mirrored_pair(tmp_path: Path) -> list[Path]:
    """A photo and its mirror image."""
    photo, paths = make_photo(0), [tmp_path / "left.png", tmp_path / "right.png"]
    photo.save(paths[0])
    ImageOps.mirror(photo).save(paths[1])
    return paths


KEYPOINTS = ["--keypoints", ";".join(f"{x},{y}" for x, y in POINTS.values())]


def test_what_the_pair_shows_is_in_the_json(mirrored_pair, raw, capsys, monkeypatch):
    photo, mirror = mirrored_pair
    assert run("match", photo, photo, *KEYPOINTS, "--json", *raw) == 0
    once = json.loads(capsys.readouterr().out)
    assert (once["same_kind"], once["mirrored"]) == (None, False)  # matched once, it does not tell
    monkeypatch.setattr(module, "load_matcher", lambda _args: (two_pass_matcher(same_kind_logit=-2.0), "a model"))
    assert run("match", photo, photo, mirror, *KEYPOINTS, "--json") == 0
    same, other_way = json.loads(capsys.readouterr().out)
    assert (same["same_kind"], same["mirrored"]) == (0.119, False)
    assert (other_way["same_kind"], other_way["mirrored"]) == (0.119, True)


def test_what_the_pair_shows_is_said_below_the_table(mirrored_pair, capsys, monkeypatch):
    photo, mirror = mirrored_pair
    mirrored = "mirrored: the objects face opposite ways, so the mirror image of left.png was matched; left and right"
    other = "left.png and {} probably do not show the same kind of thing: the probability that they do is 0.12"
    for logit, target, expected in (
        (2.0, photo, []),
        (2.0, mirror, [mirrored]),
        (-2.0, photo, [other.format("left.png")]),
        (-2.0, mirror, [mirrored, other.format("right.png")]),
    ):
        matcher = two_pass_matcher(same_kind_logit=logit)
        monkeypatch.setattr(module, "load_matcher", lambda _args, matcher=matcher: (matcher, "a model"))
        assert run("match", photo, target, *KEYPOINTS) == 0
        below = capsys.readouterr().out.split("┘\n")[1].splitlines()
        assert len(below) == len(expected)
        assert all(line.startswith(start) for line, start in zip(below, expected, strict=True))


def test_no_table_without_a_match(mirrored_pair, tmp_path: Path, capsys, monkeypatch):
    matcher = two_pass_matcher(confidence_logit=-2.0)
    monkeypatch.setattr(module, "load_matcher", lambda _args: (matcher, "a model"))
    photo = mirrored_pair[0]
    assert run("match", photo, photo, "--out", tmp_path / "p.png") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("no point of left.png has a match on left.png; with --keypoints, ")
    assert "│" not in printed
    assert run("match", photo, photo, *KEYPOINTS) == 0
    assert "no match (" in capsys.readouterr().out  # points that are asked for are always listed


def test_many_points_are_no_file_name(spair_root: Path, raw, capsys):
    images = [spair_root / "JPEGImages" / "cat" / name for name in ("a.jpg", "b.jpg")]
    assert run("match", *images, "--keypoints", ";".join(["10,20"] * 200), "--json", *raw) == 0
    assert len(json.loads(capsys.readouterr().out)["keypoints1"]) == 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--heatmap", "heat.png"], "name points with --keypoints"),
        (["--flow", "flow.txt"], "a picture's name ends in .png"),
        (["--out", "p.png", "--flow", "p.png"], "p.png: two pictures cannot have one name"),
        (["OTHER", "--out", "p.png"], "--out p.png: 2 targets make a picture each; name a folder"),
        (["OTHER", "--flow", ""], "--flow is empty; name a folder"),
        (["--keypoints", "10;20"], "expected 'x,y;x,y'"),
        (["--keypoints", "nowhere.json"], "nowhere.json: no such file"),
        (["--keypoints", ";"], "no point there"),
        (["--keypoints", ""], "no point there"),
        (["--out", "."], ".: a folder; name the picture itself"),
        (["--keypoints", "10,2000"], "lies outside the image of 80 × 60 pixels"),
        (["--keypoints", "nan,1"], "a keypoint is NaN or infinite"),
        (["--out", "picture.txt"], "a picture's name ends in .png"),
    ],
)
def test_mistakes(spair_root: Path, raw, capsys, options, message):
    images = [spair_root / "JPEGImages" / "cat" / name for name in ("a.jpg", "b.jpg")]
    options = [images[0] if option == "OTHER" else option for option in options]
    assert run("match", *images, *options, *raw) == 2
    assert message in capsys.readouterr().err


def test_photos_that_cannot_be_used(bad_photo: tuple[Path, str], spair_root: Path, tmp_path: Path, raw, capsys):
    """One sentence that names the file, exit code 2, nothing left behind."""
    path, message = bad_photo
    good, out = spair_root / "JPEGImages" / "cat" / "a.jpg", tmp_path / "out"
    for argv in (
        ["match", good, path, "--out", out / "picture.png"],
        ["match", path, good, "--json"],
        ["match", good, good, path, good, "--out", out],  # in the middle of several
        ["match", path, good, good, "--flow", out],
    ):
        assert run(*argv, *raw) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith(printable(f"transformatcher {argv[0]}: {path}: "))
        assert message in captured.err
        assert captured.err.count("\n") == 1
        assert captured.out == ""
        assert not out.exists()

"""``warp``: three pictures."""

from pathlib import Path

import numpy as np
import pytest
from helpers.command import run
from helpers.propagation import POINTS, make_photo
from helpers.two_passes import two_pass_matcher
from PIL import Image, ImageOps

from transformatcher.cli import warp as module
from transformatcher.data.synthetic import synthetic_pair
from transformatcher.errors import printable


def test_pictures(spair_root: Path, tmp_path: Path, raw, capsys):
    image = spair_root / "JPEGImages" / "cat" / "a.jpg"
    arguments = ["--keypoints", "10,10;70,12;40,50;15,35", "--out", tmp_path / "new"]
    assert run("warp", image, image, *arguments, *raw) == 0
    assert "a.jpg warped onto a.jpg through 4 matches" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "morph.gif", "side-by-side.png", "warped.png",
    ]  # fmt: skip
    with Image.open(tmp_path / "new" / "warped.png") as warped:
        assert (warped.mode, warped.size) == ("RGBA", (80, 60))
        assert 0 < np.asarray(warped)[..., 3].mean() <= 255


def test_through_all_confident_matches(tmp_path: Path, raw, capsys):
    photo = synthetic_pair(3, size=(120, 200))[0].src_image
    assert isinstance(photo, np.ndarray)
    Image.fromarray(photo).save(tmp_path / "photo.png")
    finer = [*raw, "--set", "image_size=[128, 128]", "--set", "stages=[2]", "--set", "temperature=0.002"]
    assert run("warp", *[tmp_path / "photo.png"] * 2, "--out", tmp_path / "out", *finer) == 0
    assert "photo.png warped onto photo.png through" in capsys.readouterr().out


def test_a_mirrored_pair_is_named(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr(module, "load_matcher", lambda _args: (two_pass_matcher(same_kind_logit=-2.0), "a model"))
    make_photo(0).save(tmp_path / "left.png")
    ImageOps.mirror(make_photo(0)).save(tmp_path / "right.png")
    points = ";".join(f"{x},{y}" for x, y in POINTS.values())
    photos = [tmp_path / "left.png", tmp_path / "right.png"]
    assert run("warp", *photos, "--keypoints", points, "--out", tmp_path / "out") == 0
    warped, mirrored, other_kind, *_ = capsys.readouterr().out.splitlines()
    assert warped == "left.png warped onto right.png through 3 matches"
    assert mirrored.startswith("mirrored: the objects face opposite ways")
    assert other_kind.endswith("the probability that they do is 0.12")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keypoints", "10,20;30,40"], "2 of 2 keypoints of"),
        (["--keypoints", "10,20;30,40"], "a warp takes 3 or more"),
        (["--keypoints", "10,10;10,10;10,10"], "distinct matches; it takes 3 or more"),
        (["--keypoints", "nowhere.json"], "nowhere.json: no such file"),
        (["--out", ""], "--out is empty"),
    ],
)
def test_mistakes(spair_root: Path, tmp_path: Path, raw, capsys, options, message):
    images = [spair_root / "JPEGImages" / "cat" / name for name in ("a.jpg", "b.jpg")]
    assert run("warp", *images, "--out", tmp_path / "out", *options, *raw) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_photos_that_cannot_be_used(bad_photo: tuple[Path, str], spair_root: Path, tmp_path: Path, raw, capsys):
    """One sentence that names the file, exit code 2, nothing left behind."""
    path, message = bad_photo
    good, out = spair_root / "JPEGImages" / "cat" / "a.jpg", tmp_path / "out"
    for argv in (
        ["warp", good, path, "--out", out],
        ["warp", path, good, "--out", out],
    ):
        assert run(*argv, *raw) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith(printable(f"transformatcher {argv[0]}: {path}: "))
        assert message in captured.err
        assert captured.err.count("\n") == 1
        assert captured.out == ""
        assert not out.exists()

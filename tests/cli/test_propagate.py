"""``propagate``: annotations in, annotations out."""

import json
from pathlib import Path

import pytest
from conftest import write_image
from helpers.command import run

from transformatcher.data.coco_keypoints import load_coco_objects


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for seed, name in enumerate(("x.jpg", "y.png")):
        write_image(tmp_path / "photos" / name, seed=seed)
    return tmp_path / "photos"


def test_writes_a_file_that_reads_again(coco_root: Path, photos: Path, tmp_path: Path, raw, capsys):
    out = tmp_path / "out.json"
    arguments = [coco_root / "annotations.json", photos, "--out", out, *raw]
    assert run("propagate", *arguments, "--category", "dog", "--batch", 1) == 0
    assert f"4 keypoints on 2 images\nannotations: {out}" in capsys.readouterr().out
    objects = load_coco_objects(out, photos)
    assert [(item.category, item.image) for item in objects] == [("dog", photos / n) for n in ("x.jpg", "y.png")]
    assert run("propagate", *arguments) == 2
    assert "out.json: exists already" in capsys.readouterr().err
    assert run("propagate", *arguments, "--overwrite", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == {
        "out": str(out), "images": 2, "annotations": 4, "keypoints": 12, "no_match": 0, "failed": {},
    }  # fmt: skip


def test_a_bad_image_makes_exit_code_1(coco_root: Path, photos: Path, tmp_path: Path, raw, capsys):
    (photos / "bad.jpg").write_bytes(b"garbage")
    assert run("propagate", coco_root / "annotations.json", photos, "--out", tmp_path / "out.json", *raw) == 1
    captured = capsys.readouterr()
    assert "12 keypoints on 2 images" in captured.out
    assert "bad.jpg: not an image that can be decoded" in captured.err
    assert len(json.loads((tmp_path / "out.json").read_text())["info"]["failed"]) == 1


def test_an_interruption_says_how_to_go_on(
    coco_root: Path, photos: Path, tmp_path: Path, raw, capsys, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("transformatcher.inference.propagate.to_record", interrupted)
    assert run("propagate", coco_root / "annotations.json", photos, "--out", tmp_path / "out.json", *raw) == 130
    assert "the same command (without --overwrite) continues where it stopped" in capsys.readouterr().err
    monkeypatch.undo()
    assert run("propagate", coco_root / "annotations.json", photos, "--out", tmp_path / "out.json", *raw) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "out.txt"], "its name ends in .json"),
        (["--out", ""], "--out is empty"),
        (["--category", "horse"], "no category is called 'horse'; it has cat, dog"),
        (["--threshold", "0.3"], "confidence is not calibrated"),
        (["--images-root", "nowhere"], "no such file"),
        (["--device", "tpu9"], "choose auto"),
    ],
)
def test_mistakes(coco_root: Path, photos: Path, tmp_path: Path, raw, capsys, options, message):
    arguments = [coco_root / "annotations.json", photos, "--out", tmp_path / "out.json", *options]
    assert run("propagate", *arguments, *raw) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("out.*"))


def test_inputs_that_are_not_there(coco_root: Path, photos: Path, tmp_path: Path, raw, capsys):
    assert run("propagate", tmp_path / "gone.json", photos, "--out", tmp_path / "out.json", *raw) == 2
    assert "gone.json: no such file" in capsys.readouterr().err
    assert run("propagate", coco_root / "annotations.json", "gone", "--out", tmp_path / "out.json", *raw) == 2
    assert "gone: no such image or folder" in capsys.readouterr().err


def test_photos_that_cannot_be_used(bad_photo: tuple[Path, str], coco_root: Path, tmp_path: Path, raw, capsys):
    path, message = bad_photo
    out = tmp_path / "out.json"
    notes = json.loads((coco_root / "annotations.json").read_text())
    notes["images"][0]["file_name"] = str(path)
    (coco_root / "other.json").write_text(json.dumps(notes))
    target = write_image(tmp_path / "photos" / "x.jpg")
    assert run("propagate", coco_root / "other.json", target, "--out", out, *raw) == 2
    captured = capsys.readouterr()
    assert str(path) in captured.err
    assert message.replace(" image", "") in captured.err.replace(" image", "") or "no such file" in captured.err
    assert "Traceback" not in captured.err
    assert not list(tmp_path.glob("out.json*"))

"""``propagate``: annotations in, annotations out."""

import json
from pathlib import Path

import pytest
from conftest import write_image
from helpers.command import run

from transformatcher.data.coco_keypoints import load_coco, load_coco_objects
from transformatcher.errors import printable
from transformatcher.images import image_size


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
    objects = [item for item in load_coco_objects(out, tmp_path) if item.image.parent == photos]
    assert [(item.category, item.image) for item in objects] == [("dog", photos / n) for n in ("x.jpg", "y.png")]
    assert len(load_coco(out)) == 4  # the references alone
    assert run("propagate", *arguments, "--category", "dog") == 0
    assert "0 keypoints on 0 images; 2 more are predicted already" in capsys.readouterr().out
    assert run("propagate", *arguments, "--overwrite", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == {
        "out": str(out), "images": 2, "annotations": 4, "keypoints": 12, "no_match": 0, "kept": 0, "other_kind": [],
        "outside": [], "failed": {}, "pictures": [],
    }  # fmt: skip


def test_a_file_of_somebody_else_is_not_replaced(coco_root: Path, photos: Path, tmp_path: Path, raw, capsys):
    out = tmp_path / "out.json"
    out.write_text("{}")
    assert run("propagate", coco_root / "annotations.json", photos, "--out", out, *raw) == 2
    assert "out.json: exists already" in capsys.readouterr().err
    assert run("propagate", coco_root / "annotations.json", photos, *raw) == 2
    assert "--out OUT.json is missing" in capsys.readouterr().err


def test_a_finished_file_goes_on_with_photos_that_were_added(
    coco_root: Path, photos: Path, tmp_path: Path, raw, capsys
):
    out, sheet = tmp_path / "out.json", tmp_path / "sheet.png"
    run("propagate", coco_root / "annotations.json", photos, "--out", out, *raw)
    write_image(photos / "z.png", seed=5)
    capsys.readouterr()
    assert run("propagate", out, photos, "--out", out, "--draw", sheet, *raw) == 0
    assert capsys.readouterr().out.splitlines() == [
        "6 keypoints on 1 images; 2 more are predicted already", f"annotations: {out}", f"picture: {sheet}",
    ]  # fmt: skip
    assert image_size(sheet)[1] == 1800
    assert run("propagate", out, photos, "--out", out, "--predict-again", *raw) == 0
    assert "18 keypoints on 3 images\n" in capsys.readouterr().out


def test_points_outside_their_photo_are_named(coco_root: Path, photos: Path, tmp_path: Path, raw, capsys):
    notes = json.loads((coco_root / "annotations.json").read_text())
    notes["annotations"][0]["keypoints"][:2] = [-3, 4]
    (coco_root / "annotations.json").write_text(json.dumps(notes))
    assert run("propagate", coco_root / "annotations.json", photos, "--out", tmp_path / "out.json", *raw) == 0
    warning = "warning: points outside their photos are not used: a of 1.jpg (annotation 1)\n"
    assert warning in capsys.readouterr().err


def test_a_bad_image_makes_exit_code_1(coco_root: Path, photos: Path, tmp_path: Path, raw, capsys):
    (photos / "bad.jpg").write_bytes(b"garbage")
    assert run("propagate", coco_root / "annotations.json", photos, "--out", tmp_path / "out.json", *raw) == 1
    captured = capsys.readouterr()
    assert "12 keypoints on 2 images" in captured.out
    assert "bad.jpg: not an image that can be decoded" in captured.err
    assert len(json.loads((tmp_path / "out.json").read_text())["info"]["propagate"]["failed"]) == 1


def test_nothing_to_draw(coco_root: Path, photos: Path, tmp_path: Path, raw, capsys):
    for photo in photos.iterdir():
        photo.write_bytes(b"garbage")
    options = ["--out", tmp_path / "out.json", "--draw", tmp_path / "sheet.png", *raw]
    assert run("propagate", coco_root / "annotations.json", photos, *options) == 1
    captured = capsys.readouterr()
    assert "--draw: no photo was predicted, so there is no picture" in captured.err
    assert captured.err.count("left out: ") == 2
    assert not (tmp_path / "sheet.png").exists()


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
        (["--draw", "sheet.txt"], "a picture's name ends in .png"),
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
    for image in notes["images"]:
        image["file_name"] = f"coco/images/{image['file_name']}"
    notes["images"][0]["file_name"] = str(path.relative_to(tmp_path))
    (coco_root / "other.json").write_text(json.dumps(notes))
    target = write_image(tmp_path / "photos" / "x.jpg")
    arguments = [coco_root / "other.json", target, "--images-root", tmp_path, "--out", out]
    assert run("propagate", *arguments, *raw) == 2
    captured = capsys.readouterr()
    assert printable(f"{path}:") in captured.err
    assert message.replace(" image", "") in captured.err.replace(" image", "") or "no such file" in captured.err
    assert "Traceback" not in captured.err
    assert not list(tmp_path.glob("out.json*"))

"""``propagate`` with a project of ``annotate``: predictions in it, from its marks or from those of a COCO file."""

import json
from pathlib import Path

import pytest
from conftest import write_image
from helpers.command import run

from transformatcher.annotation.edits import accept, add_category, add_instance, set_mark
from transformatcher.annotation.project import Project
from transformatcher.annotation.scan import identify_photo, scan_photos
from transformatcher.data.coco_keypoints import load_coco_objects
from transformatcher.images import image_size


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for seed, name in enumerate(("a.png", "b.png", "deep/c.png")):
        write_image(tmp_path / "photos" / name, seed=seed)
    return tmp_path / "photos"


@pytest.fixture
def project(photos: Path) -> Path:
    """Two keypoints are marked on a.png."""
    with Project(photos) as project:
        scan_photos(project)
        category = add_category(project, "cat", ["left eye", "nose"], [(0, 1)])
        photo = identify_photo(project, project.photos()[0])
        item = add_instance(project, photo.id, category.id)
        for keypoint, xy in zip(category.keypoints, ((20.0, 30.0), (40.0, 50.0)), strict=True):
            set_mark(project, item.id, keypoint.id, 2, xy)
        return project.file


def states(photos: Path, file: Path | None = None) -> dict[str, str]:
    with Project(photos, file, read_only=True) as project:
        return {one.path: one.state for one in project.summaries()}


def test_all_photos_are_predicted(project: Path, photos: Path, tmp_path: Path, raw, capsys):
    sheet = tmp_path / "sheet.png"
    assert run("propagate", project, photos, "--draw", sheet, *raw) == 0
    assert capsys.readouterr().out.splitlines() == [
        "4 keypoints on 2 images", f"project: {project}", f"picture: {sheet}",
    ]  # fmt: skip
    assert image_size(sheet)[1] == 1800
    assert states(photos) == {"a.png": "marked", "b.png": "predicted", "deep/c.png": "predicted"}
    write_image(photos / "d.png", seed=7)
    (photos / "bad.png").write_bytes(b"garbage")
    assert run("propagate", project, photos, "--json", *raw) == 1
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert (summary["images"], summary["annotations"], summary["keypoints"]) == (3, 3, 6)
    assert "left out: bad.png: not an image that can be decoded" in captured.err
    assert list(summary["failed"]) == ["bad.png"]


def test_predict_again_leaves_what_was_reviewed(project: Path, photos: Path, raw):
    run("propagate", project, photos, *raw)
    with Project(photos) as one:
        first, second = (item for item in one.instances() if not item.marks)
        accept(one, first.photo_id, threshold=2.0)  # all "not there": it becomes no reference
    run("propagate", project, photos, "--predict-again", *raw)
    with Project(photos, read_only=True) as one:
        after = {item.id: item for item in one.instances()}
    assert after[first.id].reviewed
    assert after[first.id].marks
    again = after[second.id].predictions  # another number of photos in a batch is rounded in another way
    assert again.keys() == second.predictions.keys()
    for keypoint, found in second.predictions.items():
        assert again[keypoint].xy == pytest.approx(found.xy, abs=0.5)
        assert again[keypoint].confidence == pytest.approx(found.confidence, abs=0.01)
    assert after[second.id].predicted_at > second.predicted_at


def test_the_result_as_a_coco_file(project: Path, photos: Path, tmp_path: Path, raw, capsys):
    out = tmp_path / "all.json"
    assert run("propagate", project, photos, "--out", out, *raw) == 0
    assert f"annotations: {out}" in capsys.readouterr().out
    assert len(load_coco_objects(out, photos)) == 3
    assert len(load_coco_objects(out, photos, predictions=False)) == 1
    assert run("propagate", project, photos, "--out", out, *raw) == 2
    assert "all.json: exists already" in capsys.readouterr().err


def test_annotations_are_taken_over_as_marks(coco_root: Path, tmp_path: Path, raw, capsys):
    write_image(coco_root / "images" / "new.png", seed=8)
    file = tmp_path / "project.sqlite"
    assert run("propagate", coco_root / "annotations.json", coco_root / "images", "--out", file, *raw) == 0
    assert f"project: {file}" in capsys.readouterr().out
    assert states(coco_root / "images", file)["new.png"] == "predicted"
    options = ["--out", file, "--images-root", coco_root / "images", *raw]
    assert run("propagate", coco_root / "annotations.json", coco_root / "images", *options) == 0
    with Project(coco_root / "images", file, read_only=True) as project:
        assert len([item for item in project.instances() if item.marks]) == 4  # not twice


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{file}", "{photos}", "--category", "cat"], "--category: of no use with a project"),
        (["{file}", "{photos}", "--threshold", "0.5"], "--threshold: of no use with a project"),
        (["{file}", "{photos}", "--images-root", "."], "--images-root: of no use with the marks of a project"),
        (["{file}", "{photos}", "--overwrite"], "a project is never replaced; to predict again, give --predict-again"),
        (["x.json", "{photos}", "--out", "{file}", "--overwrite"], "a project is never replaced"),
        (["{file}", "{photos}/a.png"], "with a project, IMAGES is one folder"),
        (["{file}", "{photos}", "{photos}"], "with a project, IMAGES is one folder"),
        (["gone.sqlite", "{photos}"], "gone.sqlite: no such project; transformatcher annotate FOLDER makes one"),
        (["{file}", "{photos}", "--out", "out.txt"], "its name ends in .json"),
    ],
)
def test_mistakes(project: Path, photos: Path, raw, capsys, arguments, message):
    filled = [text.format(file=project, photos=photos) for text in arguments]
    before = project.read_bytes()
    assert run("propagate", *filled, *raw) == 2
    assert message in capsys.readouterr().err
    assert project.read_bytes() == before


def test_a_project_without_marks(photos: Path, raw, capsys):
    with Project(photos) as project:
        scan_photos(project)
    assert run("propagate", project.file, photos, *raw) == 2
    assert "no keypoint is marked yet, so there is nothing to propagate" in capsys.readouterr().err

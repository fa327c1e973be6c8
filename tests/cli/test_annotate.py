"""The command that opens the studio, imports, predicts and exports."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import write_image
from helpers.command import run

from transformatcher.annotation.edits import accept, add_category, add_instance, set_mark
from transformatcher.annotation.project import Project
from transformatcher.annotation.scan import identify_photo, scan_photos
from transformatcher.inference.matcher import Matcher


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four photos, two of them in a sub-folder."""
    for seed, name in enumerate(("a.jpg", "b.jpg", "in/c.jpg", "in/d.png")):
        write_image(tmp_path / "photos" / name, seed=seed)
    return tmp_path / "photos"


@pytest.fixture
def marked(folder: Path) -> Path:
    """a.jpg is marked and accepted."""
    with Project(folder) as project:
        scan_photos(project)
        cat = add_category(project, "cat", ["nose", "tail"])
        photo = identify_photo(project, project.photos()[0])
        instance = add_instance(project, photo.id, cat.id)
        for n, keypoint in enumerate(cat.keypoints):
            set_mark(project, instance.id, keypoint.id, 2, (20.0 + 30 * n, 30.0))
        accept(project, photo.id)
    return folder


@pytest.fixture
def _small_model(monkeypatch: pytest.MonkeyPatch, matcher: Matcher) -> None:
    monkeypatch.setattr("transformatcher.cli.annotate.load_matcher", lambda _: (matcher, "a test"))


class TestPage:
    def test_without_the_extra(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
        monkeypatch.delitem(sys.modules, "transformatcher.web.studio.server", raising=False)
        monkeypatch.setitem(sys.modules, "fastapi", None)
        assert run("annotate", folder, "--no-browser") == 2
        assert "pip install fastapi (part of the extra 'serve')" in capsys.readouterr().err
        assert not (folder / "keypoints.sqlite").exists()

    @pytest.mark.usefixtures("_small_model")
    def test_options(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, matcher: Matcher, capsys: pytest.CaptureFixture[str]
    ):
        pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
        calls: list[Any] = []

        def serve(project: Project, *args: Any, **more: Any) -> None:
            calls.append((project.file, len(project.photos()), args, more))

        monkeypatch.setattr("transformatcher.web.studio.server.serve_studio", serve)
        file = folder.parent / "mine.sqlite"
        options = ["--project", file, "--port", 9, "--host", "::1", "--no-browser", "--cache-gb", 0.5, "--batch", 2]
        assert run("annotate", folder, *options) == 0
        assert calls == [
            (file, 4, (matcher, "::1", 9), {"browser": False, "cache_bytes": 500_000_000, "batch": 2})
        ]  # fmt: skip
        assert capsys.readouterr().out == f"4 photos, project {file}\nmatching with a test\n"


class TestScan:
    def test_what_has_changed(self, marked: Path, capsys: pytest.CaptureFixture[str]):
        with Project(marked) as project:
            for photo in project.photos():
                identify_photo(project, photo)
        (marked / "a.jpg").rename(marked / "moved.jpg")
        write_image(marked / "b.jpg", (50, 50), seed=9)
        (marked / "in" / "c.jpg").unlink()
        (marked / "in" / "d.png").unlink()
        assert run("annotate", marked, "--import", f"coco:{coco(marked.parent, 'moved.jpg')}") == 0
        assert capsys.readouterr().out.splitlines() == [
            f"4 photos, project {marked / 'keypoints.sqlite'}",
            "moved: a.jpg → moved.jpg",
            "changed, and to be predicted anew: b.jpg",
            "missing, with their marks kept: in/c.jpg, in/d.png",
            "imported 2 keypoints of 1 objects on 1 photos",
        ]

    def test_long_lists_are_shortened(self, folder: Path, capsys: pytest.CaptureFixture[str]):
        with Project(folder) as project:
            for n in range(6):
                write_image(folder / f"{n}.jpg", seed=n)
            scan_photos(project)
        for n in range(6):
            (folder / f"{n}.jpg").unlink()
        assert run("annotate", folder, "--import", f"coco:{coco(folder.parent, 'a.jpg')}") == 0
        out = capsys.readouterr().out
        assert "missing, with their marks kept: 0.jpg, 1.jpg, 2.jpg, 3.jpg, 4.jpg and 1 more\n" in out

    def test_a_folder_without_photos(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        assert run("annotate", tmp_path, "--no-browser") == 2
        assert f"{tmp_path}: no photo there, nor in its sub-folders" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []

    def test_predictions_need_an_export(self, folder: Path, capsys: pytest.CaptureFixture[str]):
        assert run("annotate", folder, "--predictions", "only", "--no-browser") == 2
        assert "give --export FORMAT:OUT, too" in capsys.readouterr().err

    def test_no_folder(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        assert run("annotate", tmp_path / "nowhere", "--no-browser") == 2
        assert "no such folder of photos" in capsys.readouterr().err

    def test_a_second_one_is_refused(self, marked: Path, capsys: pytest.CaptureFixture[str]):
        with Project(marked):
            assert run("annotate", marked, "--no-browser") == 2
        assert "another process has this project open; close that first" in capsys.readouterr().err


def coco(folder: Path, *names: str) -> Path:
    """A file with a cat on each photo of 80 × 60 pixels."""
    content = {
        "images": [{"id": n, "file_name": name, "width": 80, "height": 60} for n, name in enumerate(names)],
        "annotations": [
            {"id": n, "image_id": n, "category_id": 1, "bbox": [10, 10, 40, 40], "keypoints": [20, 30, 2, 45, 40, 2]}
            for n in range(len(names))
        ],
        "categories": [{"id": 1, "name": "cat", "keypoints": ["nose", "tail"]}],
    }
    (folder / "marks.json").write_text(json.dumps(content))
    return folder / "marks.json"


class TestExport:
    def test_beside_a_process_that_has_the_project_open(self, marked: Path, capsys: pytest.CaptureFixture[str]):
        out = marked.parent / "out.json"
        with Project(marked) as project:
            project.set_setting("anything", 1)
            assert run("annotate", marked, "--export", f"coco:{out}") == 0
        assert capsys.readouterr().out == f"2 keypoints of 1 objects on 1 photos: {out}\n"
        assert len(json.loads(out.read_text())["annotations"]) == 1

    def test_there_is_no_project(self, folder: Path, capsys: pytest.CaptureFixture[str]):
        assert run("annotate", folder, "--export", f"coco:{folder.parent / 'out.json'}") == 2
        assert "no such project" in capsys.readouterr().err
        assert not (folder / "keypoints.sqlite").exists()
        (folder / "keypoints.sqlite").touch()
        assert run("annotate", folder, "--export", f"coco:{folder.parent / 'out.json'}") == 2
        assert "keypoints.sqlite: an empty file, not a project" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("value", "problem"),
        [
            ("cocoa:x.json", "no format is called 'cocoa'; did you mean 'coco'?"),
            ("x.json", "'x.json' is not FORMAT:FILE, such as coco:keypoints.json"),
            ("coco:", "is not FORMAT:FILE"),
            ("png:x", "choose from coco, yolo, label-studio, deeplabcut, sleap"),
        ],
    )
    def test_bad_formats(self, folder: Path, value: str, problem: str, capsys: pytest.CaptureFixture[str]):
        with pytest.raises(SystemExit) as caught:
            run("annotate", folder, "--export", value)
        assert caught.value.code == 2
        assert problem in capsys.readouterr().err

    def test_the_formats_are_those_of_the_package(self):
        from transformatcher.annotation.formats.export import FORMATS
        from transformatcher.cli.annotate import FORMATS as NAMED

        assert set(NAMED) == set(FORMATS)


class TestPredict:
    @pytest.mark.usefixtures("_small_model")
    def test_import_predict_and_export_at_once(self, folder: Path, capsys: pytest.CaptureFixture[str]):
        out = folder.parent / "out.json"
        options = ["--import", f"coco:{coco(folder.parent, 'a.jpg', 'elsewhere.jpg')}", "--predict"]
        options += ["--export", f"coco:{out}", "--predictions", "only"]
        assert run("annotate", folder, *options) == 0
        printed = capsys.readouterr()
        assert "imported 2 keypoints of 1 objects on 1 photos" in printed.out
        assert "left out: elsewhere.jpg" in printed.err
        assert "3 predicted" in printed.out
        with Project(folder, read_only=True) as project:
            assert project.counts()["predicted"] == 3
        assert {image["file_name"] for image in json.loads(out.read_text())["images"]} >= {"b.jpg"}
        shutil.rmtree(folder / "keypoints.sqlite.cache", ignore_errors=True)
        assert run("annotate", folder, "--predict") == 0  # nothing is left to do

    @pytest.mark.usefixtures("_small_model")
    def test_nothing_is_marked(self, folder: Path, capsys: pytest.CaptureFixture[str]):
        assert run("annotate", folder, "--predict") == 2
        assert "no keypoint is marked yet, so there is nothing to predict from" in capsys.readouterr().err


def test_the_help_has_examples(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        run("annotate", "--help")
    assert "transformatcher annotate photos --export coco:keypoints.json" in capsys.readouterr().out

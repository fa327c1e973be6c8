"""The registry of formats, folders that are ours, and ZIP files."""

import json
import os
import zipfile
from pathlib import Path

import pytest
from helpers.annotation_project import bicycles, mark, open_project, snapshot

from transformatcher.annotation import edits
from transformatcher.annotation.formats import export
from transformatcher.annotation.formats.coco_import import import_coco
from transformatcher.annotation.formats.export import FORMATS, MARKER, export_project, export_zip
from transformatcher.annotation.project import Project
from transformatcher.errors import InputError

WRITTEN = {
    "coco": None,
    "yolo": {"dataset.yaml", "images", "labels", "photos.csv", "train.txt", "val.txt", MARKER},
    "label-studio": {"config.xml", "tasks.json", MARKER},
    "deeplabcut": {"bicycle", "bird", MARKER},
}


@pytest.fixture
def project(tmp_path: Path):
    with bicycles(tmp_path / "photos") as project:
        yield project


@pytest.mark.parametrize("name", WRITTEN)
def test_each_format(project: Project, tmp_path: Path, name: str):
    out = tmp_path / "new" / f"out{FORMATS[name].suffix}"
    summary = export_project(project, name, out, predictions="include")
    assert (summary.format, summary.path) == (name, str(out))
    assert (summary.images, summary.objects, summary.keypoints, summary.predicted) == (5, 5, 9, 3)
    assert out.is_file() if WRITTEN[name] is None else {path.name for path in out.iterdir()} == WRITTEN[name]
    assert os.listdir(out.parent) == [out.name]  # noqa: PTH208 - nothing unfinished is left, also hidden


def test_photos_are_not_written_to(project: Project, tmp_path: Path):
    def state() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted((tmp_path / "photos").rglob("*")) if path.is_file()}

    before = state()
    for name in WRITTEN:
        export_project(project, name, tmp_path / f"{name}{FORMATS[name].suffix}")
    assert state() == before


def test_unknown_format(project: Project, tmp_path: Path):
    with pytest.raises(
        InputError, match=r"no format is called 'voc'; there are coco, yolo, label-studio, deeplabcut, sl"
    ):
        export_project(project, "voc", tmp_path / "out")


def test_a_missing_package_is_named(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(export.importlib.util, "find_spec", lambda _: None)
    form = FORMATS["sleap"]
    assert not form.available
    assert form.why == "needs the package sleap-io: pip install 'transformatcher[sleap]'"
    with pytest.raises(InputError, match="the format sleap needs the package sleap-io: pip install"):
        export_project(project, "sleap", tmp_path / "out.slp")
    assert all(form.available for form in FORMATS.values() if form.name != "sleap")


def test_folders_of_others_are_refused(project: Project, tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"out: holds other files; choose an empty folder, or a new one"):
        export_project(project, "yolo", out)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    export_project(project, "yolo", out, overwrite=True)
    assert {path.name for path in out.iterdir()} == WRITTEN["yolo"] | {"mine.txt"}


def test_a_folder_of_ours_is_replaced_and_other_files_in_it_are_kept(project: Project, tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    export_project(project, "yolo", out)  # an empty folder
    (out / "runs").mkdir()
    (out / "labels" / "stale.txt").write_text("0")
    export_project(project, "yolo", out, predictions="include")
    assert not (out / "labels" / "stale.txt").exists()
    assert (out / "labels" / "4.txt").is_file()
    export_project(project, "label-studio", out)
    assert {path.name for path in out.iterdir()} == WRITTEN["label-studio"] | {"runs"}
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_a_damaged_marker_removes_nothing_outside(project: Project, tmp_path: Path):
    out = tmp_path / "out"
    export_project(project, "yolo", out)
    (tmp_path / "mine.txt").write_text("mine")
    (out / MARKER).write_text(json.dumps({"files": ["../mine.txt", str(tmp_path / "mine.txt"), "labels"]}))
    export_project(project, "yolo", out)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    (out / MARKER).write_text("{")
    export_project(project, "yolo", out)
    assert {path.name for path in out.iterdir()} == WRITTEN["yolo"]


def test_an_error_leaves_the_old_folder(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "out"
    export_project(project, "label-studio", out)
    before = (out / "tasks.json").read_text()

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("transformatcher.annotation.formats.label_studio.label_config", full)
    with pytest.raises(InputError, match=r"out: cannot be written \(No space left on device\)"):
        export_project(project, "label-studio", out, predictions="include")
    assert (out / "tasks.json").read_text() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".new")] == []


def test_places_that_cannot_be(project: Project, tmp_path: Path):
    with pytest.raises(InputError, match=r"photos.sqlite: the project itself"):
        export_project(project, "coco", tmp_path / "photos.sqlite")
    photo = next((tmp_path / "photos").rglob("*.*g"))
    before = photo.read_bytes()
    for name in (photo, tmp_path / "photos.sqlite.lock", tmp_path / "keypoints"):
        with pytest.raises(InputError, match=r"COCO keypoints is a file whose name ends in \.json"):
            export_project(project, "coco", name)
    assert photo.read_bytes() == before
    with pytest.raises(InputError, match=r"photos: a folder; COCO keypoints is a file, such as .*keypoints\.json"):
        export_project(project, "coco", tmp_path / "photos")
    with pytest.raises(InputError, match=r"would be taken for photos; choose a folder elsewhere"):
        export_project(project, "yolo", tmp_path / "photos" / "yolo")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file: a file; DeepLabCut is a folder"):
        export_project(project, "deeplabcut", tmp_path / "file")
    export_project(project, "coco", tmp_path / "photos" / "keypoints.json")  # no photo, so beside them is fine


def test_a_skipped_photo_shows_nothing(tmp_path: Path):
    """A box and a keypoint that is not there are no object; a keypoint that is there is one, skipped or not."""
    with open_project(tmp_path / "photos", ("1.png",)) as project:
        category = edits.add_category(project, "cat", ["nose", "tail"])
        item = edits.add_instance(project, 1, category.id, (10.0, 10.0, 50.0, 50.0))
        mark(project, item, {"nose": (0, None)})
        edits.skip(project, 1)
        before = snapshot(project)
        out = tmp_path / "out.json"
        assert export_project(project, "coco", out).objects == 0
        assert import_coco(project, out).images == 1
        assert snapshot(project) == before  # it is still skipped
        mark(project, item, {"tail": (2, (20, 20))})
        edits.skip(project, 1)
        assert export_project(project, "coco", out).objects == 1
        import_coco(project, out)
        assert project.photo(1).skipped


@pytest.mark.parametrize("name", ["yolo", "deeplabcut"])
def test_what_gets_lost_of_not_there_is_said(tmp_path: Path, name: str):
    with open_project(tmp_path / "photos", ("1.png",)) as project:
        category = edits.add_category(project, "cat", ["nose", "tail"])
        item = edits.add_instance(project, 1, category.id)
        mark(project, item, {"nose": (2, (20, 20))})
        assert not any("not there" in note for note in export_project(project, name, tmp_path / "a").notes)
        mark(project, item, {"tail": (0, None)})
        assert any("no “not there”" in note for note in export_project(project, name, tmp_path / "b").notes)


def test_an_error_names_no_temporary_folder(tmp_path: Path):
    with open_project(tmp_path / "photos", ("1.png",)) as project, pytest.raises(InputError, match=r"^YOLO-pose needs"):
        export_project(project, "yolo", tmp_path / "yolo")


def test_where_no_link_can_be_made(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object, **__: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", refused)
    export_project(project, "yolo", tmp_path / "hard")
    photo, link = tmp_path / "photos" / "3.png", tmp_path / "hard" / "images" / "3.png"
    assert photo.samefile(link)
    assert not link.is_symlink()
    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(InputError, match=r"no link to .* can be made there .*; export to the drive of the photos"):
        export_project(project, "yolo", tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", WRITTEN)
def test_zip_files_have_no_photos(project: Project, tmp_path: Path, name: str):
    out = tmp_path / "out.zip"
    summary = export_zip(project, name, out, predictions="include")
    assert summary.images == 5
    if WRITTEN[name] is None:
        assert json.loads(out.read_text())["images"]
        return
    with zipfile.ZipFile(out) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
    assert {one.split("/")[0] for one in names} == WRITTEN[name] - {MARKER}
    assert [one for one in names if one.endswith((".png", ".jpg"))] == []


def test_a_project_that_another_process_writes_can_be_exported(project: Project, tmp_path: Path):
    with Project(project.folder, project.file, read_only=True) as same:
        assert export_project(same, "coco", tmp_path / "out.json").keypoints == 6

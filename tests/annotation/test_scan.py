"""New, moved, changed, missing and unreadable photos are recognised and named; none is ever written to."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.edited_project import add_automatic, cat_of, check_whole, open_project, predict, write_photo

from transformatcher.annotation import edits, scan
from transformatcher.annotation.project import Project
from transformatcher.annotation.records import Photo
from transformatcher.annotation.scan import MISSING, identify_photo, scan_photos, set_problem
from transformatcher.errors import InputError


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with open_project(tmp_path) as opened:
        yield opened
        check_whole(opened)


def at(project: Project, path: str) -> Photo:
    return next(photo for photo in project.photos() if photo.path == path)


def mark(project: Project, path: str) -> int:
    """The object of a photo, with a mark and predictions."""
    cat, photo = cat_of(project), at(project, path)
    number = add_automatic(project, photo.id, cat.id)
    edits.set_mark(project, number, cat.keypoints[0].id, 2, (3.0, 4.0))
    predict(project, number, reference=number)
    return number


def is_marked(project: Project, path: str, number: int) -> bool:
    return [i.id for i in project.instances([at(project, path).id]) if len(i.marks) == 1] == [number]


# ---------------------------------------------------------------- found


def test_photos_of_all_folders_are_found(tmp_path: Path) -> None:
    for name in ("b.JPG", "a/c.png", "a/d/e.tiff", "größe ü/f.webp", "a\\b.bmp", "x.jpg/g.png"):
        write_photo(tmp_path / name)
    for name in (".hidden.png", ".thumbnails/h.png", "keypoints.sqlite.cache/thumbnails/1.jpg"):
        write_photo(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no photo")
    with Project(tmp_path) as project:
        report = scan_photos(project)
        expected = ["a/c.png", "a/d/e.tiff", "a\\b.bmp", "b.JPG", "größe ü/f.webp", "x.jpg/g.png"]
        assert report.added == expected
        assert [photo.path for photo in project.photos()] == expected
        assert (report.moved, report.changed, report.missing, report.left_out) == ({}, [], [], {})
        assert {photo.revision for photo in project.photos()} == {project.revision}


def test_the_first_scan_reads_no_photo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_photo(tmp_path / "1.png")
    monkeypatch.setattr(scan, "hash_file", None)
    with Project(tmp_path) as project:
        assert scan_photos(project).added == ["1.png"]
        assert project.photo(1).size is None


def test_nothing_new_is_no_change(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    revision, count = project.revision, project.edits
    monkeypatch.setattr(scan, "hash_file", None)
    report = scan_photos(project)
    assert (report.added, report.moved, report.changed, report.missing) == ([], {}, [], [])
    assert (project.revision, project.edits) == (revision, count)


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    for name in (b"\xff.png", b"\xfe/1.png"):
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        write_photo(path)
    (tmp_path / "loop.png").symlink_to("loop.png")
    (tmp_path / "lost.png").symlink_to("nowhere.png")
    (tmp_path / "round").symlink_to(tmp_path)
    write_photo(tmp_path / "other" / "1.png")
    (tmp_path / "1.png").symlink_to("other/1.png")
    with Project(tmp_path) as project:
        report = scan_photos(project)
        assert report.added == ["1.png", "other/1.png"]  # a link to a photo is a photo
        assert report.left_out == {
            "'\\udcff.png'": "its name is not UTF-8; rename it",
            "'\\udcfe'": "its name is not UTF-8; rename it",
            "loop.png": "cannot be read (Too many levels of symbolic links)",
            "lost.png": "a link to a file that is not there",
            "round": "a link to another folder, which is not followed",
        }


def test_a_folder_that_cannot_be_read_is_named(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root, all can be read; so the error is made."""
    write_photo(project.folder / "closed" / "1.png")
    listed = os.scandir

    def scandir(path: Path) -> object:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert scan_photos(project).left_out == {"closed": "cannot be read (Permission denied)"}
    project.folder = project.folder / "closed"
    with pytest.raises(InputError, match="closed: this folder cannot be read"):
        scan_photos(project)


# ---------------------------------------------------------------- identified


def test_a_photo_is_identified_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = at(project, "1.png")
    assert (photo.size, len(photo.digest or "")) == ((60, 80), 64)
    monkeypatch.setattr(scan, "hash_file", None)
    assert identify_photo(project, photo) == photo


def test_what_is_no_photo_has_a_problem_until_it_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(b"no photo")
    (tmp_path / "2.png").touch()
    with open_project(tmp_path, 0) as project:
        assert "not an image that can be decoded" in str(at(project, "1.png").problem)
        assert str(at(project, "2.png").problem).startswith("the file is empty")
        assert project.counts() == {"failed": 2}
        scan_photos(project)
        assert project.counts() == {"failed": 2}
        write_photo(tmp_path / "1.png")
        assert scan_photos(project).changed == []  # nothing was known of its content
        assert at(project, "1.png").problem is None
        assert identify_photo(project, at(project, "1.png")).size == (60, 80)


def test_a_problem_of_the_folder_may_be_gone_the_next_time(project: Project) -> None:
    for photo, problem in zip(
        project.photos(), ("cannot be read (Permission denied)", "not an image", MISSING), strict=True
    ):
        set_problem(project, photo.id, problem)
    scan_photos(project)
    assert [photo.problem for photo in project.photos()] == [None, "not an image", None]


# ---------------------------------------------------------------- moved


def test_a_moved_photo_keeps_its_marks(project: Project, tmp_path: Path) -> None:
    number, photo = mark(project, "1.png"), at(project, "1.png")
    (tmp_path / "a").mkdir()
    (tmp_path / "1.png").rename(tmp_path / "a" / "x.png")
    os.utime(tmp_path / "a" / "x.png")
    report = scan_photos(project)
    assert (report.moved, report.added, report.missing) == ({"1.png": "a/x.png"}, [], [])
    assert at(project, "a/x.png").id == photo.id
    assert is_marked(project, "a/x.png", number)
    assert len(project.instance(number).predictions) == 3
    assert scan_photos(project).moved == {}


def test_of_equal_photos_the_one_with_the_same_name_is_taken(tmp_path: Path) -> None:
    write_photo(tmp_path / "1.png")
    shutil.copy(tmp_path / "1.png", tmp_path / "2.png")
    with open_project(tmp_path, 2) as project:
        numbers = [mark(project, path) for path in ("1.png", "2.png")]
        (tmp_path / "a").mkdir()
        (tmp_path / "1.png").rename(tmp_path / "a" / "z.png")
        (tmp_path / "2.png").rename(tmp_path / "a" / "2.png")
        assert scan_photos(project).moved == {"2.png": "a/2.png", "1.png": "a/z.png"}
        assert is_marked(project, "a/z.png", numbers[0])
        assert is_marked(project, "a/2.png", numbers[1])


def test_a_copy_is_a_photo_of_its_own(project: Project, tmp_path: Path) -> None:
    number = mark(project, "1.png")
    shutil.copy(tmp_path / "1.png", tmp_path / "copy.png")
    report = scan_photos(project)
    assert (report.added, report.moved) == (["copy.png"], {})
    assert is_marked(project, "1.png", number)
    assert project.instances([at(project, "copy.png").id]) == []


def test_photos_that_nobody_has_read_yet_move_with_their_names(tmp_path: Path) -> None:
    for number in range(3):
        write_photo(tmp_path / "a" / f"{number}.png", number)
    with Project(tmp_path) as project:
        scan_photos(project)
        edits.skip(project, 2)
        (tmp_path / "a").rename(tmp_path / "b")
        assert scan_photos(project).moved == {f"a/{number}.png": f"b/{number}.png" for number in range(3)}
        assert project.photo(2).path == "b/1.png"
        assert project.counts() == {"unmarked": 2, "reviewed": 1}


def test_two_photos_that_swap_their_names_keep_their_marks(project: Project, tmp_path: Path) -> None:
    numbers = [mark(project, path) for path in ("1.png", "2.png")]
    (tmp_path / "1.png").rename(tmp_path / "t.png")
    (tmp_path / "2.png").rename(tmp_path / "1.png")
    (tmp_path / "t.png").rename(tmp_path / "2.png")
    for path in ("1.png", "2.png"):
        os.utime(tmp_path / path)
    report = scan_photos(project)
    assert (report.moved, report.changed) == ({"1.png": "2.png", "2.png": "1.png"}, [])
    assert is_marked(project, "2.png", numbers[0])
    assert is_marked(project, "1.png", numbers[1])
    assert len(project.instance(numbers[0]).predictions) == 3


def test_a_photo_may_take_the_name_of_one_that_moved(project: Project, tmp_path: Path) -> None:
    """As a camera counts from the beginning again."""
    number = mark(project, "1.png")
    (tmp_path / "1.png").rename(tmp_path / "old.png")
    write_photo(tmp_path / "1.png", 99)
    report = scan_photos(project)
    assert (report.moved, report.added, report.changed) == ({"1.png": "old.png"}, ["1.png"], [])
    assert is_marked(project, "old.png", number)
    assert project.instances([at(project, "1.png").id]) == []


def test_a_photo_that_overwrites_another_one_does_not_take_its_marks_away(project: Project, tmp_path: Path) -> None:
    numbers = [mark(project, path) for path in ("1.png", "2.png")]
    (tmp_path / "2.png").rename(tmp_path / "1.png")
    os.utime(tmp_path / "1.png")
    report = scan_photos(project)
    assert (report.moved, report.changed, report.missing) == ({}, ["1.png"], ["2.png"])
    assert is_marked(project, "1.png", numbers[0])
    assert is_marked(project, "2.png", numbers[1])


# ---------------------------------------------------------------- changed, missing, back again


def test_a_changed_photo_keeps_marks_and_loses_predictions(project: Project, tmp_path: Path) -> None:
    number, other = mark(project, "1.png"), mark(project, "2.png")
    predict(project, other, reference=number)
    with project.changing():
        project.database.run("INSERT INTO descriptor VALUES (1, 'model', x'00')")
    write_photo(tmp_path / "1.png", 77, (50, 70))
    count = project.edits
    report = scan_photos(project)
    assert (report.changed, report.added, report.missing) == (["1.png"], [], [])
    assert is_marked(project, "1.png", number)
    assert (project.instance(number).predictions, project.instance(number).predicted_at) == ({}, None)
    assert len(project.instance(other).predictions) == 3
    assert [tuple(row) for row in project.database.rows("SELECT instance_id, reference_id FROM vote")] == [
        (other, other)
    ]
    assert project.database.rows("SELECT * FROM descriptor") == []
    assert (at(project, "1.png").size, at(project, "1.png").digest) == (None, None)
    assert identify_photo(project, at(project, "1.png")).size == (50, 70)
    assert project.edits > count


def test_a_photo_that_was_only_touched_has_not_changed(project: Project, tmp_path: Path) -> None:
    number = mark(project, "1.png")
    os.utime(tmp_path / "1.png", (1, 1))
    assert scan_photos(project).changed == []
    assert len(project.instance(number).predictions) == 3
    assert at(project, "1.png").size == (60, 80)


def test_a_missing_photo_keeps_its_marks_until_it_is_back(project: Project, tmp_path: Path) -> None:
    number = mark(project, "1.png")
    (tmp_path / "1.png").rename(tmp_path / "elsewhere")
    for _ in range(2):
        assert scan_photos(project).missing == ["1.png"]
        assert at(project, "1.png").problem == MISSING
    revision = project.revision
    scan_photos(project)
    assert project.revision == revision
    assert identify_photo(project, project.photo(1)).problem == MISSING
    (tmp_path / "elsewhere").rename(tmp_path / "1.png")
    report = scan_photos(project)
    assert (report.missing, report.back) == ([], ["1.png"])
    assert scan_photos(project).back == []
    assert at(project, "1.png").problem is None
    assert is_marked(project, "1.png", number)


def test_a_photo_that_is_gone_when_it_is_read_is_missing(tmp_path: Path) -> None:
    path = write_photo(tmp_path / "1.png")
    with Project(tmp_path) as project:
        scan_photos(project)
        path.rename(tmp_path / "elsewhere")
        assert identify_photo(project, project.photo(1)).problem == MISSING
        (tmp_path / "elsewhere").rename(path)
        scan_photos(project)
        assert identify_photo(project, project.photo(1)).problem is None


def test_a_photo_that_goes_while_it_is_compared_does_not_end_the_scan(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = mark(project, "1.png")
    (tmp_path / "1.png").rename(tmp_path / "new.png")

    def fail(path: Path) -> str:
        raise InputError(f"{path}: cannot be read")

    monkeypatch.setattr(scan, "hash_file", fail)
    report = scan_photos(project)
    assert (report.added, report.missing) == (["new.png"], ["1.png"])
    assert is_marked(project, "1.png", number)


def test_photos_are_never_written_to(tmp_path: Path) -> None:
    with open_project(tmp_path) as project:
        before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.glob("*.png")}
        predict(project, mark(project, "1.png"))
        edits.accept(project, 1)
        set_problem(project, 2, "broken")
        scan_photos(project)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.glob("*.png")} == before


def test_five_thousand_photos_of_equal_size_move_in_a_moment(tmp_path: Path) -> None:
    """What moved is looked up by its content, not compared with all others."""
    n = 5000
    (tmp_path / "a").mkdir()
    for number in range(n):
        (tmp_path / "a" / f"{number}.bmp").write_bytes(f"{number:08d}".encode())
    with Project(tmp_path) as project:
        start = time.perf_counter()
        assert len(scan_photos(project).added) == n
        assert time.perf_counter() - start < 2.0
        with project.changing():
            digests = [(scan.hash_file(project.folder / photo.path), photo.id) for photo in project.photos()]
            project.database.run_many("UPDATE photo SET digest = ? WHERE id = ?", digests)
        (tmp_path / "a").rename(tmp_path / "b")
        start = time.perf_counter()
        report = scan_photos(project)
        assert time.perf_counter() - start < 4.0
        assert report.moved == {f"a/{number}.bmp": f"b/{number}.bmp" for number in range(n)}

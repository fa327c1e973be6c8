"""A project is open once, its revisions tell what has changed, and it answers quickly when it is large."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.edited_project import (
    add_automatic,
    cat_of,
    check_whole,
    files_of,
    open_project,
    predict,
    said,
    write_photo,
)

from transformatcher.annotation import edits
from transformatcher.annotation.project import Project
from transformatcher.annotation.scan import scan_photos
from transformatcher.errors import InputError


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with open_project(tmp_path) as opened:
        yield opened


# ---------------------------------------------------------------- opened once, in its folder


def test_a_project_is_one_file_beside_its_photos(tmp_path: Path) -> None:
    before = {name: data for name, data in files_of(tmp_path).items() if name.endswith(".png")}
    open_project(tmp_path).close()
    assert sorted(files_of(tmp_path)) == ["1.png", "2.png", "3.png", "keypoints.sqlite"]
    assert before.items() <= files_of(tmp_path).items()


def test_a_second_one_is_refused_and_harms_nothing(project: Project, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"keypoints\.sqlite: another process has this project open; close that first"):
        Project(tmp_path)
    (tmp_path / "link.sqlite").symlink_to(tmp_path / "keypoints.sqlite")
    with pytest.raises(InputError, match=r"link\.sqlite: another process has this project open"):
        Project(tmp_path, tmp_path / "link.sqlite")
    edits.skip(project, 1)
    project.close()
    Project(tmp_path).close()
    assert not list(tmp_path.glob("*.lock"))


def test_another_process_may_read_while_one_writes(project: Project, tmp_path: Path) -> None:
    edits.skip(project, 1)
    with Project(tmp_path, read_only=True) as reader:
        assert reader.counts() == {"reviewed": 1, "unmarked": 2}
        edits.skip(project, 2)
        assert reader.counts() == {"reviewed": 2, "unmarked": 1}
        with pytest.raises(InputError, match="cannot be written"):
            edits.skip(reader, 3)


def test_a_refused_file_keeps_no_lock_and_no_traces(tmp_path: Path) -> None:
    write_photo(tmp_path / "1.png")
    before = files_of(tmp_path)
    for _ in range(2):
        with pytest.raises(InputError, match=r"1\.png: not a project"):
            Project(tmp_path, tmp_path / "1.png")
    assert files_of(tmp_path) == before


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder of photos"):
        Project(tmp_path / "a")
    with pytest.raises(InputError, match=r"a/b\.sqlite: .*/a is not a folder; make it first"):
        Project(tmp_path, tmp_path / "a" / "b.sqlite")


def test_a_project_follows_its_folder_but_takes_no_other_one(tmp_path: Path) -> None:
    file = tmp_path / "p.sqlite"
    (tmp_path / "a").mkdir()
    open_project(tmp_path / "a", file=file).close()
    (tmp_path / "a").rename(tmp_path / "b")
    with Project(tmp_path / "b", file) as project:
        assert project.setting("folder") == str(tmp_path / "b")
    (tmp_path / "c").mkdir()
    with pytest.raises(InputError, match=r"p\.sqlite: made for .*/b, and none of its photos are in .*/c; open it with"):
        Project(tmp_path / "c", file)
    for photo in (tmp_path / "b").iterdir():
        photo.unlink()
    Project(tmp_path / "b", file).close()  # the folder is the same; its photos may come back


def test_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    folder = tmp_path / "\udcff"
    folder.mkdir()
    with open_project(folder) as project:
        edits.skip(project, 1)
    with Project(folder) as project:
        assert project.setting("folder") == str(folder)
        assert project.counts() == {"reviewed": 1, "unmarked": 2}


# ---------------------------------------------------------------- killed


MARKS = """
import sys
from pathlib import Path
from transformatcher.annotation import edits
from transformatcher.annotation.project import Project
project = Project(Path(sys.argv[1]))
cat = project.categories()[0]
for number in range(100_000):
    edits.set_mark(project, 1, cat.keypoints[number % 3].id, 2, (number % 80, number % 60))
    print(number, flush=True)
"""


def test_kill_loses_nothing_that_was_reported_as_done(tmp_path: Path) -> None:
    with open_project(tmp_path) as project:
        cat = cat_of(project)
        add_automatic(project, 1, cat.id)
    process = subprocess.Popen([sys.executable, "-c", MARKS, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    reported = [process.stdout.readline() for _ in range(30)]
    process.send_signal(signal.SIGKILL)
    last = max(int(line) for line in [*reported, *process.stdout.readlines()])
    process.stdout.close()
    process.wait()
    with Project(tmp_path) as project:
        check_whole(project)
        done = len(project.database.rows("SELECT 1 FROM action WHERE name LIKE '%: move'"))
        assert done in (last + 1, last + 2)  # the one after the last may have been stored, too, but not reported yet
        marks = project.instance(1).marks
        for number in range(done - 3, done):
            assert marks[cat.keypoints[number % 3].id].xy == (number % 80, number % 60)
        project.undo()
        number = done - 4
        assert project.instance(1).marks[cat.keypoints[number % 3].id].xy == (number % 80, number % 60)
    assert not list(tmp_path.glob("keypoints.sqlite-*"))


def test_a_full_disk_takes_back_the_edit_that_found_it_full(project: Project) -> None:
    cat = cat_of(project)
    number = add_automatic(project, 1, cat.id)
    edits.set_mark(project, number, cat.keypoints[0].id, 2, (3.0, 4.0))
    before = said(project), project.journal.names(), project.revision, project.summaries()
    (pages,) = project.database.row("PRAGMA page_count") or ()
    project.database.row(f"PRAGMA max_page_count = {pages}")
    for _ in range(2):
        with pytest.raises(InputError, match="the last state is kept: make room on the disk and do it again"):
            edits.add_category(project, "dog", [str(number) for number in range(500)])
        assert (said(project), project.journal.names(), project.revision, project.summaries()) == before
    project.database.row("PRAGMA max_page_count = 100000")
    edits.add_category(project, "dog", [str(number) for number in range(500)])
    assert project.undo() is not None
    assert project.undo() == ("left eye: move", [1])
    check_whole(project)


# ---------------------------------------------------------------- revisions


def test_each_change_has_a_revision_and_names_its_photos(project: Project) -> None:
    before = project.revision
    edits.skip(project, 2)
    assert project.revision == before + 1
    assert [summary.id for summary in project.summaries(before)] == [2]
    assert project.undo() == ("skip", [2])
    assert [summary.id for summary in project.summaries(before + 1)] == [2]
    revision = project.revision
    assert project.undo() is None
    assert project.redo() is not None
    assert project.redo() is None
    assert project.revision == revision + 1


def test_a_change_that_fails_has_none(project: Project) -> None:
    before = project.revision, project.edits
    with pytest.raises(InputError):
        edits.add_category(project, "cat", ["a", "a"])
    assert (project.revision, project.edits) == before


def test_computed_changes_are_no_edits(project: Project) -> None:
    cat = cat_of(project)
    before = project.edits
    predict(project, add_automatic(project, 1, cat.id))
    assert project.edits == before
    edits.skip(project, 1)
    assert project.edits == before + 1
    project.undo()
    assert project.edits == before + 2


def test_waiting_ends_with_the_next_change(project: Project) -> None:
    revision, seen = project.revision, []
    thread = threading.Thread(target=lambda: seen.append(project.wait_for_change(revision, 20.0)))
    thread.start()
    time.sleep(0.05)
    assert seen == []
    edits.skip(project, 1)
    thread.join(10)
    assert seen == [revision + 1]
    assert project.wait_for_change(revision, 20.0) == revision + 1  # it is there already
    assert project.wait_for_change(revision + 1, 0.01) == revision + 1  # it does not come


def test_many_wait_read_and_write_at_once(project: Project) -> None:
    """Nobody waits for somebody who waits for him."""
    cat, stop, errors = cat_of(project), threading.Event(), []
    number = add_automatic(project, 1, cat.id)

    def work(step: object) -> None:
        try:
            while not stop.is_set():
                step()  # type: ignore[operator]
        except Exception as error:
            errors.append(error)

    steps = [
        lambda: predict(project, number),
        lambda: (edits.set_mark(project, number, cat.keypoints[0].id, 2, (3.0, 4.0)), project.undo()),
        lambda: project.wait_for_change(project.revision, 0.05),
        lambda: (project.summaries(), project.counts(), project.instances(), project.journal.names()),
    ]
    threads = [threading.Thread(target=work, args=(step,), daemon=True) for step in steps for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    stop.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert errors == []
    check_whole(project)


# ---------------------------------------------------------------- states and sizes


def test_the_states_of_a_photo(project: Project) -> None:
    cat = cat_of(project)
    number = add_automatic(project, 1, cat.id)

    def state() -> str:
        return project.summaries()[0].state

    assert state() == "unmarked"
    predict(project, number, 0.4)
    assert state() == "predicted"
    assert (project.summaries()[0].sureness, project.summaries()[0].same_kind) == (0.4, 0.8)
    edits.set_mark(project, number, cat.keypoints[0].id, 2, (3.0, 4.0))
    assert state() == "marked"
    edits.accept(project, 1)
    assert state() == "reviewed"
    assert project.summaries()[0].sureness is None
    edits.add_instance(project, 1, cat.id)
    assert state() == "marked"
    edits.skip(project, 1)
    assert state() == "reviewed"
    with project.changing([1]):
        project.database.run("UPDATE photo SET problem = 'broken' WHERE id = 1")
    assert state() == "failed"
    assert project.counts() == {"failed": 1, "unmarked": 2}


def test_summaries_inside_a_transaction_that_is_taken_back_are_forgotten(project: Project) -> None:
    before = project.summaries()

    def skip_and_fail() -> None:
        with project.database.transaction():
            edits.skip(project, 1)
            assert project.counts() == {"reviewed": 1, "unmarked": 2}
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        skip_and_fail()
    assert project.summaries() == before
    edits.skip(project, 2)
    assert [summary.state for summary in project.summaries()] == ["unmarked", "reviewed", "unmarked"]


def test_instances_of_any_number_of_photos(project: Project) -> None:
    cat = cat_of(project)
    number = add_automatic(project, 2, cat.id)
    assert [instance.id for instance in project.instances(range(1, 40_001))] == [number]
    assert project.instances([]) == []
    assert project.instances({1, 3}) == []
    with pytest.raises(InputError, match="no object has the id 99; it was removed"):
        project.instance(99)
    with pytest.raises(InputError, match="no photo has the id 99"):
        project.photo(99)
    with pytest.raises(InputError, match="no category has the id 99"):
        project.category(99)


def test_twenty_thousand_photos_answer_within_a_second(tmp_path: Path) -> None:
    """Limits are five times what a slow machine takes, and a tenth of what reading all anew for each answer would."""
    n = 20_000
    with Project(tmp_path) as project:
        cat = edits.add_category(project, "cat", [str(number) for number in range(10)])
        keypoints = [keypoint.id for keypoint in cat.keypoints]
        with project.changing() as touched:
            many = project.database.run_many
            many(
                "INSERT INTO photo (path, width, height, bytes, mtime_ns, digest) VALUES (?, 80, 60, 1, 1, ?)",
                [(f"{number:05d}.png", str(number)) for number in range(n)],
            )
            many("INSERT INTO instance (photo_id, category_id) VALUES (?, 1)", [(i + 1,) for i in range(n)])
            many(
                "INSERT INTO prediction VALUES (?, ?, 1.0, 2.0, 0.7, NULL, 0)",
                [(i + 1, keypoint) for i in range(n) for keypoint in keypoints],
            )
            touched |= set(range(1, n + 1))
        for query, limit_s in (
            (lambda: project.summaries(), 3.0),
            (lambda: project.summaries(), 0.5),
            (lambda: edits.set_mark(project, 7, keypoints[0], 2, (3.0, 4.0)), 0.5),
            (lambda: project.counts(), 0.5),
            (lambda: project.summaries(project.revision - 1), 0.5),
            (lambda: project.undo(), 0.5),
            (lambda: project.instances([7]), 0.5),
            (lambda: edits.change_category(project, cat.id, "dog", [(k, str(k)) for k in keypoints[:9]]), 5.0),
            (lambda: project.undo(), 5.0),
        ):
            start = time.perf_counter()
            query()
            assert time.perf_counter() - start < limit_s
        assert project.counts() == {"predicted": n}
    start = time.perf_counter()
    with Project(tmp_path) as project:
        assert time.perf_counter() - start < 2.0
        scan_photos(project)
        assert project.counts() == {"failed": n}  # none of them is in the folder

"""Folders held by one process, files written line by line."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from transformatcher.errors import InputError
from transformatcher.files import (
    append_lines,
    atomic_write,
    check_writable,
    complete_lines,
    copy_file,
    exclusive_lock,
    file_path,
    parse_json,
    write_bytes,
    write_text,
)

needs_locks = pytest.mark.skipif(sys.platform == "win32", reason="folders are not held on Windows")
HOLD = "import sys, time; from pathlib import Path; from transformatcher.files import exclusive_lock\n"


@needs_locks
class TestAlone:
    def test_one_at_a_time(self, tmp_path: Path):
        out = tmp_path / "new" / "folder"
        with exclusive_lock(out):
            with (
                pytest.raises(InputError, match=r"folder: another process is writing there; .*--out"),
                exclusive_lock(out),
            ):
                pass
            with exclusive_lock(tmp_path):  # one above is another
                pass
        with exclusive_lock(out):
            assert list(out.iterdir()) == []

    def test_what_was_held_ends_with_its_process(self, tmp_path: Path):
        code = f"{HOLD}with exclusive_lock(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)"
        with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            with pytest.raises(InputError, match="another process"), exclusive_lock(tmp_path):
                pass
            process.send_signal(signal.SIGKILL)
            process.wait()
            with exclusive_lock(tmp_path):
                pass

    def test_a_child_that_outlives_its_parent_holds_nothing(self, tmp_path: Path):
        code = f"""import os; {HOLD}with exclusive_lock(Path(sys.argv[1])):
            child = os.fork()
            if child == 0:
                os.close(1)
                time.sleep(60)
            print(child, flush=True)
            os._exit(0)"""
        run = subprocess.run([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True, check=True)
        child = int(run.stdout)
        try:
            with exclusive_lock(tmp_path):
                os.kill(child, 0)  # it is still there
        finally:
            os.kill(child, signal.SIGKILL)


class TestWhole:
    def test_of_two_writers_the_later_counts(self, tmp_path: Path):
        path = tmp_path / "x"

        def slow(new: Path) -> None:
            new.write_text("half of A")
            write_text(path, "B")  # begins and ends meanwhile
            assert path.read_text() == "B"
            new.write_text("all of A")

        atomic_write(path, slow)
        assert path.read_text() == "all of A"
        assert list(tmp_path.iterdir()) == [path]

    def test_what_fails_leaves_what_was_there(self, tmp_path: Path):
        path = tmp_path / "x"
        write_text(path, "before")

        def full(new: Path) -> None:
            new.write_text("half")
            raise OSError("No space left on device")

        with pytest.raises(InputError, match=r"x: cannot be written \(No space.*; what was there before is kept"):
            atomic_write(path, full)
        assert path.read_text() == "before"
        assert list(tmp_path.iterdir()) == [path]

    @needs_locks
    def test_what_a_killed_writer_left_goes_with_the_next(self, tmp_path: Path):
        def killed(new: Path) -> None:
            new.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

        child = os.fork()
        if child == 0:
            atomic_write(tmp_path / "x", killed)
        os.waitpid(child, 0)
        assert len(list(tmp_path.iterdir())) == 1
        with exclusive_lock(tmp_path):
            assert list(tmp_path.iterdir()) == []


def test_where_a_file_could_be_written(tmp_path: Path):
    (tmp_path / "file").touch()
    check_writable(tmp_path / "new")
    check_writable(tmp_path / "new" / "folder" / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(InputError, match="file is not a folder that can be written to"):
        check_writable(tmp_path / "file" / "new")
    with pytest.raises(InputError, match=r"cannot be written \(File name too long\)"):
        check_writable(tmp_path / ("x" * 300) / "file")


def test_json_without_half_characters():
    assert parse_json('["\\ud83d\\ude00"]') == ["😀"]
    for text in ('["\\ud800"]', '{"\\uDC00": 1}'):
        with pytest.raises(ValueError, match="surrogates"):
            parse_json(text)


def test_lines_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "x").mkdir()
    with pytest.raises(InputError, match=r"x: cannot be written \("), append_lines(tmp_path / "x"):
        pass


def test_lines_one_by_one(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    with append_lines(path) as write:
        write("é 1")
        assert complete_lines(path) == ["é 1"]  # on disk at once
    path.write_text("é 1\n2\n3 was cut o", encoding="utf-8")
    assert complete_lines(path) == ["é 1", "2"]
    with append_lines(path) as write:
        write("4")
    assert path.read_text(encoding="utf-8") == "é 1\n2\n4\n"
    path.write_bytes(b"\xff\n")
    with pytest.raises(InputError, match=r"x\.jsonl: not text in UTF-8"):
        complete_lines(path)


def test_bytes_and_copies_are_whole_or_not_there(tmp_path: Path):
    write_bytes(tmp_path / "a", b"abc")
    copy_file(tmp_path / "a", tmp_path / "deep" / "b")
    assert (tmp_path / "deep" / "b").read_bytes() == b"abc"
    with pytest.raises(InputError, match=r"gone: cannot be read \(No such file"):
        copy_file(tmp_path / "gone", tmp_path / "c")
    (tmp_path / "large").write_bytes(bytes(5000))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        for write in (
            lambda: copy_file(tmp_path / "large", tmp_path / "c"),
            lambda: write_bytes(tmp_path / "c", bytes(5000)),
        ):
            with pytest.raises(InputError, match=r"c: cannot be written \(File too large\)"):
                write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "deep", "large"]


@pytest.mark.parametrize("name", ["", "a/", "a/b/"])
def test_a_name_that_no_file_has(name):
    with pytest.raises(InputError, match="name"):
        file_path(name)
    assert file_path("a/b.png") == Path("a/b.png")

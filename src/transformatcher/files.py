"""Text and JSON ↔ files: written completely or not at all, read with errors that name the file."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from transformatcher.errors import InputError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

UNFINISHED = ".new"  # the suffix of a file while it is written
_open_locks: set[int] = set()  # file descriptors of the folders and files that this process has locked


def write_text(path: Path, text: str) -> None:
    """Write text to a file, completely or not at all."""
    atomic_write(path, lambda new: new.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes to a file, completely or not at all."""
    atomic_write(path, lambda new: new.write_bytes(data))


def copy_file(source: Path, path: Path) -> None:
    """Copy a file, completely or not at all; an error names the file that could not be read, or written."""
    try:
        file = source.open("rb")
    except OSError as error:
        raise InputError(f"{source}: cannot be read ({error.strerror or error})") from error

    def write(new: Path) -> None:
        with new.open("wb") as copy:
            shutil.copyfileobj(file, copy)

    with file:
        atomic_write(path, write)


def atomic_write(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a temporary name, then rename it: an interruption leaves the old file as it was.

    The temporary name is random, so of two processes that write the same file, the later one wins.

    Args:
        path: the file.
        write: writes the temporary file, whose path it is given.

    Example:
        >>> atomic_write(Path("out/numbers.txt"), lambda new: new.write_text("1 2 3"))
    """
    make_folder(path.parent)
    new = path.with_name(f".{path.name}.{token_hex(4)}{UNFINISHED}")
    try:
        write(new)
        os.replace(new, path)  # noqa: PTH105 (atomic on every system, which rename is not)
    except OSError as error:
        kept = "; what was there before is kept" if path.exists() else ""
        raise InputError(f"{path}: cannot be written ({error.strerror or error}){kept}") from error
    finally:
        with suppress(OSError):  # an error of the writing matters more
            new.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of writers that were killed. Nobody else may be writing to the folder."""
    for left in folder.glob(f".*{UNFINISHED}"):
        left.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, if they do not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be created as a folder ({error.strerror})") from error


def file_path(name: str, option: str = "--out") -> Path:
    """The path of a file to be written, or an InputError for a name that is none, such as ``picture.png/``."""
    if not name:
        raise InputError(f"{option} is empty; name a file")
    if name.endswith(("/", os.sep)):
        raise InputError(f"{option} {name}: the name of a folder; name the file itself")
    return Path(name)


def check_writable(path: Path) -> None:
    """Raise an InputError if a file could not be written there; for work that takes long before it writes."""
    try:
        folder = next(parent for parent in path.absolute().parents if parent.exists())
    except OSError as error:  # a name too long, a folder without permission
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path}: cannot be written, {folder} is not a folder that can be written to")


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Lock a folder, which is created if it does not exist: another process that locks it meanwhile gets an error.

    A folder that was created here and is still empty at the end is removed. The lock ends with the process, however
    that ends; temporary files that it left are removed by the next one. On Windows, and on file systems without locks,
    nothing is locked.

    Example:
        >>> with exclusive_lock(Path("out")):
        ...     write_text(Path("out/result.json"), "{}")
    """
    made = not folder.exists()
    make_folder(folder)
    try:
        with nullcontext() if sys.platform == "win32" else _locked(folder):
            yield
    finally:
        if made:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


@contextmanager
def exclusive_file_lock(path: Path, problem: str) -> Iterator[None]:
    """Lock a file by a second one beside it, ``<name>.lock``, which is removed at the end (on Windows, it stays).

    The lock ends with the process, however that ends. Programs that lock the file itself, as SQLite does, are not
    disturbed. On file systems without locks, nothing is locked.

    Args:
        path: the file; it need not exist, its folder must.
        problem: the message of the InputError if another process has the lock.

    Example:
        >>> with exclusive_file_lock(Path("a.sqlite"), "a.sqlite: another process has it open; close that first"):
        ...     change(Path("a.sqlite"))
    """
    lock = path.with_name(f"{path.name}.lock")
    with _open_locked(lock, os.O_RDWR | os.O_CREAT, problem):
        try:
            yield
        finally:
            with suppress(OSError):  # Windows does not remove a file that is open
                lock.unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    problem = f"{folder}: another process is writing there; wait until it has ended, or choose another --out"
    with _open_locked(folder, os.O_RDONLY, problem):
        remove_unfinished(folder)
        yield


@contextmanager
def _open_locked(path: Path, flags: int, problem: str) -> Iterator[None]:
    handle = _open_and_lock(path, flags, problem)
    while not _is_at(path, handle):  # its last owner has removed it between both calls
        _close(handle)
        handle = _open_and_lock(path, flags, problem)
    try:
        yield
    finally:
        _close(handle)


def _open_and_lock(path: Path, flags: int, problem: str) -> int:
    try:
        handle = os.open(path, flags, 0o644)
    except OSError as error:
        raise InputError(f"{path}: cannot be opened ({error.strerror})") from error
    _open_locks.add(handle)
    try:
        if sys.platform == "win32":
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        _close(handle)
        raise InputError(problem) from error
    except OSError:  # a file system without locks
        pass
    return handle


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _close(handle: int) -> None:
    _open_locks.discard(handle)
    os.close(handle)


def _release_after_fork() -> None:
    """Drop all locks in a child process: one that outlives its parent must not block the next run."""
    for handle in _open_locks:
        os.close(handle)
    _open_locks.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_release_after_fork)


def complete_lines(path: Path) -> list[str]:
    """The lines of a file that is written line by line, without a last line that was cut off."""
    try:
        text = path.read_text(encoding="utf-8")
    except ValueError as error:
        raise InputError(f"{path}: not text in UTF-8 ({error})") from error
    return text[: text.rfind("\n") + 1].splitlines()


@contextmanager
def append_lines(path: Path) -> Iterator[Callable[[str], None]]:
    """Yield a function that appends a line to a file; a last line that was cut off is removed first.

    Every line is flushed, so that it survives if the process is killed.

    Example:
        >>> with append_lines(Path("log.jsonl")) as write:
        ...     write('{"step": 1}')
    """

    def failure(error: OSError) -> InputError:
        return InputError(f"{path}: cannot be written ({error.strerror or error})")

    try:
        file = path.open("ab+")
    except OSError as error:
        raise failure(error) from error
    with file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)

        def write(line: str) -> None:
            try:
                file.write(f"{line}\n".encode())
                file.flush()
            except OSError as error:
                raise failure(error) from error

        yield write


def parse_json(text: str) -> Any:
    """JSON → Python objects; ValueError also for half a character (a lone surrogate), which no file can store."""
    data = json.loads(text)
    if "\\ud" in text.lower():
        json.dumps(data, ensure_ascii=False).encode()
    return data


def read_json(path: Path) -> Any:
    """Read a JSON file, with or without a byte-order mark."""
    try:
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:  # RecursionError: too many nested brackets
        raise InputError(f"{path}: not valid JSON ({error})") from error


def is_file(path: Path) -> bool:
    """Whether a file exists; False also for a name that no file can have, such as one that is too long."""
    try:
        return path.is_file()
    except OSError:
        return False

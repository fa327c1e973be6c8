"""Text and JSON ↔ files: written whole or not at all, read with an error that names the file."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from transformatcher.errors import InputError

if sys.platform != "win32":
    import fcntl

UNFINISHED = ".new"  # what a file's name ends in while it is written
_held: set[int] = set()  # descriptors of folders that this process holds


def write_text(path: Path, text: str) -> None:
    """Text → a file, whole or not at all."""
    atomic_write(path, lambda new: new.write_text(text, encoding="utf-8"))


def atomic_write(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` write under another name, then put the file in place: an interruption leaves what was there.

    The name is this writer's own, so that of two the later one counts, whole.
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
        with suppress(OSError):  # that of the writing is what matters
            new.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove what writers left that were killed; nobody else may be writing there."""
    for left in folder.glob(f".*{UNFINISHED}"):
        left.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Create a folder and those above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made a folder to write to ({error.strerror})") from error


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
    """Make a folder if need be and hold it: another process that asks for the same meanwhile gets an error.

    One that was made and is still empty in the end is removed again.

    What a process holds is free when it ends, however that is; files that it was writing then are removed by the next.
    Windows and file systems without locks hold nothing.
    """
    made = not folder.exists()
    make_folder(folder)
    try:
        with nullcontext() if sys.platform == "win32" else _locked(folder):
            yield
    finally:
        if made:
            with suppress(OSError):  # one that holds something stays
                folder.rmdir()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"{folder}: cannot be opened ({error.strerror})") from error
    _held.add(handle)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_unfinished(folder)
        except BlockingIOError as error:
            raise InputError(
                f"{folder}: another process is writing there; wait until it has ended, or choose another --out"
            ) from error
        except OSError:
            pass
        yield
    finally:
        _held.discard(handle)
        os.close(handle)


def _release_after_fork() -> None:
    """Children hold nothing: one that outlives its parent must not stand in the way of the next run."""
    for handle in _held:
        os.close(handle)
    _held.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_release_after_fork)


def complete_lines(path: Path) -> list[str]:
    """The lines of a file that is written line by line; one that is not yet whole, or was cut off, is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except ValueError as error:
        raise InputError(f"{path}: not text in UTF-8 ({error})") from error
    return text[: text.rfind("\n") + 1].splitlines()


@contextmanager
def append_lines(path: Path) -> Iterator[Callable[[str], None]]:
    """A function that puts a line behind the whole ones that are there, out of this process's hands when it returns."""

    def fault(error: OSError) -> InputError:
        return InputError(f"{path}: cannot be written ({error.strerror or error})")

    try:
        file = path.open("ab+")
    except OSError as error:
        raise fault(error) from error
    with file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)

        def write(line: str) -> None:
            try:
                file.write(f"{line}\n".encode())
                file.flush()
            except OSError as error:
                raise fault(error) from error

        yield write


def parse_json(text: str) -> Any:
    """JSON → Python's values; ValueError also for half a character (a lone surrogate), which no file can hold."""
    data = json.loads(text)
    if "\\ud" in text.lower():
        json.dumps(data, ensure_ascii=False).encode()
    return data


def read_json(path: Path) -> Any:
    """A JSON file, with or without a byte-order mark."""
    try:
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:  # the latter of brackets within brackets within …
        raise InputError(f"{path}: not valid JSON ({error})") from error


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have is none."""
    try:
        return path.is_file()
    except OSError:
        return False

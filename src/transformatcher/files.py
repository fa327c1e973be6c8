"""Text and JSON ↔ files: written whole or not at all, read with an error that names the file."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformatcher.errors import InputError


def write_text(path: Path, text: str) -> None:
    """Text → a file, whole or not at all."""
    write_whole(path, lambda new: new.write_text(text, encoding="utf-8"))


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` write under another name, then put the file in place: an interruption leaves what was there."""
    make_folder(path.parent)
    new = path.with_name(f".{path.name}.new")
    try:
        write(new)
        os.replace(new, path)  # noqa: PTH105 (atomic on every system, which rename is not)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        with suppress(OSError):  # that of the writing is what matters
            new.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Create a folder and those above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made a folder to write to ({error.strerror})") from error


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

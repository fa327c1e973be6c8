"""Files by path or URL → their bytes; folders, here or at a URL, whose files are written whole or not at all.

URLs are read and written through fsspec: ``https://``, ``s3://`` (with the package s3fs), ``gs://`` (gcsfs), …
"""

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import IO, Any

from transformatcher.errors import InputError
from transformatcher.files import UNFINISHED, atomic_write, exclusive_lock

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::|://)")


def is_url(name: str | Path) -> bool:
    """Whether a name is a URL, such as ``s3://bucket/photo.jpg``, and not a path."""
    return isinstance(name, str) and URL.match(name) is not None


def absolute(name: str | Path) -> str:
    """A path that means the same in every process; URLs do already."""
    return str(name) if is_url(name) else os.path.abspath(name)  # noqa: PTH100 (keeps links as they are)


@contextmanager
def open_binary(name: str | Path) -> Iterator[IO[bytes]]:
    """Open a file by path or URL to read it; of what happens meanwhile, errors of file systems name the file."""
    try:
        if is_url(name):
            import fsspec

            opened: Any = fsspec.open(str(name), "rb")
        else:
            opened = Path(name).open("rb")  # noqa: SIM115 (the with statement below closes it)
    except Exception as error:  # file systems raise errors of many kinds
        raise _failure(name, "read", error) from error
    with _errors(name, "read", passed=(ValueError, TypeError, KeyError)), opened as file:
        yield file


def read_bytes(name: str | Path) -> bytes:
    """The content of a file by path or URL."""
    with open_binary(name) as file:
        return file.read()


def file_bytes(name: str | Path) -> int:
    """The size of a file by path or URL; 0 where it is not known."""
    if not is_url(name):
        return Path(name).stat().st_size if Path(name).is_file() else 0
    import fsspec

    with _errors(name, "read"):
        fs, path = fsspec.core.url_to_fs(str(name))
        return int(fs.size(path) or 0)


@dataclass(frozen=True)
class ImageRoot:
    """The folder or URL that names of images are relative to. No name leads out of it, unless ``anywhere``."""

    name: str
    anywhere: bool = False

    def locate(self, name: str) -> str:
        """The path or URL of an image; an InputError if it lies outside."""
        if is_url(name) or is_url(self.name):
            full = name if is_url(name) else f"{self.name.rstrip('/')}/{name}"
            inside = full.startswith(f"{self.name.rstrip('/')}/") and ".." not in full.split("/")
        else:
            full = os.path.join(self.name, name)  # noqa: PTH118 (strings are ten times as fast)
            try:
                root = os.path.realpath(self.name)
                inside = os.path.commonpath([root, os.path.realpath(full)]) == root
            except (OSError, ValueError) as error:  # a name too long, or with a NUL byte
                raise InputError(f"{name!r}: not the name of a file ({error})") from error
        if not (inside or self.anywhere):
            raise InputError(f"{name}: lies outside {self.name}; choose another --root, or give --allow-outside")
        return full


@dataclass(frozen=True)
class Folder:
    """A folder by path or URL. It is created with its first file.

    Args:
        name: ``out/matches`` or ``s3://bucket/matches``.

    Example:
        >>> folder = Folder("memory://matches")
        >>> folder.write("part-0.parquet", b"…")
        >>> folder.names()
        {'part-0.parquet'}
    """

    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def remote(self) -> bool:
        """Whether it is at a URL."""
        return is_url(self.name)

    def path(self, name: str) -> str:
        """The path or URL of a file in it."""
        return f"{self.name.rstrip('/')}/{name}" if self.remote else os.path.join(self.name, name)  # noqa: PTH118

    def names(self) -> set[str]:
        """The names of all files in it, without those that are being written."""
        with _errors(self.name, "read"):
            if self.remote:
                fs, root = self._fs()
                fs.invalidate_cache()
                found = [str(path) for path in fs.ls(root, detail=False)] if fs.exists(root) else []
            else:
                found = os.listdir(self.name) if Path(self.name).exists() else []  # noqa: PTH208 (of names alone)
        names = (path.rstrip("/").rpartition("/")[2] for path in found)
        return {name for name in names if not name.startswith(".")}

    def read(self, name: str) -> bytes:
        """The content of a file in it."""
        return read_bytes(self.path(name))

    def write(self, name: str, data: bytes) -> None:
        """Write a file in it: under another name first, so that nobody ever reads half of it."""
        if not self.remote:
            atomic_write(Path(self.path(name)), lambda new: new.write_bytes(data))
            return
        with _errors(self.path(name), "written"):
            fs, root = self._fs()
            new = f"{root}/.{name}.{token_hex(4)}{UNFINISHED}"
            fs.makedirs(root, exist_ok=True)
            try:
                fs.pipe_file(new, data)
                fs.mv(new, f"{root}/{name}")
            except BaseException:
                with suppress(Exception):
                    fs.rm(new)
                raise

    def remove(self, name: str) -> None:
        """Remove a file in it."""
        with _errors(self.path(name), "removed"):
            if self.remote:
                fs, root = self._fs()
                fs.rm(f"{root}/{name}")
            else:
                Path(self.path(name)).unlink()

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from writing there; at a URL, nothing is locked."""
        return nullcontext() if self.remote else exclusive_lock(Path(self.name))

    def _fs(self) -> tuple[Any, str]:
        import fsspec

        fs, root = fsspec.core.url_to_fs(self.name)
        return fs, root.rstrip("/")


@contextmanager
def _errors(name: str | Path, what: str, passed: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Errors of file systems, which are of many kinds, as an InputError that names the file."""
    unchanged: tuple[type[Exception], ...] = (InputError, MemoryError, *passed)
    try:
        yield
    except unchanged:
        raise
    except Exception as error:
        raise _failure(name, what, error) from error


def _failure(name: str | Path, what: str, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"{name}: no such file")
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return InputError(f"{name}: cannot be {what} ({reason})")

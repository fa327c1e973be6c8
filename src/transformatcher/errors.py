"""Unusable input → one clear sentence."""

import re
from importlib.util import find_spec

LONGEST_WORD = 500  # characters of a name in a message; of a longer one, its beginning and its end
LONGEST_MESSAGE = 4000


class InputError(Exception):
    """Something that the user gave cannot be used.

    The message names the file, the number and the way out. The command line prints it and exits with 2. Names in it
    may come from anywhere: it is made printable, see :func:`printable`.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: object) -> str:
    """Text that may hold names from outside → one line for a terminal, a log or a page.

    What cannot be printed stands as in ``repr``: control characters, line breaks, half characters of names that are
    not UTF-8. What is very long is shortened in its middle.

    >>> printable("a\\x1b[31m\\nb.jpg: no such file")
    'a\\\\x1b[31m\\\\nb.jpg: no such file'
    """
    line = str(text)
    if not line.isprintable():
        line = "".join(char if char.isprintable() else _escaped(char) for char in line)
    line = re.sub(rf"\S{{{LONGEST_WORD + 1},}}", lambda word: _shortened(word[0], LONGEST_WORD), line)
    return _shortened(line, LONGEST_MESSAGE)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest * 2 // 3]}…{text[-longest // 3 + 1 :]}"


def missing_package(purpose: str, package: str, extra: str) -> InputError:
    """The error for an optional package that is not installed.

    Example:
        >>> str(missing_package("matching a list of pairs", "pyarrow", "bulk"))
        "matching a list of pairs needs the package pyarrow: pip install pyarrow (part of the extra 'bulk')"
    """
    return InputError(f"{purpose} needs the package {package}: pip install {package} (part of the extra {extra!r})")


def require_packages(purpose: str, *packages: str, extra: str) -> None:
    """Raise an error that names the first of ``packages`` that is not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise missing_package(purpose, package, extra)

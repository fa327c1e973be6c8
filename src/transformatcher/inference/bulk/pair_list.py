"""A CSV or JSON-lines file → the pairs it lists, streamed."""

import csv
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from transformatcher.errors import InputError
from transformatcher.files import parse_json


@dataclass(frozen=True)
class ListedPair:
    """One line of the list. What is wrong with it is found when its turn comes."""

    index: int  # from 0, in the whole list
    src: str
    trg: str
    keypoints: Any = None  # [[x, y], …] in pixels of the source; None or []: the cells that find back to themselves
    fault: str = ""


@dataclass(frozen=True)
class PairList:
    """A .csv file (columns src, trg and, if need be, keypoints as 'x,y;x,y') or a .jsonl file with those keys.

    Relative names of images start at the list's own folder. Never more than a part of it is in memory.
    """

    path: Path
    count: int
    digest: str  # of its bytes

    def parts(self, starts: Iterable[int], length: int) -> Iterator[tuple[int, list[ListedPair]]]:
        """The parts that begin at ``starts``, which rise, in one pass over the file."""
        lines, place = _lines(self.path), 0
        for start in starts:
            part = list(islice(lines, start - place, start - place + length))
            place = start + len(part)
            yield start, part

    def image(self, name: str) -> Path:
        """Where an image of the list is."""
        return self.path.parent / name


def open_list(path: Path) -> PairList:
    """Count the pairs of a list, in one pass."""
    digest, count = hashlib.sha256(), 0
    for count, _ in enumerate(_lines(path, digest.update), 1):  # noqa: B007
        pass
    if not count:
        raise InputError(f"{path}: holds no pair at all")
    return PairList(path, count, digest.hexdigest()[:16])


def _lines(path: Path, see: Callable[[bytes], None] = lambda _: None) -> Iterator[ListedPair]:
    if path.suffix.lower() not in (".csv", ".jsonl"):
        raise InputError(f"{path}: a list of pairs is a .csv file (columns src, trg, keypoints) or a .jsonl file")
    if not path.is_file():
        raise InputError(f"{path}: no such list of pairs")

    def text() -> Iterator[str]:
        with path.open("rb") as file:
            for number, line in enumerate(file):
                see(line)
                yield line.decode("utf-8-sig" if number == 0 else "utf-8", errors="replace")

    yield from _jsonl(text()) if path.suffix.lower() == ".jsonl" else _csv(text(), path)


def _csv(lines: Iterator[str], path: Path) -> Iterator[ListedPair]:
    try:
        reader = csv.DictReader(lines, skipinitialspace=True)
        missing = [name for name in ("src", "trg") if name not in (reader.fieldnames or [])]
        if missing:
            given = ", ".join(reader.fieldnames or []) or "nothing"
            raise InputError(f"{path}: no column {' and no column '.join(missing)}; the first line names {given}")
        for index, row in enumerate(reader):
            yield _pair(index, row)
    except csv.Error as error:
        raise InputError(f"{path}: not a .csv file that can be read ({error})") from error


def _jsonl(lines: Iterator[str]) -> Iterator[ListedPair]:
    for index, line in enumerate(line for line in lines if line.strip()):
        try:
            row = parse_json(line)
            if not isinstance(row, dict):
                raise TypeError(f"expected an object, found {type(row).__name__}")
        except (ValueError, TypeError, RecursionError) as error:
            yield ListedPair(index, "", "", fault=f"not a line of JSON that names src and trg ({error})")
        else:
            yield _pair(index, row)


def _pair(index: int, row: Mapping[str | None, Any]) -> ListedPair:
    src, trg, keypoints = row.get("src"), row.get("trg"), row.get("keypoints")
    if not (isinstance(src, str) and isinstance(trg, str) and src and trg):
        return ListedPair(index, str(src or ""), str(trg or ""), fault="src and trg must be names of images")
    if isinstance(keypoints, str):
        try:
            keypoints = [[float(n) for n in point.split(",")] for point in keypoints.split(";") if point.strip()]
        except ValueError as error:
            return ListedPair(index, src, trg, fault=f"keypoints must be 'x,y;x,y' ({error})")
    return ListedPair(index, src, trg, keypoints or None)

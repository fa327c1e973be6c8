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
    """One line of the list. Images and keypoints are checked when the pair is matched."""

    index: int  # from 0, in the whole list
    src: str
    trg: str
    keypoints: Any = None  # [[x, y], …] in pixels of the source; None or []: the cycle-consistent cells of the grid
    error: str = ""  # what is wrong with the line itself


@dataclass(frozen=True)
class PairList:
    """A .csv file with the columns src, trg and (optional) keypoints as 'x,y;x,y', or a .jsonl file with those keys.

    Relative names of images start at the list's own folder. The file is streamed, one shard of pairs at a time.
    """

    path: Path
    count: int
    digest: str  # a short hash of its bytes

    def shards(self, starts: Iterable[int], length: int) -> Iterator[tuple[int, list[ListedPair]]]:
        """The shards of ``length`` pairs that begin at ``starts`` (ascending), in one pass over the file."""
        lines, position = _read_pairs(self.path), 0
        for start in starts:
            shard = list(islice(lines, start - position, start - position + length))
            position = start + len(shard)
            yield start, shard

    def image(self, name: str) -> Path:
        """The file of an image that the list names."""
        return self.path.parent / name


def open_list(path: Path) -> PairList:
    """Count the pairs of a list and hash its bytes, in one pass.

    Example:
        >>> open_list(Path("pairs.csv")).count
    """
    digest, count = hashlib.sha256(), 0
    for count, _ in enumerate(_read_pairs(path, digest.update), 1):  # noqa: B007
        pass
    if not count:
        raise InputError(f"{path}: lists no pairs")
    return PairList(path, count, digest.hexdigest()[:16])


def _read_pairs(path: Path, inspect: Callable[[bytes], None] = lambda _: None) -> Iterator[ListedPair]:
    """The pairs of a list; ``inspect`` is called with the bytes of every line."""
    if path.suffix.lower() not in (".csv", ".jsonl"):
        raise InputError(f"{path}: a list of pairs is a .csv file (columns src, trg, keypoints) or a .jsonl file")
    if not path.is_file():
        raise InputError(f"{path}: no such list of pairs")

    def text() -> Iterator[str]:
        with path.open("rb") as file:
            for number, line in enumerate(file):
                inspect(line)
                yield line.decode("utf-8-sig" if number == 0 else "utf-8", errors="replace")

    yield from _read_jsonl(text()) if path.suffix.lower() == ".jsonl" else _read_csv(text(), path)


def _read_csv(lines: Iterator[str], path: Path) -> Iterator[ListedPair]:
    try:
        reader = csv.DictReader(lines, skipinitialspace=True)
        missing = [name for name in ("src", "trg") if name not in (reader.fieldnames or [])]
        if missing:
            given = ", ".join(reader.fieldnames or []) or "nothing"
            raise InputError(f"{path}: no column {' and no column '.join(missing)}; the first line names {given}")
        for index, row in enumerate(reader):
            yield _parse_pair(index, row)
    except csv.Error as error:
        raise InputError(f"{path}: not a valid .csv file ({error})") from error


def _read_jsonl(lines: Iterator[str]) -> Iterator[ListedPair]:
    for index, line in enumerate(line for line in lines if line.strip()):
        try:
            row = parse_json(line)
            if not isinstance(row, dict):
                raise TypeError(f"expected an object, found {type(row).__name__}")
        except (ValueError, TypeError, RecursionError) as error:
            yield ListedPair(index, "", "", error=f"not a line of JSON that names src and trg ({error})")
        else:
            yield _parse_pair(index, row)


def _parse_pair(index: int, row: Mapping[str | None, Any]) -> ListedPair:
    src, trg, keypoints = row.get("src"), row.get("trg"), row.get("keypoints")
    if not (isinstance(src, str) and isinstance(trg, str) and src and trg):
        return ListedPair(index, str(src or ""), str(trg or ""), error="src and trg must be names of images")
    if isinstance(keypoints, str):
        try:
            keypoints = [[float(n) for n in point.split(",")] for point in keypoints.split(";") if point.strip()]
        except ValueError as error:
            return ListedPair(index, src, trg, error=f"keypoints must be 'x,y;x,y' ({error})")
    return ListedPair(index, src, trg, keypoints or None)

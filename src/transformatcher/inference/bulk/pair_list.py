"""A CSV, JSON-lines or Parquet file, by path or URL → the pairs it lists, streamed."""

import csv
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from transformatcher.errors import InputError, require_packages
from transformatcher.files import parse_json
from transformatcher.storage import is_url, open_binary

COLUMNS = ("src", "trg", "keypoints")
BLOCK = 2**20  # bytes that are hashed at a time


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
    """A list with the columns src, trg and (optional) keypoints; it is streamed, one shard of pairs at a time.

    A .csv file has keypoints as 'x,y;x,y', a .jsonl or .parquet file as lists [[x, y], …] or as the same text.
    """

    path: str
    count: int
    digest: str  # a short hash of its bytes

    def shards(self, starts: Iterable[int], length: int) -> Iterator[tuple[int, list[ListedPair]]]:
        """The shards of ``length`` pairs that begin at ``starts`` (ascending), in one pass over the file."""
        lines, position = _read_pairs(self.path), 0
        for start in starts:
            shard = list(islice(lines, start - position, start - position + length))
            position = start + len(shard)
            yield start, shard

    @property
    def folder(self) -> str:
        """The folder or URL that it lies in."""
        return self.path.rpartition("/")[0] if is_url(self.path) else str(Path(self.path).parent)


def open_list(path: str | Path) -> PairList:
    """Count the pairs of a list and hash its bytes, in one pass.

    Example:
        >>> open_list("pairs.csv").count
        3
    """
    digest, count = hashlib.sha256(), 0
    for count, _ in enumerate(_read_pairs(str(path), digest.update), 1):  # noqa: B007
        pass
    if not count:
        raise InputError(f"{path}: lists no pairs")
    return PairList(str(path), count, digest.hexdigest()[:16])


def _read_pairs(path: str, inspect: Callable[[bytes], None] = lambda _: None) -> Iterator[ListedPair]:
    """The pairs of a list; ``inspect`` is called with all its bytes, in order."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".csv", ".jsonl", ".parquet"):
        raise InputError(f"{path}: a list of pairs is a .csv, .jsonl or .parquet file (columns src, trg, keypoints)")
    if not (is_url(path) or Path(path).is_file()):
        raise InputError(f"{path}: no such list of pairs")
    with open_binary(path) as file:
        if suffix == ".parquet":
            yield from _read_parquet(file, path, inspect)
        else:
            yield from (_read_jsonl if suffix == ".jsonl" else _read_csv)(_lines(file, inspect), path)


def _lines(file: Iterable[bytes], inspect: Callable[[bytes], None]) -> Iterator[str]:
    for number, line in enumerate(file):
        inspect(line)
        yield line.decode("utf-8-sig" if number == 0 else "utf-8", errors="replace")


def _read_csv(lines: Iterator[str], path: str) -> Iterator[ListedPair]:
    try:
        reader = csv.DictReader(lines, skipinitialspace=True)
        _check_columns(reader.fieldnames or [], path)
        for index, row in enumerate(reader):
            yield parse_pair(index, row)
    except csv.Error as error:
        raise InputError(f"{path}: not a valid .csv file ({error})") from error


def _read_jsonl(lines: Iterator[str], _path: str) -> Iterator[ListedPair]:
    for index, line in enumerate(line for line in lines if line.strip()):
        try:
            row = parse_json(line)
            if not isinstance(row, dict):
                raise TypeError(f"expected an object, found {type(row).__name__}")
        except (ValueError, TypeError, RecursionError) as error:
            yield ListedPair(index, "", "", error=f"not a line of JSON that names src and trg ({error})")
        else:
            yield parse_pair(index, row)


def _read_parquet(file: Any, path: str, inspect: Callable[[bytes], None]) -> Iterator[ListedPair]:
    require_packages("reading a .parquet list", "pyarrow", extra="bulk")
    import pyarrow as pa
    import pyarrow.parquet as pq

    while block := file.read(BLOCK):
        inspect(block)
    file.seek(0)
    try:
        table = pq.ParquetFile(file)
        _check_columns(table.schema_arrow.names, path)
        columns = [name for name in COLUMNS if name in table.schema_arrow.names]
        rows = (row for batch in table.iter_batches(1000, columns=columns) for row in batch.to_pylist())
        for index, row in enumerate(rows):
            yield parse_pair(index, row)
    except pa.ArrowException as error:
        raise InputError(f"{path}: not a valid .parquet file ({error})") from error


def _check_columns(names: Iterable[str], path: str) -> None:
    given = list(names)
    if missing := [name for name in ("src", "trg") if name not in given]:
        listed = ", ".join(given) or "nothing"
        raise InputError(f"{path}: no column {' and no column '.join(missing)}; its columns are {listed}")


def parse_pair(index: int, row: Mapping[Any, Any]) -> ListedPair:
    """A row with src, trg and perhaps keypoints → the pair, with an error if it is none."""
    src, trg, keypoints = row.get("src"), row.get("trg"), row.get("keypoints")
    if not (isinstance(src, str) and isinstance(trg, str) and src and trg):
        return ListedPair(index, str(src or ""), str(trg or ""), error="src and trg must be names of images")
    if isinstance(keypoints, str):
        try:
            keypoints = [[float(n) for n in point.split(",")] for point in keypoints.split(";") if point.strip()]
        except ValueError as error:
            return ListedPair(index, src, trg, error=f"keypoints must be 'x,y;x,y' ({error})")
    empty = keypoints is None or (hasattr(keypoints, "__len__") and len(keypoints) == 0)
    return ListedPair(index, src, trg, None if empty else keypoints)

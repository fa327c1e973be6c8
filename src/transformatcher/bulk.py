"""A long list of pairs → matches in Parquet files: streamed, shared among processes, each pair exactly once.

The list is cut into parts of so many pairs, by their place in the list alone, and a part becomes one file, whole or not
at all. Whatever is killed, and with however many processes it is started again, a part that is there is done, and one
that is not is done from its beginning. Processes do not talk to each other: if one dies, the others go on.
"""

import csv
import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transformatcher.config import to_plain
from transformatcher.coords import grid_norm, norm_to_px
from transformatcher.data.pairs import point_array, stack_points
from transformatcher.errors import InputError
from transformatcher.files import parse_json, read_json, remove_unfinished, write_text, write_whole
from transformatcher.images import to_tensor
from transformatcher.keypoints import bilinear_sample
from transformatcher.models.flow import drift, reverse
from transformatcher.models.matcher import TransforMatcher
from transformatcher.predictor import NO_MATCH, Matcher, check_points, to_pixels
from transformatcher.schema import Flow, Size
from transformatcher.tensors import hash_tensors

if TYPE_CHECKING:
    import pyarrow

RUN = "_run.json"  # readers of Parquet folders pass over names that begin so
PART_PAIRS = 1000
CACHE_BYTES = 2 * 2**30
MOST_WORDS = 500  # characters of an error that are kept
Item = TypeVar("Item")


# ---------------------------------------------------------------- the list


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


# ---------------------------------------------------------------- images, each looked at once


@dataclass(frozen=True)
class Decoded:
    """An image as the network takes it."""

    pixels: Float[Tensor, "3 h w"]
    size: Size  # of the original


@dataclass(frozen=True)
class Seen:
    """An image's features, or why there are none."""

    size: Size = (0, 0)
    features: tuple[Tensor, ...] = ()  # (1, c, h, w) each
    fault: str = ""

    @property
    def bytes(self) -> int:
        """What keeping it costs, nearly."""
        return 1000 + len(self.fault) + sum(f.numel() * f.element_size() for f in self.features)


@dataclass
class Cache:
    """The features of the images used last, up to so many bytes."""

    limit: int
    kept: OrderedDict[str, Seen] = field(default_factory=OrderedDict)
    bytes: int = 0
    encoded: int = 0  # images whose features were computed

    def get(self, name: str) -> Seen | None:
        """What is kept of an image, which now counts as just used."""
        if name in self.kept:
            self.kept.move_to_end(name)
        return self.kept.get(name)

    def put(self, name: str, seen: Seen) -> None:
        """Keep it, and let go of those that were used longest ago."""
        self.kept[name] = seen
        self.bytes += seen.bytes
        while self.bytes > self.limit and len(self.kept) > 1:
            _, old = self.kept.popitem(last=False)
            self.bytes -= old.bytes


def _decode(path: Path, size: Size) -> Decoded | str:
    """An image, or what is wrong with it: one bad file among millions must not end the work."""
    try:
        pixels = to_pixels(path)
        return Decoded(to_tensor(pixels, size), (pixels.shape[0], pixels.shape[1]))
    except (InputError, MemoryError, OSError) as error:
        return (str(error) or f"{path}: too large for this machine's memory")[:MOST_WORDS]


class Encoder:
    """Names of images → their features; threads decode what comes next while the network is busy."""

    def __init__(self, matcher: Matcher, pairs: PairList, cache: Cache, pool: ThreadPoolExecutor) -> None:
        self.matcher, self.list, self.cache, self.pool = matcher, pairs, cache, pool
        self.coming: dict[str, Future[Decoded | str]] = {}

    def expect(self, names: Iterable[str]) -> None:
        """Begin to decode those that are not there."""
        for name in names:
            if name not in self.cache.kept and name not in self.coming:
                path = self.list.image(name)
                self.coming[name] = self.pool.submit(_decode, path, self.matcher.config.image_size)

    def see(self, names: Sequence[str]) -> dict[str, Seen]:
        """All of them, those that are new in one go through the network."""
        found = {name: seen for name in names if (seen := self.cache.get(name)) is not None}
        new = [name for name in dict.fromkeys(names) if name not in found]
        self.expect(new)
        decoded = {name: self.coming.pop(name).result() for name in new}
        good = {name: image for name, image in decoded.items() if isinstance(image, Decoded)}
        if good:
            images = torch.stack([image.pixels for image in good.values()]).to(self.matcher.device)
            features = self.matcher.model.encode(images)
            for row, (name, image) in enumerate(good.items()):
                # A copy: a view would keep the features of all.
                found[name] = Seen(image.size, tuple(f[row : row + 1].clone() for f in features))
            self.cache.encoded += len(good)
        found |= {name: Seen(fault=fault) for name, fault in decoded.items() if isinstance(fault, str)}
        for name in new:
            self.cache.put(name, found[name])
        return found


# ---------------------------------------------------------------- matching


@dataclass(frozen=True)
class Found:
    """What was found for one pair: a row of the file for each point, in pixels of the originals."""

    pair: ListedPair
    src_px: Float[np.ndarray, "n 2"] = field(default_factory=lambda: np.zeros((0, 2)))
    trg_px: Float[np.ndarray, "n 2"] = field(default_factory=lambda: np.zeros((0, 2)))
    confidence: Float[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0))
    found: Bool[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    fault: str = ""


def match_part(encoder: Encoder, pairs: Sequence[ListedPair], batch: int) -> Iterator[list[Found]]:
    """Match pairs in batches, those of one source together; what is wrong with one is told, and the others go on."""
    first = {pair.src: place for place, pair in reversed(list(enumerate(pairs)))}
    order = sorted(pairs, key=lambda pair: first[pair.src])  # stable: in the list's own order otherwise
    batches = [order[start : start + batch] for start in range(0, len(order), batch)]
    for number, chunk in enumerate(batches):
        for ahead in batches[number : number + 3]:
            encoder.expect(name for pair in ahead if not pair.fault for name in (pair.src, pair.trg))
        yield _match_batch(encoder, chunk)


@torch.inference_mode()
def _match_batch(encoder: Encoder, pairs: Sequence[ListedPair]) -> list[Found]:
    model, calibration = encoder.matcher.model, encoder.matcher.calibration
    seen = encoder.see([name for pair in pairs if not pair.fault for name in (pair.src, pair.trg)])
    found: list[Found] = []
    good: list[tuple[ListedPair, Float[np.ndarray, "n 2"] | None]] = []
    for pair in pairs:
        try:
            good.append((pair, _checked(pair, seen)))
        except InputError as error:
            found.append(Found(pair, fault=str(error)[:MOST_WORDS]))
    if not good:
        return found
    src, trg = ([seen[getattr(pair, side)] for pair, _ in good] for side in ("src", "trg"))
    refined = model.refine(_stacked(src), _stacked(trg))
    forth, back = model.readout(refined), model.readout(reverse(refined))
    grid: Size = (refined.shape[1], refined.shape[2])
    cells = grid_norm(grid, like=refined).flatten(0, 1).double().cpu().numpy()
    sizes = [image.size for image in src]
    points = [norm_to_px(cells, size) if own is None else own for (_, own), size in zip(good, sizes, strict=True)]
    src_norm = stack_points(points, sizes).to(refined.device)
    trg_norm = _carried(model, forth, src_norm, [own is not None for _, own in good])
    drifts = drift(back, src_norm, trg_norm).double().cpu().numpy()
    peaks = bilinear_sample(forth.peak[..., None], src_norm)[..., 0].double().cpu().numpy()
    ends = trg_norm.double().cpu().numpy()
    for row, (pair, own) in enumerate(good):
        n = len(points[row])
        kept = drifts[row, :n] < (np.inf if own is not None else 2 / (max(grid) - 1))  # back within a cell of itself
        confidence = peaks[row, :n][kept]
        if calibration is not None:
            confidence = calibration(confidence, drifts[row, :n][kept])
        found.append(
            Found(
                pair,
                src_px=points[row][kept],
                trg_px=norm_to_px(ends[row, :n][kept], trg[row].size),
                confidence=confidence,
                found=confidence >= (NO_MATCH if calibration is not None else -np.inf),
            )
        )
    return found


def _carried(
    model: TransforMatcher, flow: Flow, src_norm: Float[Tensor, "b n 2"], named: Sequence[bool]
) -> Float[Tensor, "b n 2"]:
    """Points that a list names are carried by the model's own sampler; cells of the grid, as in predictor.py, not."""
    if all(named):
        return model.transfer(flow, src_norm)
    cells = bilinear_sample(flow.trg_norm, src_norm)
    if not any(named):
        return cells
    return torch.where(torch.tensor(named, device=cells.device)[:, None, None], model.transfer(flow, src_norm), cells)


def _checked(pair: ListedPair, seen: Mapping[str, Seen]) -> Float[np.ndarray, "n 2"] | None:
    """The pair's own points, if it has any; an error if there is anything wrong with it."""
    fault = pair.fault or seen[pair.src].fault or seen[pair.trg].fault
    if fault:
        raise InputError(fault)
    if pair.keypoints is None:
        return None
    return check_points(point_array(pair.keypoints, "keypoints"), seen[pair.src].size, "keypoints")


def _stacked(images: Sequence[Seen]) -> list[Tensor]:
    return [torch.cat(layer) for layer in zip(*(image.features for image in images), strict=True)]


# ---------------------------------------------------------------- parts on disk


@dataclass(frozen=True)
class Share:
    """This process among all those that work on one list."""

    rank: int = 0
    world: int = 1

    @classmethod
    def of_environment(cls) -> "Share":
        """As torchrun, or whoever started this process, says in RANK and WORLD_SIZE."""
        try:
            rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        except ValueError as error:
            raise InputError(f"RANK and WORLD_SIZE in the environment must be whole numbers ({error})") from error
        if not 0 <= rank < world:
            raise InputError(f"RANK={rank} in the environment does not go with WORLD_SIZE={world}")
        return cls(rank, world)

    def of(self, items: Sequence[Item]) -> Sequence[Item]:
        """Neighbouring items stay together: they are likely to have images in common."""
        return items[self.rank * len(items) // self.world : (self.rank + 1) * len(items) // self.world]


@dataclass(frozen=True)
class Progress:
    """How far this process is with its share."""

    done: int  # pairs, those of earlier runs among them
    total: int
    matched: int  # pairs, in this run
    encoded: int  # images whose features were computed, in this run
    failed: int  # pairs of finished parts


@dataclass(frozen=True)
class Summary:
    """What there is when a process has done its share."""

    pairs: int  # of the share
    failed: int
    complete: bool  # all parts are there, those of other processes, too
    faults: list[str]  # of all parts if complete, of this share if not: the first ones
    all_failed: int  # as many there are


def match_list(
    matcher: Matcher,
    pairs: PairList,
    out: Path,
    *,
    share: Share | None = None,
    batch: int = 8,
    threads: int = 2,
    part: int = PART_PAIRS,
    cache_bytes: int = CACHE_BYTES,
    track: Callable[[Progress], None] = lambda _: None,
) -> Summary:
    """Match all pairs of a list; parts that are there already are left alone.

    Args:
        matcher: on the device to use.
        pairs: see :func:`open_list`. Fastest when sorted by source.
        out: a folder for ``part-….parquet``. One that holds results of another list or model is refused.
        share: which of several processes this is; None: as the environment says.
        batch: pairs at a time.
        threads: that decode images.
        part: pairs in a file; what a kill loses is at most one part of each process.
        cache_bytes: of features that are kept, on the matcher's device.
        track: called after each batch.
    """
    need_pyarrow()
    share = share or Share.of_environment()
    _settle(out, _run(matcher, pairs, part))
    starts = list(range(0, pairs.count, part))
    paths = {start: part_path(out, start, pairs.count) for start in starts}
    mine = share.of(starts)
    todo = [start for start in mine if not paths[start].exists()]
    total = sum(min(part, pairs.count - start) for start in mine)
    before = total - sum(min(part, pairs.count - start) for start in todo)
    failed = sum(failures(paths[start]) for start in set(mine) - set(todo))
    matched, cache = 0, Cache(cache_bytes)
    with ThreadPoolExecutor(threads) as pool:
        encoder = Encoder(matcher, pairs, cache, pool)
        for start, listed in pairs.parts(todo, part):
            found: list[Found] = []
            for some in match_part(encoder, listed, batch):
                found += some
                track(Progress(before + matched + len(found), total, matched + len(found), cache.encoded, failed))
            found.sort(key=lambda one: one.pair.index)
            write_whole(paths[start], partial(_write, found))
            matched += len(found)
            failed += sum(bool(one.fault) for one in found)
    complete = all(path.exists() for path in paths.values())
    if complete:
        remove_unfinished(out)
    looked_at = list(paths.values()) if complete else [paths[start] for start in mine]
    return Summary(
        total, failed, complete, list(islice(faults(looked_at), 20)), sum(failures(path) for path in looked_at)
    )


def part_path(out: Path, start: int, count: int) -> Path:
    """The file of the part that begins with pair number ``start``."""
    return out / f"part-{start:0{len(str(count))}d}.parquet"


def failures(path: Path) -> int:
    """How many pairs of a part could not be matched, as its file says."""
    import pyarrow.parquet as pq

    try:
        return int(pq.read_schema(path).metadata[b"failed"])
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise InputError(f"{path}: no part that was written here ({error}); delete it to have it done again") from error


def faults(paths: Iterable[Path]) -> Iterator[str]:
    """What was wrong with pairs that could not be matched."""
    import pyarrow.parquet as pq

    for path in paths:
        if failures(path):
            table = pq.read_table(path, columns=["pair", "error"])
            rows = table.filter(table["error"].is_valid()).to_pylist()
            yield from (f"pair {row['pair']}: {row['error']}" for row in rows)


def need_pyarrow() -> None:
    """Refuse where the optional package is not installed."""
    if find_spec("pyarrow") is None:
        raise InputError("lists of pairs need pyarrow, which is not installed: pip install 'transformatcher[bulk]'")


def _run(matcher: Matcher, pairs: PairList, part: int) -> dict[str, Any]:
    """All that results depend on."""
    calibration = None if matcher.calibration is None else vars(matcher.calibration)
    return {
        "pairs": pairs.count,
        "list": pairs.digest,
        "part": part,
        "model": to_plain(matcher.config),
        "weights": hash_tensors(matcher.model.state_dict()),
        "calibration": calibration,
    }


def _settle(out: Path, run: Mapping[str, Any]) -> None:
    """Refuse a folder that belongs to something else; several processes may come here at once."""
    path = out / RUN
    if path.exists():
        before = read_json(path)
        different = [key for key, value in run.items() if not isinstance(before, dict) or before.get(key) != value]
        if different:
            raise InputError(
                f"{out}: holds results of another run (its {', '.join(different)} differ); choose another --out"
            )
        return
    if next(out.glob("part-*.parquet"), None):
        raise InputError(f"{out}: holds parts, but no {RUN} that says of what; choose another --out")
    write_text(path, json.dumps(run, indent=2) + "\n")  # all write the same


def _write(found: Sequence[Found], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = _table(found)
    names = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema(
        [
            ("pair", pa.int64()), ("src", names), ("trg", names), ("x0", pa.float32()), ("y0", pa.float32()),
            ("x1", pa.float32()), ("y1", pa.float32()), ("confidence", pa.float32()), ("found", pa.bool_()),
            ("error", pa.string()),
        ],
        metadata={"pairs": str(len(found)), "failed": str(sum(bool(one.fault) for one in found))},
    )  # fmt: skip
    pq.write_table(pa.table(table, schema=schema), path, compression="zstd")


def _table(found: Sequence[Found]) -> "dict[str, pyarrow.Array]":
    """A row for each point; a pair without any has one all the same, so that every pair is there."""
    import pyarrow as pa

    rows = np.array([max(1, len(one.confidence)) for one in found])
    numbers = np.concatenate([_columns(one) for one in found])  # (rows, 5)
    empty = np.isnan(numbers[:, 0])
    names = pa.array(np.arange(len(found)).repeat(rows), pa.int32())

    def column(values: Sequence[str | None]) -> "pyarrow.Array":
        return pa.array(values, pa.string()).take(names)

    kept = [one.found if len(one.found) else np.zeros(1, dtype=bool) for one in found]
    return {
        "pair": pa.array(np.array([one.pair.index for one in found]).repeat(rows), pa.int64()),
        "src": column([one.pair.src for one in found]).dictionary_encode(),
        "trg": column([one.pair.trg for one in found]).dictionary_encode(),
        **{
            name: pa.array(numbers[:, number].astype(np.float32), pa.float32(), mask=empty)
            for number, name in enumerate(("x0", "y0", "x1", "y1", "confidence"))
        },
        "found": pa.array(np.concatenate(kept), pa.bool_()),
        "error": column([one.fault or None for one in found]),
    }


def _columns(one: Found) -> Float[np.ndarray, "n 5"]:
    if not len(one.confidence):
        return np.full((1, 5), np.nan)
    return np.concatenate([one.src_px, one.trg_px, one.confidence[:, None]], axis=1)

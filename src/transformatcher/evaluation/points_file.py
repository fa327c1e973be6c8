"""Predicted points of any method in a file ↔ predictions; benchmark pairs → the list of points to be predicted.

A file has a line for each point: ``pair``, ``keypoint``, ``x``, ``y`` and perhaps ``confidence``; see docs/referee.md.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from transformatcher.data.pairs import annotate_pair
from transformatcher.errors import InputError
from transformatcher.evaluation.predict import Prediction, truth
from transformatcher.files import write_text
from transformatcher.images import image_size
from transformatcher.schema import ImagePair, ImageSource, Size

COLUMNS = ("pair", "keypoint", "x", "y")
JSON_LINES = (".jsonl", ".ndjson")
NAMED = 3  # points that a message names
Missing = Literal["refuse", "wrong"]


class PredictedPoint(NamedTuple):
    """Where a method finds one keypoint on the target, in pixels of the original image."""

    x: float
    y: float
    confidence: float | None
    line: int  # of the file


Points = dict[tuple[str, int], PredictedPoint]  # (name of the pair, index of the keypoint) → point


def is_points_file(path: Path) -> bool:
    """Whether a path names a file of points, and not a folder of eval."""
    return path.suffix.lower() in (".csv", *JSON_LINES) and not path.is_dir()


def read_points(path: Path) -> Points:
    """Read a file of points; an error names lines that are no points, and points that are there twice."""
    points: Points = {}
    twice: list[str] = []
    for line, row in _rows(path):
        try:
            name, index = str(row["pair"]), _index(row["keypoint"])
            x, y = float(row["x"]), float(row["y"])
            given = row.get("confidence")
            confidence = None if given in (None, "") else float(given)
            if not all(map(math.isfinite, (x, y, confidence or 0.0))):
                raise ValueError("a number is NaN or infinite")
        except KeyError as error:
            raise InputError(f"{path}, line {line}: {error} is missing; a point has {', '.join(COLUMNS)}") from error
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(f"{path}, line {line}: not a point ({error})") from error
        if (name, index) in points:
            twice.append(f"keypoint {index} of {name} (lines {points[name, index].line} and {line})")
        points[name, index] = PredictedPoint(x, y, confidence, line)
    if twice:
        raise InputError(f"{path}: {_some(twice)} twice; leave one line for each point")
    if not points:
        raise InputError(f"{path}: holds no point")
    return points


def _index(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and value != int(value)):
        raise ValueError(f"keypoint {value} is not an index")
    index = int(value)
    if index < 0:
        raise ValueError(f"keypoint {index}: indices start at 0")
    return index


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The lines of a file with their numbers."""
    if not is_points_file(path):
        raise InputError(f"{path}: a file of points ends in .csv or {' or '.join(JSON_LINES)}")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".csv":
            yield from _csv_rows(path, text)
            return
        for line, content in enumerate(text.splitlines(), 1):
            if content.strip():
                row = json.loads(content)
                if not isinstance(row, dict):
                    raise InputError(f"{path}, line {line}: not a JSON object")
                yield line, row
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {line}: not JSON ({error})") from error
    except (UnicodeDecodeError, csv.Error, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as text ({error})") from error


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise InputError(f"{path}: no column {', '.join(missing)}; the first line is {','.join(COLUMNS)}[,confidence]")
    for row in reader:
        yield reader.line_num, row


def predictions_from_points(
    path: Path, points: Points, pairs: Sequence[ImagePair], missing: Missing = "refuse"
) -> list[Prediction]:
    """A method's points → predictions of a benchmark's pairs, in their order.

    Args:
        path: of the file, for messages.
        points: from :func:`read_points`. Points that only one photo of a pair shows are not scored.
        pairs: all that were to be predicted.
        missing: what to do about points that are not in the file: refuse the file, or count them as wrong.
    """
    by_name = {pair.name: pair for pair in pairs}
    strange = list(dict.fromkeys(name for name, _ in points if name not in by_name))
    if strange:
        raise InputError(
            f"{path}: {_some(strange, 'pair')} not among the {len(pairs)} pairs asked for; is it another benchmark, "
            "--split or --limit?"
        )
    for (name, index), point in points.items():
        if index >= len(by_name[name].visible):
            count = len(by_name[name].visible)
            raise InputError(f"{path}, line {point.line}: {name} has {count} keypoints, 0 to {count - 1}, not {index}")
    predictions, absent = [], []
    for pair in pairs:
        known = _truth(pair)
        found = [points.get((pair.name, index)) for index in known["kp_index"]]
        absent += [
            f"keypoint {index} of {pair.name}" for index, p in zip(known["kp_index"], found, strict=True) if not p
        ]
        predictions.append(
            Prediction(
                **known,
                pred_kps=[[point.x, point.y] if point else [math.inf, math.inf] for point in found],
                peak=[1.0 if point is None or point.confidence is None else point.confidence for point in found],
            )
        )
    if absent and missing == "refuse":
        total = sum(len(prediction.kp_index) for prediction in predictions)
        raise InputError(
            f"{path}: {_some(absent, 'point')} missing, of {total}; --missing wrong counts them as wrong, "
            "transformatcher data points lists all"
        )
    return predictions


def _truth(pair: ImagePair) -> dict[str, Any]:
    """The fields of a prediction that are known before anything is predicted."""
    src_size, trg_size = (_size(image, orient=pair.orient) for image in (pair.src_image, pair.trg_image))
    return truth(annotate_pair(pair, src_size, trg_size))


def _size(image: ImageSource, *, orient: bool) -> Size:
    return _size_of_file(image, orient) if isinstance(image, Path) else image_size(image)


@lru_cache(maxsize=100_000)  # a photo is in many pairs
def _size_of_file(path: Path, orient: bool) -> Size:
    return image_size(path, orient=orient)


def missing_points(predictions: Iterable[Prediction]) -> list[str]:
    """The points that a file did not have, by name."""
    return [
        f"keypoint {index} of {prediction.name}"
        for prediction in predictions
        for index, (x, _) in zip(prediction.kp_index, prediction.pred_kps, strict=True)
        if math.isinf(x)
    ]


def describe_points(names: Sequence[str], what: str = "point") -> str:
    """``keypoint 3 of a, keypoint 4 of a and 7 more points``."""
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more {what}{'s' * (rest > 1)}" if rest > 0 else "")


def _some(names: Sequence[str], what: str = "point") -> str:
    return f"{describe_points(names, what)} {'is' if len(names) == 1 else 'are'}"


def write_points(path: Path, predictions: Iterable[Prediction]) -> int:
    """Write predictions as a file of points, with the peak as confidence; returns how many points there are."""
    rows = [
        {"pair": item.name, "keypoint": index, "x": x, "y": y, "confidence": peak}
        for item in predictions
        for index, (x, y), peak in zip(item.kp_index, item.pred_kps, item.peak, strict=True)
    ]
    _write_rows(path, rows)
    return len(rows)


def write_points_to_predict(path: Path, pairs: Sequence[ImagePair], root: Path) -> int:
    """Write the list of points that a benchmark asks for, as a file of points has them; returns how many there are.

    ``src_x``, ``src_y`` is the point on the source; photos are named relative to ``root``, and a photo that is to be
    mirrored first has ``src_flip`` or ``trg_flip`` = 1.
    """

    def relative(image: Any) -> str:
        return str(image.relative_to(root).as_posix() if image.is_relative_to(root) else image)

    rows = []
    for pair in pairs:
        known = _truth(pair)
        photos = {"src_image": relative(pair.src_image), "trg_image": relative(pair.trg_image)}
        flips = {"src_flip": int(pair.src_flip), "trg_flip": int(pair.trg_flip)}
        for index, (x, y) in zip(known["kp_index"], known["src_kps"], strict=True):
            rows.append({"pair": pair.name, "keypoint": index, "src_x": x, "src_y": y, **photos, **flips})
    _write_rows(path, rows)
    return len(rows)


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    if not is_points_file(path):
        raise InputError(f"{path}: a file of points ends in .csv or {' or '.join(JSON_LINES)}")
    if path.suffix.lower() == ".csv":
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(rows[0]) if rows else COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(path, text.getvalue())
    else:
        write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

"""COCO-keypoint file → its images and objects, with what of them was marked and what was predicted."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from transformatcher.annotation.formats.coco import PINNED, REVIEWED
from transformatcher.annotation.records import HIDDEN, NOT_THERE, VISIBLE, PixelBox, Visibility
from transformatcher.data.coco_keypoints import ROUNDING, box_around, is_prediction, parse_coco_objects
from transformatcher.errors import InputError
from transformatcher.schema import Size

XY = tuple[float, float]


@dataclass
class ReadObject:
    """One annotation. Keypoints are by their names; one that nothing is known of is in neither mapping."""

    id: str
    category: str
    box: PixelBox | None  # None also where it is only a box around the points
    reviewed: bool
    marks: dict[str, tuple[Visibility, XY | None]] = field(default_factory=dict)
    predictions: dict[str, tuple[XY, float]] = field(default_factory=dict)  # position, confidence
    mirrored: bool = False


@dataclass
class ReadImage:
    """One image with its annotations."""

    name: str  # as in the file
    size: Size | None
    reviewed: bool
    objects: list[ReadObject] = field(default_factory=list)


@dataclass
class ReadCategory:
    """One category."""

    name: str
    keypoints: list[str]
    skeleton: list[tuple[int, int]]  # positions, from 0


@dataclass
class CocoContent:
    """All of a file, and what of it cannot be used, in sentences."""

    images: list[ReadImage]
    categories: list[ReadCategory]
    skipped: list[str]


def read_coco(data: Any, source: str, known: Mapping[str, Sequence[str]]) -> CocoContent:
    """The parsed content of a file → its images with their objects.

    What a keypoint's visibility means: 2 visible, 1 hidden; 0 is “not there” where the file says that a person has said
    so (``pinned``, or ``reviewed`` without it), else nothing is known of it. An object is reviewed if the file says so,
    or, where it does not tell, if all its keypoints are marked.

    Args:
        data: the content.
        source: names the file in messages.
        known: names of the keypoints of categories that files may leave out, if they list boxes alone.

    Raises:
        InputError: if it is no such file, or two of its categories have one name.
    """
    skipped: list[str] = []
    notes, categories = _checked(data, source, known, skipped)
    images: dict[Any, ReadImage] = {}
    raw = {str(note["id"]): note for note in notes if isinstance(note, dict) and "id" in note}
    parsed = parse_coco_objects(
        {**data, "annotations": notes, "categories": categories}, source, Path(), occluded=True, min_keypoints=0,
        inside_only=False, on_problem=skipped.append,
    )  # fmt: skip
    for entry in data["images"]:
        if (
            isinstance(entry, dict)
            and isinstance(entry.get("id"), int | str)
            and isinstance(entry.get("file_name"), str)
        ):
            images.setdefault(entry["id"], ReadImage(entry["file_name"], _size(entry), entry.get(REVIEWED) is True))
    for item in parsed:
        note = raw[item.id]
        box = None if item.bbox_px is None else tuple(np.round(item.bbox_px, 2).tolist())
        points = item.kps_px[item.visible]
        if box is not None and item.image_size is not None and len(points) and _is_around(box, points, item.image_size):
            box = None
        images[note["image_id"]].objects.append(_read_object(note, item.category, item.kp_names, box))
    return CocoContent(list(images.values()), [_read_category(entry, skipped) for entry in categories], skipped)


def _checked(
    data: Any, source: str, known: Mapping[str, Sequence[str]], skipped: list[str]
) -> tuple[list[Any], list[dict[str, Any]]]:
    """The annotations and categories with all that the parser needs; the rest is named."""
    for key in ("images", "annotations", "categories"):
        if not isinstance(data, dict) or not isinstance(data.get(key), list):
            raise InputError(f"{source}: not a COCO-keypoint file, it has no list {key!r}")
    categories, without = [], {}
    for entry in data["categories"]:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            continue  # the parser says so
        name = entry["name"].strip()
        keypoints = entry.get("keypoints") or list(known.get(name, ()))
        if not keypoints:
            without[str(entry.get("id"))] = name
        elif not isinstance(keypoints, list) or not all(isinstance(one, str) for one in keypoints):
            raise InputError(f"{source}: 'keypoints' of the category {name!r} is not a list of names")
        else:
            categories.append({**entry, "name": name, "keypoints": [one.strip() for one in keypoints]})
    names = [entry["name"] for entry in categories]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{source}: two categories are called {name!r}")
    lengths = {str(entry.get("id")): len(entry["keypoints"]) for entry in categories}
    notes, left_out = [], dict.fromkeys(without, 0)
    ids: set[str] = set()
    for note in data["annotations"]:
        if isinstance(note, dict) and "id" in note:
            if str(note["id"]) in ids:
                skipped.append(f"{source}, annotation {note['id']}: its id occurs twice in the file")
                continue
            ids.add(str(note["id"]))
        category = str(note.get("category_id")) if isinstance(note, dict) else ""
        if category in without:
            left_out[category] += 1
        elif category in lengths:
            notes.append(_complete(note, lengths[category]))
        else:
            notes.append(note)
    for category, count in left_out.items():
        if count:
            skipped.append(f"the category {without[category]!r} has no keypoints; its {count} annotations are left out")
    return notes, categories


def _complete(note: dict[str, Any], n: int) -> dict[str, Any]:
    """An annotation with keypoints, where it is a box alone, and without a box that is empty."""
    keypoints = note.get("keypoints") or [0] * (3 * n)
    box = note.get("bbox")
    try:
        empty = box is not None and not (len(box) == 4 and float(box[2]) > 0 and float(box[3]) > 0)
    except (TypeError, ValueError):
        empty = False  # the parser says so
    return {**note, "keypoints": keypoints, "bbox": None if empty else box}


def _size(entry: Mapping[str, Any]) -> Size | None:
    h, w = entry.get("height"), entry.get("width")
    return (int(h), int(w)) if _is_number(h) and _is_number(w) else None


def _is_around(box: Sequence[float], points: np.ndarray, size: Size) -> bool:
    """Whether a box is the one that exports draw around points of an object without a box."""
    x, y, w, h = box_around(points, size).tolist()
    return bool(np.allclose(box, (x, y, x + w, y + h), rtol=0, atol=ROUNDING))


def _read_object(note: Mapping[str, Any], category: str, names: Sequence[str], box: Any) -> ReadObject:
    triples = np.array(note["keypoints"], dtype=np.float64).reshape(-1, 3)
    item = ReadObject(str(note["id"]), category, box, reviewed=False, mirrored=note.get("mirrored") is True)
    pinned, all_predicted = _flags(note.get(PINNED), len(names)), is_prediction(note)
    reviewed = note.get(REVIEWED)
    scores = _scores(note, len(names))
    guesses = [all_predicted or guess for guess in _predicted(note, triples, pinned)]
    for row, name in enumerate(names):
        x, y, v = triples[row].tolist()
        xy = round(x, 2), round(y, 2)
        if v >= 1 and guesses[row]:
            item.predictions[name] = xy, scores[row]
        elif v >= 1:
            item.marks[name] = (VISIBLE if v >= 2 else HIDDEN), xy
        elif not all_predicted and (pinned[row] if pinned is not None else reviewed is True):
            item.marks[name] = NOT_THERE, None
    complete = len(item.marks) == len(names)
    item.reviewed = not item.predictions and (reviewed if isinstance(reviewed, bool) else complete)
    return item


def _predicted(note: Mapping[str, Any], triples: np.ndarray, pinned: Sequence[bool] | None) -> Iterator[bool]:
    """For each keypoint of an annotation that a person has marked in part, whether it is a prediction."""
    try:
        before = np.array(note.get("predicted_keypoints"), dtype=np.float64).reshape(triples.shape)
    except (TypeError, ValueError):  # none, or of another number of keypoints
        before = None
    for row in range(len(triples)):
        if pinned is None or pinned[row]:
            yield False
        elif before is not None:  # one that was moved since is the person's
            yield bool(np.allclose(triples[row], before[row], rtol=0, atol=ROUNDING))
        else:
            yield "keypoint_scores" in note


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def _flags(value: Any, n: int) -> list[bool] | None:
    return [bool(one) for one in value] if isinstance(value, list) and len(value) == n and any(value) else None


def _scores(note: Mapping[str, Any], n: int) -> list[float]:
    """The confidence of each keypoint; that of the object, or none, where the file does not say it."""
    score, values = note.get("score"), note.get("keypoint_scores")
    whole = float(score) if _is_number(score) else 0.0
    listed = values if isinstance(values, list) and len(values) == n else [whole] * n
    return [min(max(float(one) if _is_number(one) else whole, 0.0), 1.0) for one in listed]


def _read_category(entry: Mapping[str, Any], skipped: list[str]) -> ReadCategory:
    n = len(entry["keypoints"])
    edges = []
    skeleton = entry.get("skeleton") or []
    for edge in skeleton if isinstance(skeleton, list) else [skeleton]:
        try:
            a, b = (int(one) - 1 for one in edge)
        except (TypeError, ValueError):
            a = b = -1
        if a == b or not (0 <= a < n and 0 <= b < n):
            skipped.append(f"the category {entry['name']!r}: {str(edge)[:40]} is no edge between two of {n} keypoints")
        else:
            edges.append((a, b))
    return ReadCategory(entry["name"], list(entry["keypoints"]), edges)

"""COCO-keypoint file → annotated objects."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from transformatcher.data.benchmarks import find_split
from transformatcher.data.pairs import OnProblem, box_array, masked_points, need_folder, raise_problem
from transformatcher.errors import InputError
from transformatcher.files import read_json
from transformatcher.schema import Size

MAX_SIDE = 1_000_000  # pixels; a larger image size in a file is an error
ROUNDING = 0.51  # pixels; a program that rounds coordinates has not corrected them


@dataclass(frozen=True)
class AnnotatedObject:
    """One object of one image, with its keypoints in the order of its category's names."""

    id: str
    image: Path
    image_size: Size | None  # (h, w) as written in the file
    category: str
    kps_px: Float[np.ndarray, "n 2"]
    visible: Bool[np.ndarray, " n"]
    bbox_px: Float[np.ndarray, "4"] | None
    kp_names: tuple[str, ...]
    orient: bool = True  # see :class:`ImagePair`


def load_coco_objects(
    annotations: Path,
    images: Path,
    *,
    occluded: bool = False,
    min_keypoints: int = 1,
    inside_only: bool = True,
    predictions: bool = True,
    on_problem: OnProblem = raise_problem,
) -> list[AnnotatedObject]:
    """A COCO-keypoint JSON file and the folder of its images → its objects.

    Args:
        annotations: the JSON file.
        images: the folder its ``file_name`` entries are relative to.
        occluded: treat keypoints that are labelled but occluded (v = 1) as visible.
        min_keypoints: leave out objects with fewer visible keypoints (and crowds, always).
        inside_only: treat keypoints outside their image as not visible; annotators guess those of truncated objects.
        predictions: take annotations that were predicted, too; see :func:`is_prediction`.
        on_problem: called with each malformed annotation.
    """
    return parse_coco_objects(
        read_json(annotations),
        str(annotations),
        images,
        occluded=occluded,
        min_keypoints=min_keypoints,
        inside_only=inside_only,
        predictions=predictions,
        on_problem=on_problem,
    )


def load_coco(
    root: Path, split: str = "trn", *, inside_only: bool = True, on_problem: OnProblem = raise_problem
) -> list[AnnotatedObject]:
    """The objects of a folder in COCO's layout, or of one COCO-keypoint file; see :func:`find_coco`.

    They are what a model learns from and is measured by, so predictions are left out.
    """
    annotations, images = find_coco(root, find_split(split))
    data = read_json(annotations)
    images = recorded_root(annotations, data) or images
    return parse_coco_objects(
        data, str(annotations), images, inside_only=inside_only, predictions=False, on_problem=on_problem
    )


def parse_coco_objects(
    data: Any,
    source: str,
    images: Path,
    *,
    occluded: bool = False,
    min_keypoints: int = 1,
    inside_only: bool = True,
    predictions: bool = True,
    on_problem: OnProblem = raise_problem,
) -> list[AnnotatedObject]:
    """As :func:`load_coco_objects`, from the parsed content of a file; ``source`` names it in errors."""
    _check_coco(data, source)
    image_of, category_of = (_by_id(data, key, source, on_problem) for key in ("images", "categories"))
    inside = recorded_root(Path(source), data) is None  # propagate writes names of photos anywhere
    objects = []
    ids: set[str] = set()
    for index, note in enumerate(data["annotations"]):
        where = f"{source}, annotation {note.get('id', f'number {index}') if isinstance(note, dict) else index}"
        try:
            if note.get("iscrowd") or (not predictions and is_prediction(note)):
                continue
            item = _read_object(note, image_of, category_of, images, occluded, where, inside=inside)
            if not predictions:
                item = _without_predictions(item, note)
        except InputError as error:
            on_problem(str(error))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            on_problem(f"{where}: malformed ({type(error).__name__}: {error})")
        else:
            if item.id in ids:
                on_problem(f"{where}: its id occurs twice in the file")
                continue
            ids.add(item.id)
            if inside_only:
                item = replace(item, visible=item.visible & inside_image(item))
            if item.visible.sum() >= min_keypoints:
                objects.append(item)
    return objects


def is_prediction(note: Mapping[str, Any]) -> bool:
    """Whether an annotation was predicted and no person has corrected it since. Such a one is never a reference.

    Files say so by ``"predicted": true``. Programs that drop keys that they do not know leave an ordinary annotation:
    a person saved it there. Of those that keep them, a correction is seen by the ``predicted_keypoints`` beside it,
    from which ``keypoints`` then differ. Results of earlier versions have no such key, but others by which to tell.
    """
    if "predicted" in note:
        return bool(note["predicted"]) and not _was_corrected(note)
    pinned = note.get("pinned")  # which keypoints a person set
    return not any(pinned) if isinstance(pinned, list) else "keypoint_scores" in note and "reference" in note


def _without_predictions(item: AnnotatedObject, note: Mapping[str, Any]) -> AnnotatedObject:
    """An object with those keypoints that a person set, where the file says for each whether one did."""
    pinned = note.get("pinned")
    if not isinstance(pinned, list) or len(pinned) != len(item.visible):
        return item
    return replace(item, visible=item.visible & np.array([bool(value) for value in pinned], dtype=bool))


def _was_corrected(note: Mapping[str, Any]) -> bool:
    if note.get("predicted_keypoints") is None:
        return False
    try:
        now, before = (np.array(note.get(key), dtype=np.float64) for key in ("keypoints", "predicted_keypoints"))
    except (TypeError, ValueError):  # no list of numbers any more
        return True
    return now.shape != before.shape or not np.allclose(now, before, rtol=0, atol=ROUNDING)


def find_coco(root: Path, split: str) -> tuple[Path, Path]:
    """A folder, or the JSON file itself → (annotation file, image folder).

    Layouts: ``annotations.json`` + ``images/``; ``annotations/*keypoints*<split>*.json`` + ``<split>2017/``; a JSON
    file with ``images/`` or the images themselves beside it.
    """
    if root.is_file():
        beside = root.parent / "images"
        return root, beside if beside.is_dir() else root.parent
    need_folder(root, "a folder with annotations.json and images/, or the COCO-keypoint file itself")
    if (root / "annotations.json").is_file():
        images = root / "images"
        return root / "annotations.json", images if images.is_dir() else root
    word = {"trn": "train"}.get(split, split)
    for path in sorted((root / "annotations").glob(f"*keypoints*{word}*.json")):
        for images in (root / path.stem.rsplit("_", 1)[-1], root / "images" / path.stem.rsplit("_", 1)[-1]):
            if images.is_dir():
                return path, images
    raise InputError(f"{root}: neither annotations.json nor annotations/*keypoints*{word}*.json with its image folder")


def recorded_root(path: Path, data: Any) -> Path | None:
    """The folder that a file says its file names are relative to, as ``propagate`` notes it; None if there is none."""
    info = data.get("info") if isinstance(data, dict) else None
    named = info.get("images_root") if isinstance(info, dict) else None
    root = path.parent / named if isinstance(named, str) else None
    return root if root is not None and root.is_dir() else None


def has_splits(root: Path) -> bool:
    """Whether a folder has one annotation file for each split (the official layout) instead of one file for all."""
    return root.is_dir() and not (root / "annotations.json").is_file()


def box_around(points_px: Float[np.ndarray, "n 2"], size: Size, grown: float = 0.1) -> Float[np.ndarray, "4"]:
    """A box around points as COCO's x, y, width, height; never empty.

    Args:
        points_px: at least one point.
        size: (h, w) of the image, which limits the box.
        grown: margin on every side, as a part of the box; at least one pixel.
    """
    limits = np.array([size[1], size[0]], dtype=np.float64)
    low, high = points_px.min(axis=0), points_px.max(axis=0)
    margin = np.maximum(grown * (high - low), 1.0)
    low, high = (low - margin).clip(0, limits).round(2), (high + margin).clip(0, limits).round(2)
    return np.concatenate([low, high - low]).round(2)


def inside_image(item: AnnotatedObject) -> Bool[np.ndarray, " n"]:
    """Which keypoints lie inside the image, as far as the file says its size."""
    if item.image_size is None:
        return np.ones_like(item.visible)
    h, w = item.image_size
    x, y = item.kps_px.T
    return (x >= 0) & (x <= w) & (y >= 0) & (y <= h)


def _numbers(values: Any, where: str, key: str) -> list[float]:
    """A list of numbers as it stands in JSON: text, true and nested lists are none."""
    if not isinstance(values, list) or any(type(value) not in (int, float) for value in values):
        raise InputError(f"{where}: {key!r} is not a list of numbers: {str(values)[:60]}")
    return [float(value) for value in values]


def _inside(images: Path, name: str, where: str) -> Path:
    """The path of an image in a folder, or an InputError for a name that leads out of it, or is none."""
    path, folder = (Path(os.path.normpath(part)) for part in (images / name, images))
    if "\0" in name or not path.is_relative_to(folder) or path == folder:
        raise InputError(
            f"{where}: the image {name!r} is not in {images}; names are relative to that folder, and stay in it"
        )
    return images / name


def _by_id(data: dict[str, Any], key: str, source: str, on_problem: OnProblem) -> dict[Any, dict[str, Any]]:
    """The entries of a list by id; ids must be there and differ."""
    called = {"images": "file_name", "categories": "name"}[key]
    entries: dict[Any, dict[str, Any]] = {}
    for entry in data[key]:
        name = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(name, int | str):
            on_problem(f"{source}: an entry of {key!r} has no usable id: {str(entry)[:60]}")
        elif name in entries:
            on_problem(f"{source}: id {name!r} occurs twice in {key!r}")
        elif not isinstance(entry.get(called), str):
            on_problem(f"{source}: the entry of id {name!r} in {key!r} has no string {called!r}")
        else:
            entries[name] = entry
    return entries


def _check_coco(data: Any, source: str) -> None:
    for key in ("images", "annotations", "categories"):
        if not isinstance(data, dict) or not isinstance(data.get(key), list):
            raise InputError(f"{source}: not a COCO-keypoint file, it has no list {key!r}")


def _read_object(
    note: dict[str, Any],
    image_of: dict[int, dict[str, Any]],
    category_of: dict[int, dict[str, Any]],
    images: Path,
    occluded: bool,
    where: str,
    *,
    inside: bool,
) -> AnnotatedObject:
    image, category = image_of.get(note["image_id"]), category_of.get(note["category_id"])
    if image is None:
        raise InputError(f"{where}: no image has the id {note['image_id']!r}")
    if category is None:
        raise InputError(f"{where}: no category has the id {note['category_id']!r}")
    names = tuple(category.get("keypoints", ()))
    if not isinstance(category.get("keypoints", []), list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{where}: 'keypoints' of its category {category['name']!r} is not a list of names")
    if not isinstance(note["keypoints"], list) or len(note["keypoints"]) % 3:
        raise InputError(f"{where}: 'keypoints' is not a list of x, y, v, x, y, v, …")
    triples = np.array(_numbers(note["keypoints"], where, "keypoints"), dtype=np.float64).reshape(-1, 3)
    if len(triples) != len(names):
        raise InputError(f"{where}: {len(triples)} keypoints, its category {category['name']!r} names {len(names)}")
    if not np.isfinite(triples).all():
        raise InputError(f"{where}: a keypoint is NaN or infinite")
    bbox = None
    if note.get("bbox") is not None:
        x, y, w, h = _numbers(note["bbox"], where, "bbox")
        bbox = box_array([x, y, x + w, y + h], where)
    size = None
    if "height" in image and "width" in image:
        height, width = _numbers([image["height"], image["width"]], where, "height and width")
        size = (int(height), int(width))
    if size is not None and not 1 <= min(size) <= max(size) <= MAX_SIDE:
        raise InputError(f"{where}: its image size of {size[1]:.6g} × {size[0]:.6g} pixels is not possible")
    visible = triples[:, 2] >= (1 if occluded else 2)
    return AnnotatedObject(
        id=str(note["id"]),
        image=_inside(images, image["file_name"], where) if inside else images / image["file_name"],
        image_size=size,
        category=str(category["name"]),
        kps_px=masked_points(triples[:, :2], visible),
        visible=visible,
        bbox_px=bbox,
        kp_names=names,
    )

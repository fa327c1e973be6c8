"""Folder of SPair-71k in its official layout → pairs (Min et al. 2019)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from transformatcher.data.benchmarks import find_split
from transformatcher.data.pairs import (
    OnProblem,
    box_array,
    need_entries,
    need_folder,
    point_array,
    raise_problem,
)
from transformatcher.errors import InputError
from transformatcher.files import is_file
from transformatcher.schema import ImagePair

DIFFICULTY = {
    "viewpoint": "viewpoint_variation",
    "scale": "scale_variation",
    "truncation": "truncation",
    "occlusion": "occlusion",
}

# Keypoints of each category that are left and right of one another, by their numbers (kps_ids). The annotation does not
# tell; as listed with the code of Zhang et al., Telling left from right, CVPR 2024.
_FOUR_LEGS = "0-1 2-3 4-5 6-7 9-10 11-12 15-16 17-18 19-20"
TWINS = {
    "aeroplane": "4-5 6-7 8-9 10-11 12-13 14-15 16-17 18-19 20-21",
    "bicycle": "2-3 6-7 9-10",
    "bird": "1-2 4-5 7-8 10-11 12-13 14-15",
    "boat": "1-2 3-4 5-6 7-8 9-10 11-12",
    "bottle": "0-1 2-3 4-5 6-7 8-9",
    "bus": "0-1 2-3 5-6 10-20 13-23 11-21 14-24 12-22 15-25 16-17 26-27 18-19 28-29",
    "car": "0-1 2-3 6-7 10-20 13-23 11-21 14-24 12-22 15-25 16-17 26-27 18-19 28-29",
    "cat": "0-1 2-3 4-5 6-7 9-10 11-12",
    "chair": "0-1 2-3 4-5 6-7 8-9 10-11 12-13",
    "cow": _FOUR_LEGS,
    "dog": "0-1 2-3 4-5 9-10 11-12",
    "horse": "0-1 2-3 4-5 6-7 10-11 12-13 16-17 18-19",
    "motorbike": "0-1 2-3",
    "person": "0-1 2-3 8-9 10-11 12-13 14-15 16-17 18-19",
    "pottedplant": "0-2 4-5 6-8",
    "sheep": _FOUR_LEGS,
    "train": "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15 16-17",
    "tvmonitor": "0-2 4-6 3-7 8-10 12-14 11-15",
}


def load_spair(
    root: Path, split: str = "test", *, layout: str = "large", on_problem: OnProblem = raise_problem
) -> list[ImagePair]:
    """Read ``Layout/<layout>/<split>.txt``, ``PairAnnotation/<split>/*.json`` and ``JPEGImages/<category>/*``.

    Args:
        root: the folder of the benchmark.
        split: trn, val or test.
        layout: large or small, the benchmark's own names.
        on_problem: called with each malformed annotation.
    """
    need_folder(root, "the SPair-71k folder, with Layout, PairAnnotation and JPEGImages in it")
    split = find_split(split)
    listing = root / "Layout" / layout / f"{split}.txt"
    if not listing.is_file():
        raise InputError(f"{listing}: no such list of pairs; is {root} the SPair-71k folder and {split!r} in it?")
    folder = root / "PairAnnotation" / split
    try:
        names = listing.read_text(encoding="utf-8").split()
    except UnicodeDecodeError as error:
        raise InputError(f"{listing}: not a list of names in UTF-8 ({error})") from error
    need_entries(len(names), listing)
    paths = {}
    for name in names:
        path = folder / f"{name}.json"
        # unpacked on Windows, file names have no colon
        paths[name] = path if is_file(path) else folder / f"{name.replace(':', '_')}.json"
    return _read_pairs(paths, root / "JPEGImages", on_problem, TWINS)


def load_spair_u(root: Path, split: str = "test", *, on_problem: OnProblem = raise_problem) -> list[ImagePair]:
    """SPair-U: other keypoints on SPair-71k's test pairs, which no training has seen.

    ``root`` is the folder of SPair-U, with ``PairAnnotation/test/*.json`` in it, and SPair-71k's ``JPEGImages`` there
    too or in ``SPair-71k`` beside it; or SPair-71k's own folder with SPair-U's as ``ExtraPairAnnotation``.

    Args:
        root: the folder of the benchmark.
        split: test, the only one.
        on_problem: called with each malformed annotation.
    """
    need_folder(root, "the SPair-U folder, with PairAnnotation in it and SPair-71k beside it")
    if find_split(split) != "test":
        raise InputError(f"SPair-U has a test split only, not {split!r}")
    folders = [root / name / "test" for name in ("ExtraPairAnnotation", "PairAnnotation")]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        raise InputError(f"{root}: neither ExtraPairAnnotation/test nor PairAnnotation/test; is it SPair-U?")
    photos = [root / "JPEGImages", root.resolve().parent / "SPair-71k" / "JPEGImages"]
    images = next((images for images in photos if images.is_dir()), None)
    if images is None:
        raise InputError(f"{root}: SPair-U comes without photos; put SPair-71k's JPEGImages there, or SPair-71k beside")
    paths = {path.stem: path for path in sorted(folder.glob("*.json"))}
    need_entries(len(paths), folder)
    return _read_pairs(paths, images, on_problem, {})  # which of its keypoints are twins is not published


def _read_pairs(
    paths: Mapping[str, Path], images: Path, on_problem: OnProblem, twins: Mapping[str, str]
) -> list[ImagePair]:
    """Annotation files by the names of their pairs → pairs."""
    pairs = []
    for name, path in paths.items():
        try:
            pairs.append(_read_pair(name, path, images, twins))
        except InputError as error:
            on_problem(str(error))
    return _with_absent(pairs)


def _with_absent(pairs: Sequence[ImagePair]) -> list[ImagePair]:
    """The pairs with the keypoints of the source that the target does not show.

    A pair lists all keypoints that both images show. So a keypoint of the source image that only other pairs list is
    not visible on this target.
    """
    known: dict[Path, dict[tuple[float, ...], None]] = {}  # image → its keypoints in all pairs, as an ordered set
    for pair in pairs:
        for image, points in ((pair.src_image, pair.src_kps_px), (pair.trg_image, pair.trg_kps_px)):
            assert isinstance(image, Path)
            known.setdefault(image, {}).update(dict.fromkeys(map(tuple, points.tolist())))
    completed = []
    for pair in pairs:
        assert isinstance(pair.src_image, Path)
        listed = set(map(tuple, pair.src_kps_px.tolist()))
        hidden = [point for point in known[pair.src_image] if point not in listed]
        completed.append(replace(pair, absent_px=np.array(hidden, dtype=np.float64).reshape(-1, 2)))
    return completed


def _read_pair(name: str, path: Path, images: Path, twins: Mapping[str, str]) -> ImagePair:
    if not is_file(path):
        raise InputError(f"{path}: no such annotation")
    try:
        note: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        src_kps, trg_kps = (point_array(note[key], f"{path}: {key}") for key in ("src_kps", "trg_kps"))
        boxes = [box_array(note[key], f"{path}: {key}") for key in ("src_bndbox", "trg_bndbox")]
        category, src_name, trg_name = (str(note[key]) for key in ("category", "src_imname", "trg_imname"))
        difficulty = {factor: int(note[key]) for factor, key in DIFFICULTY.items() if key in note}
        numbers = [int(number) for number in note.get("kps_ids", [])]
    except KeyError as error:
        raise InputError(f"{path}: malformed annotation, key {error} is missing") from error
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path}: malformed annotation ({error})") from error
    if len(src_kps) != len(trg_kps) or not len(src_kps):
        raise InputError(f"{path}: {len(src_kps)} source and {len(trg_kps)} target keypoints")
    if len(numbers) not in (0, len(src_kps)):
        raise InputError(f"{path}: {len(numbers)} kps_ids of {len(src_kps)} keypoints")
    for factor, level in difficulty.items():
        if level not in (0, 1, 2):
            raise InputError(f"{path}: {DIFFICULTY[factor]} is {level}, not 0, 1 or 2")
    return ImagePair(
        name=name,
        category=category,
        src_image=images / category / src_name,
        trg_image=images / category / trg_name,
        src_kps_px=src_kps,
        trg_kps_px=trg_kps,
        visible=np.ones(len(src_kps), dtype=bool),
        src_bbox_px=boxes[0],
        trg_bbox_px=boxes[1],
        difficulty=difficulty,
        twins=_twin_indices(numbers, twins.get(category, "")),
    )


def _twin_indices(numbers: Sequence[int], twins: str) -> tuple[int, ...]:
    """For each keypoint of a pair, by its number in the category, the index of its twin in the pair; -1 without one."""
    twin_of: dict[int, int] = {}
    for couple in twins.split():
        left, right = map(int, couple.split("-"))
        twin_of |= {left: right, right: left}
    row_of = {number: row for row, number in enumerate(numbers)}
    return tuple(row_of.get(twin_of.get(number, -1), -1) for number in numbers) if twins else ()

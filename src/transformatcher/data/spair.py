"""Folder of SPair-71k in its official layout → pairs (Min et al. 2019)."""

import json
from collections.abc import Sequence
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
    pairs = []
    for name in names:
        path = folder / f"{name}.json"
        if not is_file(path):  # unpacked on Windows, where file names have no colon
            path = folder / f"{name.replace(':', '_')}.json"
        try:
            pairs.append(_read_pair(name, path, root / "JPEGImages"))
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


def _read_pair(name: str, path: Path, images: Path) -> ImagePair:
    if not is_file(path):
        raise InputError(f"{path}: no such annotation")
    try:
        note: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        src_kps, trg_kps = (point_array(note[key], f"{path}: {key}") for key in ("src_kps", "trg_kps"))
        boxes = [box_array(note[key], f"{path}: {key}") for key in ("src_bndbox", "trg_bndbox")]
        category, src_name, trg_name = (str(note[key]) for key in ("category", "src_imname", "trg_imname"))
        difficulty = {factor: int(note[key]) for factor, key in DIFFICULTY.items() if key in note}
    except KeyError as error:
        raise InputError(f"{path}: malformed annotation, key {error} is missing") from error
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path}: malformed annotation ({error})") from error
    if len(src_kps) != len(trg_kps) or not len(src_kps):
        raise InputError(f"{path}: {len(src_kps)} source and {len(trg_kps)} target keypoints")
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
    )

"""Folders of PF-PASCAL and PF-WILLOW, with csv lists of pairs → pairs (Ham et al. 2016, 2018)."""

import csv
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import Float

from transformatcher.data.benchmarks import find_split
from transformatcher.data.mat import read_mat
from transformatcher.data.pairs import (
    OnProblem,
    box_array,
    masked_points,
    need_entries,
    need_folder,
    raise_problem,
)
from transformatcher.errors import InputError
from transformatcher.files import is_file
from transformatcher.schema import ImagePair

# PF-PASCAL's csv numbers the classes of PASCAL VOC from 1, in alphabetical order.
VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip

WILLOW_KEYPOINTS = 10

ReadMat = Callable[[Path], dict[str, np.ndarray]]


def load_pfpascal(root: Path, split: str = "test", *, on_problem: OnProblem = raise_problem) -> list[ImagePair]:
    """Read ``<split>_pairs.csv``, with ``JPEGImages/`` and ``Annotations/<category>/<image>.mat`` beside it.

    If the csv has keypoints (columns XA, YA, XB, YB: numbers joined by semicolons), they are used, and the .mat files
    give the object boxes only.

    Args:
        root: the folder of the benchmark.
        split: trn, val or test.
        on_problem: called with each malformed line.
    """
    need_folder(root, "the PF-PASCAL folder, with its pair lists, JPEGImages and Annotations")
    path = root / f"{find_split(split)}_pairs.csv"
    folder = root / "PF-dataset-PASCAL" if (root / "PF-dataset-PASCAL").is_dir() else root
    read_mat = cache(_read_mat)  # an image is in many pairs
    pairs = []
    for line, row in _rows(path, required=("source_image", "target_image", "class")):
        try:
            pairs.append(_pascal_pair(row, f"{path}, line {line}", folder, read_mat, name=f"{line - 2:04d}"))
        except InputError as error:
            on_problem(str(error))
    return pairs


def load_pfwillow(root: Path, split: str = "test", *, on_problem: OnProblem = raise_problem) -> list[ImagePair]:
    """Read ``test_pairs.csv`` (imageA, imageB, XA1 … XA10, YA1 …, XB1 …, YB1 …), with one image folder for each group.

    Args:
        root: the folder of the benchmark.
        split: test, the only one.
        on_problem: called with each malformed line.
    """
    need_folder(root, "the PF-WILLOW folder, with test_pairs.csv and its image folders")
    if find_split(split) != "test":
        raise InputError(f"PF-WILLOW has a test split only, not {split!r}")
    path = root / "test_pairs.csv"
    if not path.is_file() and (root / "test_pairs_pf.csv").is_file():  # the name in NC-Net's distribution
        path = root / "test_pairs_pf.csv"
    columns = {key: [f"{key}{i}" for i in range(1, WILLOW_KEYPOINTS + 1)] for key in ("XA", "YA", "XB", "YB")}
    pairs = []
    for line, row in _rows(path, required=("imageA", "imageB", *chain(*columns.values()))):
        where = f"{path}, line {line}"
        try:
            xa, ya, xb, yb = (_numbers([row[name] for name in names], where) for names in columns.values())
            pairs.append(
                ImagePair(
                    name=f"{line - 2:04d}-{_stem(row['imageA'])}-{_stem(row['imageB'])}",
                    category=PurePosixPath(row["imageA"]).parent.name,
                    src_image=_willow_image(root, row["imageA"]),
                    trg_image=_willow_image(root, row["imageB"]),
                    src_kps_px=np.stack([xa, ya], axis=1),
                    trg_kps_px=np.stack([xb, yb], axis=1),
                    visible=np.ones(WILLOW_KEYPOINTS, dtype=bool),
                )
            )
        except InputError as error:
            on_problem(str(error))
    return pairs


def _pascal_pair(row: dict[str, str], where: str, root: Path, read_mat: ReadMat, name: str) -> ImagePair:
    number = row["class"].strip()
    if not number.isdecimal() or len(number) > 9 or not 1 <= int(number) <= len(VOC_CLASSES):
        raise InputError(f"{where}: class {number!r} is not a number from 1 to {len(VOC_CLASSES)}")
    category = VOC_CLASSES[int(number) - 1]
    src_mat, trg_mat = (
        root / "Annotations" / category / f"{_stem(row[key])}.mat" for key in ("source_image", "target_image")
    )
    src_box, trg_box = _box(src_mat, read_mat), _box(trg_mat, read_mat)
    flip = _flag(row.get("flip", ""), where)
    given = [key for key in ("XA", "YA", "XB", "YB") if row.get(key)]
    if given and len(given) < 4:
        raise InputError(f"{where}: of the keypoint columns XA, YA, XB, YB only {', '.join(given)} are filled")
    if given:
        xa, ya, xb, yb = (_numbers(row[key].split(";"), where) for key in ("XA", "YA", "XB", "YB"))
        if not len(xa) == len(ya) == len(xb) == len(yb):
            raise InputError(f"{where}: XA, YA, XB, YB hold {len(xa)}, {len(ya)}, {len(xb)}, {len(yb)} numbers")
        src_kps, trg_kps = np.stack([xa, ya], axis=1), np.stack([xb, yb], axis=1)
        visible = np.ones(len(xa), dtype=bool)
    else:
        src_kps, trg_kps = _keypoints(src_mat, read_mat), _keypoints(trg_mat, read_mat)
        if len(src_kps) != len(trg_kps):
            raise InputError(f"{where}: {src_mat} has {len(src_kps)} keypoints and {trg_mat} has {len(trg_kps)}")
        visible = np.isfinite(src_kps).all(axis=1) & np.isfinite(trg_kps).all(axis=1)
        if not visible.any():
            raise InputError(f"{where}: no keypoint is visible in both images")
    return ImagePair(
        name=f"{name}-{_stem(row['source_image'])}-{_stem(row['target_image'])}-{category}",
        category=category,
        src_image=root / "JPEGImages" / PurePosixPath(row["source_image"]).name,
        trg_image=root / "JPEGImages" / PurePosixPath(row["target_image"]).name,
        src_kps_px=masked_points(src_kps, visible),
        trg_kps_px=masked_points(trg_kps, visible),
        visible=visible,
        src_bbox_px=src_box,
        trg_bbox_px=trg_box,
        src_flip=flip,
        trg_flip=flip,
        absent_px=_absent(src_mat, trg_mat, read_mat),
    )


def _rows(path: Path, required: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """The (line number, columns) of each line of a csv file that must have the ``required`` columns."""
    if not path.is_file():
        raise InputError(f"{path}: no such list of pairs; is {path.parent} the folder of the benchmark?")
    try:
        return _read_rows(path, required)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a csv file in UTF-8 ({error})") from error


def _read_rows(path: Path, required: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        missing = [name for name in required if name not in (reader.fieldnames or [])]
        if missing:
            found = ", ".join((reader.fieldnames or ["nothing"])[:5]) + (
                ", …" if len(reader.fieldnames or []) > 5 else ""
            )
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise InputError(f"{path}: column {missing[0]!r}{more} is missing; the first line has {found}")
        rows = [(reader.line_num, {key: value or "" for key, value in row.items() if key}) for row in reader]
    need_entries(len(rows), path)
    return rows


def _flag(text: str, where: str) -> bool:
    value = text.strip().lower()
    if value not in {"", "0", "1", "true", "false"}:
        raise InputError(f"{where}: flip {text!r} is neither 0 nor 1")
    return value in {"1", "true"}


def _numbers(texts: Sequence[str], where: str) -> Float[np.ndarray, " n"]:
    try:
        values = np.array([float(text) for text in texts])
    except ValueError as error:
        raise InputError(f"{where}: malformed keypoint ({error})") from error
    if not np.isfinite(values).all():
        raise InputError(f"{where}: a keypoint is NaN or infinite")
    return values


def _read_mat(path: Path) -> dict[str, np.ndarray]:
    if not is_file(path):
        raise InputError(f"{path}: no such annotation")
    try:
        return read_mat(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a readable .mat file ({error})") from error


def _keypoints(path: Path, read_mat: ReadMat) -> Float[np.ndarray, "n 2"]:
    """The keypoints of a .mat file; NaN, by the dataset's convention, where one is not visible."""
    kps = read_mat(path).get("kps")
    if kps is None or not _are_points(kps):
        raise InputError(f"{path}: expected 'kps' of n × 2 numbers, found {None if kps is None else kps.shape}")
    return kps


def _are_points(array: np.ndarray) -> bool:
    return array.ndim == 2 and array.shape[1] == 2


def _absent(src_mat: Path, trg_mat: Path, read_mat: ReadMat) -> Float[np.ndarray, "m 2"]:
    """Keypoints of the source that are NaN on the target; none if a file is missing or the numbers differ."""
    if not (is_file(src_mat) and is_file(trg_mat)):
        return np.zeros((0, 2))
    src, trg = (read_mat(path).get("kps", np.zeros((0, 2))) for path in (src_mat, trg_mat))
    if src.shape != trg.shape or not (_are_points(src) and _are_points(trg)):
        return np.zeros((0, 2))
    return src[np.isfinite(src).all(axis=1) & ~np.isfinite(trg).all(axis=1)]


def _box(path: Path, read_mat: ReadMat) -> Float[np.ndarray, "4"] | None:
    """The box x0, y0, x1, y1 of a .mat file; None if the file or the box is missing."""
    box = read_mat(path).get("bbox") if is_file(path) else None
    return None if box is None else box_array(box, str(path))


def _willow_image(root: Path, name: str) -> Path:
    """The image, whose group folder is beside the csv or in PF-dataset/, depending on the distribution."""
    group_and_file = PurePosixPath(name).parts[-2:]
    candidates = [
        root.joinpath(*PurePosixPath(name).parts),
        root.joinpath(*group_and_file),
        root.joinpath("PF-dataset", *group_and_file),
    ]
    return next((path for path in candidates if is_file(path)), candidates[0])


def _stem(name: str) -> str:
    return PurePosixPath(name).stem

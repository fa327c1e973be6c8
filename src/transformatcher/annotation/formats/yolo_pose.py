"""Photos with objects → a dataset of Ultralytics YOLO-pose: dataset.yaml, links to the photos, their labels."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from transformatcher.annotation.formats.linked_photos import link_photos, unique_names
from transformatcher.annotation.formats.objects import Contents, ObjectToExport, PhotoToExport
from transformatcher.annotation.records import Category
from transformatcher.errors import InputError
from transformatcher.files import make_folder, write_text

VALIDATION = 0.1  # part of the photos


def write_yolo_pose(contents: Contents, out: Path) -> list[str]:
    """Write the dataset into a folder, which is empty. Returns what gets lost."""
    lengths = {len(category.keypoints) for category in contents.categories}
    n = max(lengths, default=0)
    if n == 0:
        raise InputError("YOLO-pose needs a category with keypoints, and this project has none")
    classes = {category.id: i for i, category in enumerate(contents.categories)}
    # Ultralytics finds the labels of …/images/a.jpg in …/labels/a.txt, by the last folder of that name.
    names = unique_names({photo.path: photo.path for photo in contents.photos}, reserved=("images", "labels"))
    link_photos(contents.photos, names, out / "images", links=contents.here)
    for photo in contents.photos:
        label = out / "labels" / PurePosixPath(names[photo.path]).with_suffix(".txt")
        make_folder(label.parent)
        label.write_text("".join(_line(o, classes[o.category.id], n) for o in photo.objects), encoding="utf-8")
    for split, group in _split(contents.photos).items():
        write_text(out / f"{split}.txt", "".join(f"./images/{names[photo.path]}\n" for photo in group))
    write_text(out / "dataset.yaml", _dataset_yaml(contents.categories, n))
    lost = []
    if len(lengths) > 1:
        lost.append(f"YOLO-pose has one number of keypoints for all categories: those of fewer than {n} are padded")
    if any(category.skeleton for category in contents.categories):
        lost.append("YOLO-pose has no skeletons")
    if contents.says_not_there:
        lost.append("YOLO-pose has no “not there”: such keypoints look like those of which nothing is known")
    if any(item.score is not None for item in contents.objects):
        lost.append("YOLO-pose has no confidence: predicted points look like marks")
    return lost


def _line(item: ObjectToExport, class_number: int, n: int) -> str:
    """Class, centre and size of the box, and x, y, visibility of each keypoint; all as parts of the photo's sides."""
    h, w = item.size
    x0, y0, x1, y1 = item.extent
    numbers = [(x0 + x1) / 2 / w, (y0 + y1) / 2 / h, (x1 - x0) / w, (y1 - y0) / h]
    words = [str(class_number), *map(_number, numbers)]
    for point in item.points:
        x, y = point.xy or (0.0, 0.0)
        words += [_number(x / w), _number(y / h), str(point.visibility)]
    words += ["0", "0", "0"] * (n - len(item.points))
    return " ".join(words) + "\n"


def _number(value: float) -> str:
    return f"{min(max(value, 0.0), 1.0):.6f}".rstrip("0").rstrip(".") or "0"


def _split(photos: Sequence[PhotoToExport]) -> dict[str, list[PhotoToExport]]:
    """About a tenth is for validation, drawn by names: photos stay where they are when more are added."""

    def drawn(photo: PhotoToExport) -> float:
        return int.from_bytes(hashlib.sha256(photo.path.encode()).digest()[:4], "big") / 2**32

    ordered = sorted(photos, key=drawn)
    val = [photo for photo in ordered if drawn(photo) < VALIDATION] or ordered[:1]
    train = ordered[len(val) :] or val
    return {"train": sorted(train, key=lambda p: p.path), "val": sorted(val, key=lambda p: p.path)}


def _dataset_yaml(categories: Sequence[Category], n: int) -> str:
    lines = ["train: train.txt", "val: val.txt", f"kpt_shape: [{n}, 3]"]
    flips = [_flip(category, n) for category in categories]
    if all(flip == flips[0] for flip in flips):
        lines.append(f"flip_idx: {flips[0]}")
    else:
        lines += ["# Which keypoints a mirror exchanges differs between the categories: train with fliplr=0."]
    lines += ["names:", *(f"  {i}: {_quoted(category.name)}" for i, category in enumerate(categories))]
    lines += ["kpt_names:"]
    for i, category in enumerate(categories):
        padded = [*category.names, *("-" for _ in range(n - len(category.keypoints)))]
        lines += [f"  {i}:", *(f"    - {_quoted(name)}" for name in padded)]
    return "\n".join(lines) + "\n"


def _flip(category: Category, n: int) -> list[int]:
    """For each keypoint, which one it becomes in the mirrored photo."""
    twins = [i if k.twin is None else category.position(k.twin) for i, k in enumerate(category.keypoints)]
    return twins + list(range(len(twins), n))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a string of JSON is one of YAML

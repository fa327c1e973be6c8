"""Folder of AP-10K's photos with its users' lists of pairs → pairs (Yu et al. 2021; Zhang et al. 2024).

The pairs are those of "Telling left from right": within a species, across the species of a family, across families.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from transformatcher.data.benchmarks import find_split
from transformatcher.data.coco_keypoints import AnnotatedObject, parse_coco_objects
from transformatcher.data.coco_pairs import make_pair
from transformatcher.data.pairs import OnProblem, need_entries, need_folder, raise_problem
from transformatcher.errors import InputError
from transformatcher.files import read_json
from transformatcher.schema import ImagePair

KEYPOINTS = (
    "L_Eye", "R_Eye", "Nose", "Neck", "Root of tail", "L_Shoulder", "L_Elbow", "L_F_Paw", "R_Shoulder", "R_Elbow",
    "R_F_Paw", "L_Hip", "L_Knee", "L_B_Paw", "R_Hip", "R_Knee", "R_B_Paw",
)  # fmt: skip


def load_ap10k(
    root: Path, split: str = "test", *, suffix: str = "", on_problem: OnProblem = raise_problem
) -> list[ImagePair]:
    """Read ``PairAnnotation/<split><suffix>/*:<category>.json`` and the images' own annotations that they name.

    These are ``ImageAnnotation/<family>/<species>/<image>.json``, with the image in the same place under
    ``JPEGImages``. A keypoint is visible where v = 2 in both.

    Args:
        root: the folder of the benchmark, as prepare_ap10k.ipynb of GeoAware-SC writes it.
        split: trn, val or test.
        suffix: nothing for pairs within a species, ``_cross_species`` or ``_cross_family``.
        on_problem: called with each malformed annotation.
    """
    need_folder(root, "the AP-10K folder, with PairAnnotation, ImageAnnotation and JPEGImages in it")
    folder = root / "PairAnnotation" / f"{find_split(split)}{suffix}"
    need_folder(folder, "the pairs that prepare_ap10k.ipynb of GeoAware-SC draws")
    paths = sorted(folder.glob("*.json"))
    need_entries(len(paths), folder)
    read_object = cache(_read_object)  # an image is in many pairs
    pairs = []
    for path in paths:
        try:
            data = read_json(path)
            src, trg = (read_object(root, _own_annotation(data, key, path)) for key in ("src", "trg"))
            category = path.stem.rpartition(":")[2] if ":" in path.stem else path.stem.rpartition("_")[2]
            pair = make_pair(src, trg)
            if not pair.visible.any():
                raise InputError(f"{path}: no keypoint is visible in both photos")
            pairs.append(replace(pair, name=path.stem, category=category))
        except InputError as error:
            on_problem(str(error))
    return pairs


def _own_annotation(data: Any, key: str, path: Path) -> str:
    """``…/ImageAnnotation/Bovidae/antelope/1.json``, written from another folder → ``Bovidae/antelope/1.json``."""
    given = data.get(f"{key}_json_path") if isinstance(data, dict) else None
    parts = PurePosixPath(str(given).replace("\\", "/")).parts
    if not isinstance(given, str) or "ImageAnnotation" not in parts or ".." in parts:
        raise InputError(f"{path}: malformed annotation, {key}_json_path does not lead into ImageAnnotation")
    return "/".join(parts[parts.index("ImageAnnotation") + 1 :])


def _read_object(root: Path, name: str) -> AnnotatedObject:
    path = root / "ImageAnnotation" / name
    note = read_json(path)
    if not isinstance(note, dict):
        raise InputError(f"{path}: malformed annotation, not a JSON object")
    image = {"id": 0, "file_name": str(PurePosixPath(name).with_suffix(".jpg"))}
    image |= {key: note[key] for key in ("width", "height") if key in note}
    coco = {
        "images": [image],
        "categories": [{"id": 0, "name": PurePosixPath(name).parent.name, "keypoints": list(KEYPOINTS)}],
        "annotations": [{**note, "id": PurePosixPath(name).stem, "image_id": 0, "category_id": 0}],
    }
    found = parse_coco_objects(coco, str(path), root / "JPEGImages", min_keypoints=0)
    if not found or found[0].bbox_px is None:
        raise InputError(f"{path}: malformed annotation, no object with a box")
    return replace(found[0], orient=False)

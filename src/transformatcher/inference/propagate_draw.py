"""A result of ``propagate`` → contact sheets of what was predicted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transformatcher.data.coco_keypoints import find_coco, is_prediction, recorded_root
from transformatcher.files import read_json
from transformatcher.inference.calibration import SAME_KIND_THRESHOLD
from transformatcher.inference.propagate_inputs import PREDICTED
from transformatcher.viz.contact_sheet import PredictedObject, PredictedPhoto, draw_contact_sheets

OTHER_KIND = "another kind of thing?"


def draw_result(out: Path, picture: Path) -> list[Path]:
    """Draw all predictions of a result, least sure first; see :func:`draw_contact_sheets`.

    Args:
        out: a file that :func:`transformatcher.inference.propagate.propagate` has written.
        picture: the file of a single page; several are numbered.

    Example:
        >>> draw_result(Path("all.json"), Path("sheet.png"))
    """
    data = read_json(out)
    root = recorded_root(out, data) or find_coco(out, "")[1]
    categories = {entry["id"]: entry for entry in data["categories"]}
    objects: dict[Any, list[PredictedObject]] = {}
    marked = set()  # images of which a person has annotated something
    for note in data["annotations"]:
        if note.get("iscrowd"):
            continue
        if is_prediction(note):
            item = _read_prediction(note, categories[note["category_id"]])
            objects.setdefault(note["image_id"], []).append(item)
        else:
            marked.add(note["image_id"])
    photos = [
        PredictedPhoto(
            root / entry["file_name"],
            entry["file_name"],
            (entry["height"], entry["width"]),
            objects.get(entry["id"], []),
            [OTHER_KIND] if entry.get("same_kind", 1.0) < SAME_KIND_THRESHOLD else [],
        )
        for entry in data["images"]
        if entry["id"] in objects or (entry.get(PREDICTED) and entry["id"] not in marked)
    ]
    return draw_contact_sheets(photos, picture, calibrated=bool(data["info"]["propagate"]["calibrated"]))


def _read_prediction(note: Mapping[str, Any], category: Mapping[str, Any]) -> PredictedObject:
    triples = np.array(note["keypoints"], dtype=np.float64).reshape(-1, 3)
    names = tuple(category["keypoints"])
    skeleton = [(a - 1, b - 1) for a, b in category.get("skeleton") or []]  # COCO counts from 1
    skeleton = [(a, b) for a, b in skeleton if 0 <= a < len(names) and 0 <= b < len(names)]
    confidence = np.array(note.get("keypoint_scores", np.zeros(len(names))), dtype=np.float64)
    return PredictedObject(str(category["name"]), names, triples[:, :2], confidence, triples[:, 2] > 0, skeleton)

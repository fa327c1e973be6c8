"""Photos with objects → COCO-keypoint file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformatcher import __version__
from transformatcher.annotation.formats.objects import Contents, ObjectToExport, PhotoToExport
from transformatcher.annotation.records import Category
from transformatcher.files import write_text
from transformatcher.inference.propagate_inputs import PREDICTED, relative

REVIEWED = "reviewed"  # of an image and an annotation: a person has said that all of it is right
PINNED = "pinned"  # of an annotation: which keypoints a person has set; see coco_keypoints.is_prediction


def write_coco(contents: Contents, out: Path) -> list[str]:
    """Write one COCO-keypoint file; its file names are relative to the folder of the photos.

    A file that is taken elsewhere says that it lies in that folder, as nobody knows where it will.
    """
    data = to_coco(contents, relative(contents.folder, out.parent) if contents.here else ".")
    write_text(out, json.dumps(data, ensure_ascii=False) + "\n")
    return []


def to_coco(contents: Contents, images_root: str) -> dict[str, Any]:
    """The content of the file. Ids are those of the project.

    Args:
        contents: what is exported.
        images_root: how the file names the folder of the photos; ``propagate`` and ``train`` find them there.
    """
    return {
        "info": {"description": "Keypoints", "transformatcher": __version__, "images_root": images_root},
        "images": [_image(photo) for photo in contents.photos],
        "annotations": [_annotation(photo, item) for photo in contents.photos for item in photo.objects],
        "categories": [_category(category) for category in contents.categories],
    }


def _category(category: Category) -> dict[str, Any]:
    edges = [[category.position(a) + 1, category.position(b) + 1] for a, b in category.skeleton]  # from 1, as in COCO
    return {
        "id": category.id,
        "name": category.name,
        "supercategory": "",
        "keypoints": list(category.names),
        "skeleton": sorted(edges),
    }


def _image(photo: PhotoToExport) -> dict[str, Any]:
    h, w = photo.size
    return {"id": photo.id, "file_name": photo.path, "width": w, "height": h, REVIEWED: photo.reviewed}


def _annotation(photo: PhotoToExport, item: ObjectToExport) -> dict[str, Any]:
    x0, y0, x1, y1 = item.extent
    w, h = round(x1 - x0, 2), round(y1 - y0, 2)
    triples = [(*(point.xy or (0.0, 0.0)), point.visibility) for point in item.points]
    keypoints = plain_numbers([value for triple in triples for value in triple])
    note: dict[str, Any] = {
        "id": item.id,
        "image_id": photo.id,
        "category_id": item.category.id,
        "keypoints": keypoints,
        "num_keypoints": len(item.positions),
        "bbox": plain_numbers([x0, y0, w, h]),
        "area": round(w * h, 2),
        "iscrowd": 0,
        "segmentation": [],  # pycocotools draws no annotation without
        REVIEWED: item.reviewed and not item.predicted,
    }
    marked = [point.marked for point in item.points]
    if any(marked):
        note[PINNED] = marked
    if item.score is not None:
        scores = [point.confidence if point.confidence is not None else float(point.marked) for point in item.points]
        note |= {
            "score": round(item.score, 4),
            "keypoint_scores": [round(score, 4) for score in scores],
            "predicted_keypoints": keypoints,  # so that a correction in another tool is seen; see is_prediction
        }
    if item.predicted:
        note[PREDICTED] = True
    return note


def plain_numbers(values: Sequence[int | float]) -> list[int | float]:
    """Numbers as files show them: whole ones without a point."""
    return [int(value) if float(value).is_integer() else round(float(value), 2) for value in values]

"""Estimated keypoints → images and annotations of a COCO-keypoint file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from transformatcher.data.coco_keypoints import box_around
from transformatcher.inference.propagate_inputs import Annotations, References
from transformatcher.inference.propagate_voting import KeypointEstimate
from transformatcher.schema import Size


def to_record(
    name: str, size: Size, estimates: Mapping[str, KeypointEstimate], references: References, threshold: float | None
) -> dict[str, Any]:
    """One image and its annotations with COCO's keys, except ids. Objects without a keypoint found are left out.

    Args:
        name: of the image's file.
        size: (h, w) of the image.
        estimates: by category.
        references: by category; their ids are named in the annotations.
        threshold: keypoints of less confidence count as not found; None: all that some reference shows are found.
    """
    annotations = []
    for category, estimate in estimates.items():
        found = estimate.confidence > 0
        if threshold is not None:
            found &= estimate.confidence >= threshold
        if found.any():
            ids = [item.id for item in references[category]]
            annotations.append({"category": category, **_annotation(estimate, found, ids, size)})
    return {"file_name": name, "width": size[1], "height": size[0], "annotations": annotations}


def _annotation(
    estimate: KeypointEstimate, found: Bool[np.ndarray, " n"], ids: Sequence[str], size: Size
) -> dict[str, Any]:
    limits = np.array([size[1], size[0]], dtype=float)
    points = np.where(found[:, None], estimate.kps_px.clip(0, limits).round(2), 0.0)
    triples = np.concatenate([points, np.where(found, 2, 0)[:, None]], axis=1)  # (n, 3): x, y, visibility
    box = box_around(points[found], size)
    counts = np.bincount(estimate.chosen[found], minlength=len(ids))
    return {
        "keypoints": [int(value) if value.is_integer() else value for value in triples.reshape(-1).tolist()],
        "num_keypoints": int(found.sum()),
        "bbox": box.tolist(),
        "area": round(float(box[2] * box[3]), 2),
        "iscrowd": 0,
        "score": round(float(estimate.confidence[found].mean()), 4),
        "keypoint_scores": estimate.confidence.round(4).tolist(),
        "reference": ids[int(counts.argmax())],  # the one that most keypoints come from
        "keypoint_references": [ids[row] if there else None for row, there in zip(estimate.chosen, found, strict=True)],
    }


def parse_record(value: Any) -> dict[str, Any]:
    """A record read back from JSON; ValueError if it is none."""
    if not isinstance(value, dict) or not {"file_name", "width", "height", "annotations"} <= value.keys():
        raise ValueError("expected an object with file_name, width, height and annotations")
    return value


def assemble(source: Annotations, records: Mapping[Path, Mapping[str, Any]]) -> dict[str, Any]:
    """Records by path → images, annotations and categories of a COCO-keypoint file.

    Ids are free in the annotation file that the references come from; images that it lists keep theirs.
    """
    data = source.data

    def free_id(key: str) -> int:
        return 1 + max((entry["id"] for entry in data[key] if isinstance(entry.get("id"), int)), default=0)

    reference_ids = {str(entry["id"]): entry["id"] for entry in data["annotations"] if "id" in entry}
    category_ids = {str(entry["name"]): entry["id"] for entry in data["categories"]}
    image_ids = source.image_ids()
    next_image, next_annotation = free_id("images"), free_id("annotations")
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for path, record in records.items():
        listed = path.resolve() in image_ids
        image_id = image_ids[path.resolve()] if listed else next_image
        next_image += not listed
        images.append({"id": image_id, **{key: record[key] for key in ("file_name", "width", "height")}})
        for annotation in record["annotations"]:
            content = {key: value for key, value in annotation.items() if key != "category"} | {
                "reference": reference_ids[annotation["reference"]],
                "keypoint_references": [reference_ids.get(name) for name in annotation["keypoint_references"]],
            }
            ids = {"id": next_annotation + len(annotations), "image_id": image_id}
            annotations.append(ids | {"category_id": category_ids[annotation["category"]]} | content)
    return {"images": images, "annotations": annotations, "categories": data["categories"]}

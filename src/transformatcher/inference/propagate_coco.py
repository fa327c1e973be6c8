"""Estimated keypoints → images and annotations of a COCO-keypoint file."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from transformatcher.data.coco_keypoints import box_around, is_prediction
from transformatcher.inference.propagate_inputs import PREDICTED, Annotations, References, absolute, name_in
from transformatcher.inference.propagate_voting import KeypointEstimate
from transformatcher.schema import Size


def to_record(
    name: str,
    size: Size,
    estimates: Mapping[str, KeypointEstimate],
    references: References,
    threshold: float | None,
    fingerprints: Mapping[str, str],
) -> dict[str, Any]:
    """One image and its annotations with COCO's keys, except ids. Objects without a keypoint found are left out.

    Args:
        name: of the image's file.
        size: (h, w) of the image.
        estimates: by category.
        references: by category; their ids are named in the annotations.
        threshold: keypoints of less confidence count as not found; None: all that some reference shows are found.
        fingerprints: of the references and settings, by category.
    """
    annotations = []
    looked_through = {}
    for category, estimate in estimates.items():
        found = estimate.confidence > 0
        if threshold is not None:
            found &= estimate.confidence >= threshold
        if found.any():
            ids = [item.id for item in references[category]]
            annotations.append({"category": category, **_annotation(estimate, found, ids, size)})
        looked_through[category] = {"references": fingerprints[category], "found": bool(found.any())}
    same_kind = [estimate.same_kind for estimate in estimates.values() if estimate.same_kind is not None]
    image: dict[str, Any] = {"file_name": name, "width": size[1], "height": size[0]}
    if same_kind:
        image["same_kind"] = round(max(same_kind), 3)  # the probability that it shows what some reference shows
    return image | {PREDICTED: looked_through, "annotations": annotations}


def _annotation(
    estimate: KeypointEstimate, found: Bool[np.ndarray, " n"], ids: Sequence[str], size: Size
) -> dict[str, Any]:
    limits = np.array([size[1], size[0]], dtype=float)
    points = np.where(found[:, None], estimate.kps_px.clip(0, limits).round(2), 0.0)
    triples = np.concatenate([points, np.where(found, 2, 0)[:, None]], axis=1)  # (n, 3): x, y, visibility
    box = box_around(points[found], size)
    most = int(np.bincount(estimate.chosen[found], minlength=len(ids)).argmax())
    keypoints = [int(value) if value.is_integer() else value for value in triples.reshape(-1).tolist()]
    return {
        "keypoints": keypoints,
        "num_keypoints": int(found.sum()),
        "bbox": box.tolist(),
        "area": round(float(box[2] * box[3]), 2),
        "iscrowd": 0,
        PREDICTED: True,
        "predicted_keypoints": keypoints,  # so that a correction is seen; see is_prediction
        "score": round(float(estimate.confidence[found].mean()), 4),
        "keypoint_scores": estimate.confidence.round(4).tolist(),
        "reference": ids[most],  # the one that most keypoints come from
        "mirrored": most in estimate.mirrored,  # it was matched mirrored, and left and right exchanged
        "keypoint_references": [ids[row] if there else None for row, there in zip(estimate.chosen, found, strict=True)],
    }


def parse_record(value: Any) -> dict[str, Any]:
    """A record read back from JSON; ValueError if it is none."""
    if not isinstance(value, dict) or not {"file_name", "width", "height", PREDICTED, "annotations"} <= value.keys():
        raise ValueError("expected an object with file_name, width, height, predicted and annotations")
    if not isinstance(value[PREDICTED], dict) or not isinstance(value["annotations"], list):
        raise ValueError("predicted is not an object, or annotations is not a list")
    if not isinstance(value.get("same_kind", 1.0), int | float):
        raise ValueError(f"same_kind {value['same_kind']!r} is not a probability")
    return value


def select_categories(record: Mapping[str, Any], categories: Collection[str]) -> dict[str, Any]:
    """A record with no more than these categories."""
    return {
        **record,
        PREDICTED: {name: by for name, by in record[PREDICTED].items() if name in categories},
        "annotations": [note for note in record["annotations"] if note["category"] in categories],
    }


def assemble(source: Annotations, root: Path, records: Mapping[Path, Mapping[str, Any]]) -> dict[str, Any]:
    """An annotation file and records by path → one COCO-keypoint file with both.

    All that is in the annotation file stays as it is, but for predictions of what the records have predicted anew:
    those are replaced, and keep their ids. Names of files become relative to ``root``. New ids are free in the file.
    """
    data, ids = source.data, _Ids(source)
    by_id = {ids.image(path): (path, record) for path, record in records.items()}
    images = [_merge_image(entry, source, root, by_id.pop(entry["id"], None)) for entry in data["images"]]
    images += [{"id": number, **_image(record, name_in(root, path))} for number, (path, record) in by_id.items()]
    replaced: dict[tuple[Any, Any], list[Any]] = {
        (ids.image(path), ids.categories[name]): []
        for path, record in records.items()
        for name in record[PREDICTED]
        if name in ids.categories
    }  # fmt: skip
    annotations = []
    for note in data["annotations"]:
        if note.get("iscrowd"):
            annotations.append(note)
        elif not is_prediction(note):
            annotations.append({**note, PREDICTED: False} if PREDICTED in note else note)  # a person has corrected it
        elif (key := (note["image_id"], note["category_id"])) in replaced:
            replaced[key].append(note["id"])
        else:
            annotations.append({**note, PREDICTED: True})
    for path, record in records.items():
        for annotation in record["annotations"]:
            key = (ids.image(path), ids.categories.get(annotation["category"]))
            if key in replaced:
                number = replaced[key].pop(0) if replaced[key] else ids.new_annotation()
                content = {name: value for name, value in annotation.items() if name != "category"} | {
                    "reference": ids.references.get(annotation["reference"]),
                    "keypoint_references": [ids.references.get(name) for name in annotation["keypoint_references"]],
                }
                annotations.append({"id": number, "image_id": key[0], "category_id": key[1], **content})
    return {**data, "images": images, "annotations": annotations}


class _Ids:
    """The ids of an annotation file, and new ones that are free there."""

    def __init__(self, source: Annotations) -> None:
        self._images = source.image_ids()
        self._next_image = _free_id(source.data["images"])
        self._next_annotation = _free_id(source.data["annotations"])
        self.categories = {str(entry["name"]): entry["id"] for entry in source.data["categories"]}
        self.references = {str(note["id"]): note["id"] for note in source.data["annotations"] if "id" in note}

    def image(self, path: Path) -> Any:
        """The id of an image; one that the file does not list gets a new one."""
        key = path.resolve()
        if key not in self._images:
            self._images[key] = self._next_image
            self._next_image += 1
        return self._images[key]

    def new_annotation(self) -> int:
        """A new id of an annotation."""
        self._next_annotation += 1
        return self._next_annotation - 1


def _free_id(entries: Sequence[Mapping[str, Any]]) -> int:
    """A number above all ids; ids that are written as text, as "7", count as well."""
    return 1 + max((int(text) for entry in entries if (text := str(entry.get("id"))).isdecimal()), default=0)


def _merge_image(
    entry: Mapping[str, Any], source: Annotations, root: Path, predicted: tuple[Path, Mapping[str, Any]] | None
) -> dict[str, Any]:
    """An image that the annotation file lists, with its new name and what a record says about it."""
    same_root = absolute(root) == absolute(source.root)
    name = entry["file_name"] if same_root else name_in(root, source.root / entry["file_name"])
    if predicted is None:
        return {**entry, "file_name": name}
    record = _image(predicted[1], name)
    before = entry.get(PREDICTED)
    record[PREDICTED] = {**(before if isinstance(before, dict) else {}), **record[PREDICTED]}
    return {**entry, **record}


def _image(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {**{key: value for key, value in record.items() if key != "annotations"}, "file_name": name}

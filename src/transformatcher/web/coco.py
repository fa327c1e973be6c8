"""A session's points ↔ a COCO-keypoint file that annotation tools and ``load_coco_objects`` read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformatcher.data.coco_keypoints import AnnotatedObject, box_around, parse_coco_objects
from transformatcher.errors import InputError
from transformatcher.schema import Size
from transformatcher.web.predictions import PointPrediction, predict_points
from transformatcher.web.session import XY, Session

NO_PREDICTION = PointPrediction(None, 0.0, is_match=False)

# ---------------------------------------------------------------- export


def to_coco(session: Session, category: str) -> dict[str, Any]:
    """Every photo with its keypoints; those without a match get v = 0.

    Beside COCO's own keys, an annotation has ``score``, ``keypoint_scores`` (confidence; 1 for a point that the user
    set) and ``pinned`` (true for each point that the user set), so that an import can tell those from predictions.
    """
    if not session.points:
        raise InputError("There is no point to export yet; click on the source photo to set one.")
    by_point = predict_points(session)
    images, annotations = [], []
    for number, photo in enumerate(session.photos.values(), start=1):
        h, w = photo.size
        images.append({"id": number, "file_name": photo.name, "width": w, "height": h})
        if photo.id == session.source_id:
            on_photo = [PointPrediction(p.xy, 1.0, is_match=True, pinned=True) for p in session.points.values()]
        else:
            on_photo = [by_point[point].get(photo.id, NO_PREDICTION) for point in session.points]
        ids = {"id": number, "image_id": number, "category_id": 1}
        annotations.append(ids | _annotation(on_photo, photo.size))
    names = [point.name for point in session.points.values()]
    return {
        "info": {"description": "keypoints set and corrected on the page of transformatcher"},
        "images": images,
        "annotations": annotations,
        "categories": [{"id": 1, "name": category, "keypoints": names, "skeleton": []}],
    }


def _annotation(predictions: Sequence[PointPrediction], size: Size) -> dict[str, Any]:
    """An annotation without its ids."""
    limits = np.array([size[1], size[0]], dtype=np.float64)
    visible = np.array([p.xy is not None and p.is_match for p in predictions])
    points = np.array([p.xy if p.xy is not None else (0, 0) for p in predictions], dtype=np.float64)
    points = np.where(visible[:, None], points.clip(0, limits).round(2), 0.0)
    confidence = np.array([p.confidence for p in predictions])
    annotation: dict[str, Any] = {
        "keypoints": [v for (x, y), seen in zip(points.tolist(), visible, strict=True) for v in (x, y, 2 * int(seen))],
        "num_keypoints": int(visible.sum()),
        "iscrowd": 0,
        "keypoint_scores": [round(p.confidence, 4) for p in predictions],
        "pinned": [p.pinned for p in predictions],
    }
    if visible.any():
        box = box_around(points[visible], size).tolist()
        score = round(float(confidence[visible].mean()), 4)
        annotation |= {"bbox": box, "area": round(box[2] * box[3], 2), "score": score}
    return annotation


# ---------------------------------------------------------------- import


def from_coco(data: Any, session: Session, file_name: str) -> list[str]:
    """Replace the session's points by those of a COCO file; its images are the photos of the same names.

    On the source, the file's keypoints become the points. On a target they become pins: those that ``pinned`` marks,
    or all where the file has no ``pinned``. The session stays as it was if the file cannot be used.

    Args:
        data: the parsed file.
        session: with the photos.
        file_name: for messages.

    Returns:
        Warnings, one sentence for each kind of entry that was left out.
    """
    names = {photo.name for photo in session.photos.values()}
    objects: dict[str, list[AnnotatedObject]] = {}  # by file name
    for item in parse_coco_objects(data, file_name, Path(), occluded=True, min_keypoints=0):
        objects.setdefault(item.image.name, []).append(item)
    unknown = sorted(objects.keys() - names)
    objects = {name: items for name, items in objects.items() if name in names}

    chosen = _choose_objects(objects, session, file_name)
    _check_sizes(chosen, session, file_name)
    pinned = {str(entry.get("id")): entry.get("pinned") for entry in data["annotations"]}
    session.replace_points(_import_points(chosen, pinned, session, file_name))

    warnings, source = [], chosen[session.source.name]
    if unknown:
        warnings.append(f"Not among the photos here: {_shorten(unknown)}.")
    if hidden := [name for name, visible in zip(source.kp_names, source.visible, strict=True) if not visible]:
        warnings.append(f"Left out, as {session.source.name} does not show them: {_shorten(hidden)}.")
    if further := sum(map(len, objects.values())) - len(chosen):
        warnings.append(f"Left out: {further} further object(s); a photo can have only one.")
    return warnings


def category_name(data: Mapping[str, Any]) -> str:
    """The name of a COCO file's first category."""
    return str(next((entry["name"] for entry in data["categories"] if "name" in entry), "object"))


def _choose_objects(
    objects: Mapping[str, Sequence[AnnotatedObject]], session: Session, file_name: str
) -> dict[str, AnnotatedObject]:
    """One object for each photo: the first with visible keypoints on the source, on a target the first of its kind."""
    name = session.source.name
    source = next((item for item in objects.get(name, ()) if item.visible.any()), None)
    if source is None:
        raise InputError(f"{file_name}: it has no keypoints for the source photo, {name}.")
    same_kind = {
        photo: next((i for i in items if (i.category, i.kp_names) == (source.category, source.kp_names)), None)
        for photo, items in objects.items()
    }
    return {photo: item for photo, item in same_kind.items() if item is not None} | {name: source}


def _check_sizes(chosen: Mapping[str, AnnotatedObject], session: Session, file_name: str) -> None:
    for photo in session.photos.values():
        item = chosen.get(photo.name)
        if item is not None and item.image_size is not None and item.image_size != photo.size:
            (h, w), (photo_h, photo_w) = item.image_size, photo.size
            raise InputError(f"{file_name}: {photo.name} has {w} × {h} pixels there, but {photo_w} × {photo_h} here.")


def _import_points(
    chosen: Mapping[str, AnnotatedObject], pinned: Mapping[str, Any], session: Session, file_name: str
) -> Session:
    """A session with the same photos and the file's points and pins."""
    imported = Session(session.limits)
    imported.photos, imported.source_id = session.photos, session.source_id
    source = chosen[session.source.name]
    point_ids = {
        row: imported.add_point(XY(*source.kps_px[row].tolist()), str(source.kp_names[row])).id
        for row in np.flatnonzero(source.visible).tolist()
    }
    for target in session.targets:
        if item := chosen.get(target.name):
            flags = _pinned_flags(pinned.get(item.id), item, file_name)
            for row, point_id in point_ids.items():
                if flags[row]:
                    imported.pin(point_id, target.id, XY(*item.kps_px[row].tolist()) if item.visible[row] else None)
    return imported


def _pinned_flags(pinned: Any, item: AnnotatedObject, file_name: str) -> list[bool]:
    if pinned is None:
        return item.visible.tolist()
    if not isinstance(pinned, list) or len(pinned) != len(item.kp_names):
        raise InputError(f"{file_name}: 'pinned' of annotation {item.id} must be one true or false for each keypoint.")
    return [bool(flag) for flag in pinned]


def _shorten(names: Sequence[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")

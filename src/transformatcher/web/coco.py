"""A session's points ↔ a COCO-keypoint file that annotation tools and ``load_coco_objects`` read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformatcher.data.coco_keypoints import AnnotatedObject, box_around, parse_coco_objects
from transformatcher.errors import InputError
from transformatcher.schema import Size
from transformatcher.web.session import XY, Placement, Session


def to_coco(session: Session, category: str) -> dict[str, Any]:
    """Every photo with its keypoints; those without a match get v = 0.

    Beside COCO's own keys, an annotation has ``score``, ``keypoint_scores`` (confidence; 1 for what a person set) and
    ``pinned`` (which keypoints a person set), so that an import can tell them from predictions.
    """
    if not session.points:
        raise InputError("There is no point to export yet; click on the source photo to set one.")
    placed = session.placements()
    images, notes = [], []
    for number, photo in enumerate(session.photos.values(), start=1):
        h, w = photo.size
        images.append({"id": number, "file_name": photo.name, "width": w, "height": h})
        if photo.id == session.source_id:
            places = [Placement(point.at, 1.0, found=True, pinned=True) for point in session.points.values()]
        else:
            nowhere = Placement(None, 0.0, found=False)
            places = [placed[point].get(photo.id, nowhere) for point in session.points]
        note = _note(places, photo.size)
        notes.append({"id": number, "image_id": number, "category_id": 1} | note)
    names = [point.name for point in session.points.values()]
    categories = [{"id": 1, "name": category, "keypoints": names, "skeleton": []}]
    return {
        "info": {"description": "keypoints set and corrected on the page of transformatcher"},
        "images": images,
        "annotations": notes,
        "categories": categories,
    }


def from_coco(data: Any, session: Session, where: str) -> list[str]:
    """Replace the session's points by those of a file, which finds its photos by their names.

    What a person set on a target becomes a pin: all keypoints there, unless ``pinned`` says which. Nothing is changed
    if the file cannot be used.

    Returns:
        What of the file was left out, in sentences.
    """
    source, photo_of = session.source, {photo.name: photo for photo in session.photos.values()}
    objects = parse_coco_objects(data, where, Path(), occluded=True, min_keypoints=0)
    elsewhere = sorted({item.image.name for item in objects} - photo_of.keys())
    of_photo: dict[str, list[AnnotatedObject]] = {}
    for item in objects:
        of_photo.setdefault(item.image.name, []).append(item)
    first = next((item for item in of_photo.get(source.name, ()) if item.visible.any()), None)
    if first is None:
        raise InputError(f"{where}: it has no keypoints for the source photo, {source.name}.")
    pinned = {str(note.get("id")): note.get("pinned") for note in data["annotations"]}
    chosen = {
        name: first if name == source.name else next((item for item in found if _alike(item, first)), None)
        for name, found in of_photo.items()
        if name in photo_of
    }
    taken = {name: item for name, item in chosen.items() if item is not None}
    for name, item in taken.items():
        if item.image_size is not None and item.image_size != photo_of[name].size:
            (h, w), (here_h, here_w) = item.image_size, photo_of[name].size
            raise InputError(f"{where}: there {name} has {w} × {h} pixels, here {here_w} × {here_h}.")

    new = Session(session.limits)
    new.photos, new.source_id = session.photos, session.source_id
    ids = {}
    for row in np.flatnonzero(first.visible).tolist():
        ids[row] = new.add_point(XY(*first.kps_px[row].tolist()), str(first.kp_names[row])).id
    for name, item in taken.items():
        if name == source.name:
            continue
        flags = _flags(pinned.get(item.id), item, where)
        for row, point_id in ids.items():
            if flags[row]:
                new.pin(point_id, photo_of[name].id, XY(*item.kps_px[row].tolist()) if item.visible[row] else None)
    session.points, session.pins, session._last_id = new.points, new.pins, new._last_id

    remarks = []
    if elsewhere:
        remarks.append(f"The file also has {_list(elsewhere)}, not among the photos here.")
    if left := [str(n) for n, hidden in zip(first.kp_names, ~first.visible, strict=True) if hidden]:
        remarks.append(f"Left out, because {source.name} does not show it: {_list(left)}.")
    if further := sum(len(of_photo[name]) for name in chosen) - len(taken):
        remarks.append(f"{further} further object(s) in these photos were left out: there can be one in each.")
    return remarks


def category_of(data: Mapping[str, Any]) -> str:
    """The name of a file's first category."""
    return str(next((entry["name"] for entry in data["categories"] if "name" in entry), "object"))


def _alike(a: AnnotatedObject, b: AnnotatedObject) -> bool:
    return (a.category, a.kp_names) == (b.category, b.kp_names)


def _flags(pinned: Any, item: AnnotatedObject, where: str) -> list[bool]:
    if pinned is None:
        return item.visible.tolist()
    if not isinstance(pinned, list) or len(pinned) != len(item.kp_names):
        raise InputError(f"{where}: 'pinned' of annotation {item.id} is not one true or false for each keypoint.")
    return [bool(flag) for flag in pinned]


def _note(places: Sequence[Placement], size: Size) -> dict[str, Any]:
    """An annotation but for its ids."""
    limits = np.array([size[1], size[0]], dtype=np.float64)
    there = [place.at is not None and place.found for place in places]
    points = np.array([place.at if place.at is not None else (0, 0) for place in places], dtype=np.float64)
    points = np.where(np.array(there)[:, None], points.clip(0, limits).round(2), 0.0)
    note: dict[str, Any] = {
        "keypoints": [v for (x, y), seen in zip(points.tolist(), there, strict=True) for v in (x, y, 2 * seen)],
        "num_keypoints": sum(there),
        "iscrowd": 0,
        "keypoint_scores": [round(place.confidence, 4) for place in places],
        "pinned": [place.pinned for place in places],
    }
    if any(there):
        box = box_around(points[there], size).tolist()
        score = float(np.mean([place.confidence for place, seen in zip(places, there, strict=True) if seen]))
        note |= {"bbox": box, "area": round(box[2] * box[3], 2), "score": round(score, 4)}
    return note


def _list(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

"""Annotated objects → the photos that a simulated person annotates again."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from transformatcher.data.coco_keypoints import AnnotatedObject
from transformatcher.data.pairs import subsample_evenly
from transformatcher.errors import InputError


@dataclass(frozen=True)
class KnownPhoto:
    """A photo with all its objects of one category."""

    image: Path
    objects: tuple[AnnotatedObject, ...]

    @property
    def clicks_by_hand(self) -> int:
        """One for each visible keypoint, and one to accept the photo."""
        return 1 + sum(int(item.visible.sum()) for item in self.objects)


def choose_photos(
    objects: Iterable[AnnotatedObject], category: str, count: int, *, boxes: bool = False
) -> list[KnownPhoto]:
    """At most ``count`` photos of a category, evenly spaced in the order of the file.

    Args:
        objects: all that are annotated, of all categories.
        category: of the photos wanted.
        count: how many.
        boxes: take photos with several objects, too: their boxes are then given to the studio. Without, photos with
            exactly one annotated object are taken, and nobody draws a box.
    """
    shown: dict[Path, list[AnnotatedObject]] = {}
    for item in objects:
        shown.setdefault(item.image, []).append(item)
    names = sorted({item.category for group in shown.values() for item in group})
    if category not in names:
        raise InputError(f"no annotated object is of the category {category!r}; there are {', '.join(names)}")
    wanted = [
        KnownPhoto(image, tuple(item for item in group if item.category == category))
        for image, group in shown.items()
        if any(item.category == category for item in group) and (boxes or len(group) == 1)
    ]
    if boxes:
        wanted = [photo for photo in wanted if all(item.bbox_px is not None for item in photo.objects)]
    if len(wanted) < 2:
        raise InputError(
            f"{len(wanted)} photos of {category} can be used, two are the least; without --boxes they must show one "
            "annotated object alone, with --boxes every object must have a box"
        )
    return subsample_evenly(wanted, count)


def fingerprint(objects: Iterable[AnnotatedObject]) -> str:
    """Changes with the objects' photos, boxes and keypoints."""
    digest = hashlib.sha256()
    for item in objects:
        box = None if item.bbox_px is None else item.bbox_px.tolist()
        described = item.image.name, item.category, item.kp_names, item.visible.tolist(), item.kps_px.tolist(), box
        digest.update(repr(described).encode())
    return digest.hexdigest()[:16]

"""Annotation project → photos with objects, as all formats write them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from transformatcher.annotation.project import Project
from transformatcher.annotation.records import (
    NOT_THERE,
    VISIBLE,
    Category,
    Instance,
    Mark,
    Photo,
    PixelBox,
    Prediction,
    Visibility,
)
from transformatcher.data.coco_keypoints import box_around
from transformatcher.errors import InputError
from transformatcher.images import image_size
from transformatcher.schema import Size

Predictions = Literal["omit", "include", "only"]


@dataclass(frozen=True)
class Point:
    """One keypoint of one object: marked, predicted, or neither."""

    visibility: Visibility = NOT_THERE
    xy: tuple[float, float] | None = None  # None where visibility is 0
    marked: bool = False  # by a person, or imported; then visibility 0 means “not there”, not “not known”
    confidence: float | None = None  # of a prediction, also of one that is too unsure to be there


@dataclass(frozen=True)
class ObjectToExport:
    """One object of one photo, with a point for each keypoint of its category, in order."""

    id: int
    category: Category
    size: Size  # (h, w) of its photo
    box: PixelBox | None  # drawn or imported
    reviewed: bool
    points: tuple[Point, ...]

    @property
    def positions(self) -> list[tuple[float, float]]:
        """The points that are there, visible or hidden."""
        return [point.xy for point in self.points if point.xy is not None]

    @property
    def predicted(self) -> bool:
        """Whether all that is known of it was predicted."""
        return self.score is not None and not any(point.marked for point in self.points)

    @property
    def score(self) -> float | None:
        """The mean confidence of the predicted points that are there; None if there is none."""
        found = [p.confidence for p in self.points if p.xy is not None and p.confidence is not None]
        return sum(found) / len(found) if found else None

    @property
    def extent(self) -> PixelBox:
        """Its box; without one, a box around its points."""
        if self.box is not None:
            return self.box
        x, y, w, h = box_around(np.array(self.positions, dtype=np.float64), self.size).tolist()
        return x, y, round(x + w, 2), round(y + h, 2)


@dataclass(frozen=True)
class PhotoToExport:
    """One photo with its objects; none where a person has said that there is nothing."""

    id: int
    path: str  # relative to the folder of the project, with forward slashes
    file: Path
    size: Size  # (h, w)
    objects: tuple[ObjectToExport, ...]
    reviewed: bool


@dataclass
class Contents:
    """What is exported of a project."""

    folder: Path
    categories: list[Category]
    photos: list[PhotoToExport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what is left out, and why
    here: bool = True  # the photos are within reach of the files: they name their folder, or get links to them

    @property
    def objects(self) -> list[ObjectToExport]:
        """All objects, photo by photo."""
        return [item for photo in self.photos for item in photo.objects]

    @property
    def says_not_there(self) -> bool:
        """Whether a person has said of some keypoint that it is not there."""
        return any(point.marked and point.xy is None for item in self.objects for point in item.points)


def collect(project: Project, predictions: Predictions, threshold: float) -> Contents:
    """What a project holds that is worth exporting.

    Photos that nobody has looked at and that have nothing to export are left out. Objects without a point and without
    a box are, too: a photo that was reviewed and has no other object is one without objects. Of a photo that was
    skipped, objects without a point are left out, with or without a box.

    Args:
        project: is read.
        predictions: "omit": marks alone; "include": predictions, too, where there is no mark; "only": nothing else.
        threshold: predictions of less confidence are not there.
    """
    with project.database.lock:
        contents = Contents(project.folder, project.categories())
        photos, instances = project.photos(), project.instances()
    categories = {category.id: category for category in contents.categories}
    by_photo: dict[int, list[Instance]] = {}
    for instance in instances:
        by_photo.setdefault(instance.photo_id, []).append(instance)
    for photo in photos:
        group = by_photo.get(photo.id, [])
        reviewed = photo.skipped or (bool(group) and all(instance.reviewed for instance in group))
        if not group and not reviewed:
            continue
        try:
            size = _size(project, photo)
        except InputError as error:
            if reviewed or any(instance.marks for instance in group):
                contents.notes.append(f"{error}; its marks are left out")
            continue
        objects = [_object(i, categories[i.category_id], size, predictions, threshold) for i in group]
        boxes = predictions != "only" and not photo.skipped
        kept = tuple(o for o in objects if o.positions or (boxes and o.box is not None))
        if kept or (reviewed and predictions != "only"):
            file = project.path_of(photo)
            contents.photos.append(PhotoToExport(photo.id, photo.path, file, size, kept, reviewed))
    return contents


def _size(project: Project, photo: Photo) -> Size:
    if photo.problem is not None:
        raise InputError(f"{photo.path}: {photo.problem}")
    return image_size(project.path_of(photo)) if photo.size is None else photo.size


def _object(
    instance: Instance, category: Category, size: Size, predictions: Predictions, threshold: float
) -> ObjectToExport:
    marks: Mapping[int, Mark] = instance.marks
    found: Mapping[int, Prediction] = {} if predictions == "omit" else instance.predictions
    points = []
    for keypoint in category.keypoints:
        mark, prediction = marks.get(keypoint.id), found.get(keypoint.id)
        if mark is not None:
            one = Point() if predictions == "only" else Point(mark.visibility, mark.xy, marked=True)
        elif prediction is not None:
            there = prediction.confidence >= threshold
            one = Point(
                VISIBLE if there else NOT_THERE, prediction.xy if there else None, confidence=prediction.confidence
            )
        else:
            one = Point()
        points.append(one)
    return ObjectToExport(instance.id, category, size, instance.box, instance.reviewed, tuple(points))

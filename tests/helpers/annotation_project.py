"""Small annotation projects for tests of their formats."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from transformatcher.annotation import edits
from transformatcher.annotation.project import Project
from transformatcher.annotation.records import Instance
from transformatcher.annotation.scan import identify_photo, scan_photos

SIZE = (80, 120)  # (h, w)


def make_photos(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (SIZE[1], SIZE[0]), "grey").save(folder / name)


def open_project(folder: Path, names: tuple[str, ...] = ()) -> Project:
    """A project with photos, whose sizes are known."""
    make_photos(folder, names)
    project = Project(folder, folder.with_name(f"{folder.name}.sqlite"))
    scan_photos(project)
    for photo in project.photos():
        identify_photo(project, photo)
    return project


def photo_id(project: Project, path: str) -> int:
    return next(photo.id for photo in project.photos() if photo.path == path)


def mark(project: Project, instance: Instance, marks: Mapping[str, tuple[int, tuple[float, float] | None]]) -> None:
    """Mark keypoints by their names, each with visibility and position."""
    ids = {keypoint.name: keypoint.id for keypoint in project.category(instance.category_id).keypoints}
    for name, (visibility, xy) in marks.items():
        edits.set_mark(project, instance.id, ids[name], visibility, xy and (float(xy[0]), float(xy[1])))


def predict(project: Project, instance: Instance, found: Mapping[str, tuple[float, float, float]]) -> None:
    """Store predictions: x, y and confidence by names."""
    ids = {keypoint.name: keypoint.id for keypoint in project.category(instance.category_id).keypoints}
    with project.changing([instance.photo_id]):
        for name, (x, y, confidence) in found.items():
            project.database.run(
                "INSERT INTO prediction (instance_id, keypoint_id, x, y, confidence, mirrored) "
                "VALUES (?, ?, ?, ?, ?, 0)",
                instance.id, ids[name], x, y, confidence,
            )  # fmt: skip


def snapshot(project: Project, *, predictions: bool = False) -> dict[str, Any]:
    """What a person has said of each photo, to be compared: whether it is skipped, and its objects."""
    categories = {category.id: category for category in project.categories()}
    names = {keypoint.id: keypoint.name for category in categories.values() for keypoint in category.keypoints}
    state: dict[str, Any] = {photo.path: [photo.skipped] for photo in project.photos()}
    paths = {photo.id: photo.path for photo in project.photos()}
    for instance in project.instances():
        marks = {names[k]: (mark.visibility, mark.xy) for k, mark in instance.marks.items()}
        row = [categories[instance.category_id].name, instance.box, instance.reviewed, dict(sorted(marks.items()))]
        if predictions:
            row.append({names[k]: found.xy for k, found in sorted(instance.predictions.items())})
        state[paths[instance.photo_id]].append(row)
    return {path: [rows[0], *sorted(rows[1:], key=str)] for path, rows in state.items()}


def bicycles(folder: Path) -> Project:
    """Six photos: marked, marked in part, two objects, skipped, predicted, and one that nobody has looked at."""
    project = open_project(folder, ("a/1.png", "a/1.jpg", "images/2.png", "3.png", "4.png", "5.png"))
    bicycle = edits.add_category(project, "bicycle", ["left pedal", "right pedal", "saddle"], [(0, 2), (1, 2)])
    bird = edits.add_category(project, "bird", ["beak", "tail"], [(0, 1)])

    one = edits.add_instance(project, photo_id(project, "a/1.png"), bicycle.id, (10.0, 10.0, 70.0, 60.0))
    mark(project, one, {"left pedal": (2, (20.5, 30)), "right pedal": (1, (40, 30.25)), "saddle": (0, None)})
    edits.accept(project, one.photo_id)

    part = edits.add_instance(project, photo_id(project, "a/1.jpg"), bicycle.id)
    mark(project, part, {"saddle": (2, (50, 20))})
    predict(project, part, {"left pedal": (30, 60, 0.9), "right pedal": (60, 60, 0.2), "saddle": (51, 21, 0.8)})

    for category, box, names in (
        (bicycle, (0.0, 0.0, 50.0, 80.0), ("left pedal",)),
        (bird, (60.0, 0.0, 120.0, 80.0), ("beak", "tail")),
    ):
        item = edits.add_instance(project, photo_id(project, "images/2.png"), category.id, box)
        mark(project, item, {name: (2, (box[0] + 10 * i + 5, 33.33)) for i, name in enumerate(names)})

    edits.skip(project, photo_id(project, "3.png"))
    guess = edits.add_instance(project, photo_id(project, "4.png"), bird.id)
    predict(project, guess, {"beak": (12.5, 70, 0.75), "tail": (99, 5, 0.65)})
    return project

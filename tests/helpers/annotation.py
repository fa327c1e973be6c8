"""Folders of small photos, and projects on them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers.propagation import POINTS, make_photo

from transformatcher.annotation.edits import accept, add_category, add_instance, set_mark
from transformatcher.annotation.project import Project
from transformatcher.annotation.records import Category, Instance, Photo, PixelBox
from transformatcher.annotation.scan import identify_photo, scan_photos


def make_photos(folder: Path, seeds: Mapping[str, int]) -> Path:
    """Photos by name; two of the same seed show the same, at other sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, seed) in enumerate(seeds.items()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        photo = make_photo(seed)
        photo.resize((200 + 2 * number, 120)).save(folder / name, quality=95)
    return folder


def open_project(folder: Path) -> Project:
    """A project that knows the photos of its folder."""
    project = Project(folder)
    scan_photos(project)
    return project


def add_thing(project: Project, names: Sequence[str] = tuple(POINTS)) -> Category:
    """The category whose keypoints ``make_photo`` shows at POINTS."""
    return add_category(project, "thing", names)


def photo_named(project: Project, name: str) -> Photo:
    """A photo by its path, with its size."""
    (photo,) = [photo for photo in project.photos() if photo.path == name]
    return identify_photo(project, photo)


def mark(
    project: Project, name: str, points: Mapping[str, tuple[float, float]], *, box: PixelBox | None = None
) -> Instance:
    """Mark keypoints by name on a new object of the first category, or on the one without marks that is there."""
    photo, category = photo_named(project, name), project.categories()[0]
    free = [instance for instance in project.instances([photo.id]) if not instance.marks and instance.box == box]
    instance = free[0] if free else add_instance(project, photo.id, category.id, box)
    ids = {keypoint.name: keypoint.id for keypoint in category.keypoints}
    for keypoint, (x, y) in points.items():
        set_mark(project, instance.id, ids[keypoint], 2, (float(x), float(y)))
    return project.instance(instance.id)


def mark_and_accept(project: Project, name: str, points: Mapping[str, tuple[float, float]] = POINTS) -> Instance:
    """A finished photo: a reference."""
    instance = mark(project, name, points)
    accept(project, instance.photo_id)
    return project.instance(instance.id)


def predicted_points(project: Project, name: str) -> dict[str, tuple[float, float]]:
    """Where the keypoints of the only object of a photo are predicted, by name."""
    (instance,) = project.instances([photo_named(project, name).id])
    names = {keypoint.id: keypoint.name for keypoint in project.category(instance.category_id).keypoints}
    return {names[k]: prediction.xy for k, prediction in instance.predictions.items()}

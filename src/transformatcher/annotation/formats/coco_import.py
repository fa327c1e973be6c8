"""COCO-keypoint file → marks, boxes and categories of a project, as one action that can be undone."""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from transformatcher.annotation.edits import checked_name, put_keypoints
from transformatcher.annotation.formats.coco_read import CocoContent, ReadCategory, ReadImage, ReadObject, read_coco
from transformatcher.annotation.formats.same_object import find_same_object, same_box, same_place
from transformatcher.annotation.journal import Action, now
from transformatcher.annotation.project import Project
from transformatcher.annotation.records import Category, Instance, Photo, PixelBox
from transformatcher.data.coco_keypoints import recorded_root
from transformatcher.errors import InputError
from transformatcher.files import read_json
from transformatcher.images import image_size
from transformatcher.inference.propagate_inputs import relative
from transformatcher.schema import Size

MIN_BOX = 4  # pixels; as for boxes drawn by hand


@dataclass
class ImportSummary:
    """What a file had for the photos of the project, whether it was there already or not."""

    images: int = 0
    objects: int = 0
    keypoints: int = 0  # that are marked, also as “not there”
    predictions: int = 0  # keypoints that were predicted
    skipped: list[str] = field(default_factory=list)  # what was left out, in sentences


def import_coco(
    project: Project, source: Any, *, name: str | None = None, images_root: Path | None = None
) -> ImportSummary:
    """Take over what a COCO-keypoint file says of the photos of a project, as one action to be undone.

    Its keypoints become marks, predictions stay predictions. An object that is there already, with the same box or
    keypoints, is brought up to date; what the file does not know of it is kept.

    Args:
        project: with the photos, after a scan.
        source: the path of the file, or its parsed content.
        name: of the file, for messages and the source of marks; None: the file's own.
        images_root: the folder that its file names are relative to; None: the folder of the project, the one that the
            file names itself, or any folder in the project with a photo of that name.

    Raises:
        InputError: if it is no such file, none of its photos is in the project, or a category has other keypoints.

    Example:
        >>> import_coco(project, Path("annotations.json")).keypoints
        120
    """
    data = read_json(source) if isinstance(source, Path) else source
    name = name or (source.name if isinstance(source, Path) else "COCO")
    recorded = recorded_root(source, data) if images_root is None and isinstance(source, Path) else images_root
    known = {category.name: category.names for category in project.categories()}
    content = read_coco(data, name, known)
    summary = ImportSummary(skipped=content.skipped)
    photos = find_photos(project, content.images, recorded, strict=images_root is not None)
    if content.images and not any(photo is not None for photo in photos):
        raise InputError(
            f"{name}: none of its {len(content.images)} photos is in {project.folder}, such as "
            f"{content.images[0].name!r}; say what its file names are relative to"
        )
    with project.changing() as touched, project.journal.action(f"import {name}") as action:
        importer = _Import(
            project, action, f"import: {name}", summary, _merge_categories(project, action, content, name)
        )
        for image, photo in zip(content.images, photos, strict=True):
            if photo is None:
                summary.skipped.append(f"{image.name}: this photo is not in the folder")
            elif importer.take_image(image, photo):
                touched.add(photo.id)
        importer.write_predictions()
    return summary


# ---------------------------------------------------------------- photos


def find_photos(
    project: Project, images: list[ReadImage], root: Path | None, *, strict: bool = False
) -> list[Photo | None]:
    """The photo of the project that each image of a file is: by its path, else by its name if no two have it.

    Args:
        project: with the photos.
        images: of the file.
        root: the folder that their names are relative to, if it is known.
        strict: look nowhere else.
    """
    by_path = {photo.path: photo for photo in project.photos()}
    by_name: dict[str, list[Photo]] = {}
    for one in by_path.values():
        by_name.setdefault(PurePosixPath(one.path).name, []).append(one)
    named = Counter(PurePosixPath(_slashes(image.name)).name for image in images)
    prefix = None if root is None else relative(root.absolute(), project.folder.absolute())
    found: list[Photo | None] = []
    for image in images:
        wanted = [] if strict else [image.name, _slashes(image.name)]
        if prefix is not None:
            wanted.insert(0, os.path.join(prefix, _slashes(image.name)))  # noqa: PTH118 (strings are ten times as fast)
        photo = next(filter(None, (by_path.get(_normal(path)) for path in wanted)), None)
        name = PurePosixPath(_slashes(image.name)).name
        if photo is None and not strict and named[name] == 1 and len(by_name.get(name, ())) == 1:
            photo = by_name[name][0]
        found.append(photo)
    return found


def _slashes(name: str) -> str:
    return name.replace("\\", "/")  # files from Windows


def _normal(path: str) -> str:
    return os.path.normpath(path).replace(os.sep, "/")


# ---------------------------------------------------------------- categories


def _merge_categories(project: Project, action: Action, content: CocoContent, source: str) -> dict[str, Category]:
    """The project's categories by name, with those that the file adds."""
    there = {category.name: category for category in project.categories()}
    for category in content.categories:
        if category.name not in there:
            _add_category(action, category, source)
        elif sorted(there[category.name].names) != sorted(category.keypoints):
            raise InputError(
                f"{source}: its category {category.name!r} has the keypoints {', '.join(category.keypoints)}, that of "
                f"the project {', '.join(there[category.name].names) or 'none'}; rename one of both categories"
            )
    return {category.name: category for category in project.categories()}


def _add_category(action: Action, category: ReadCategory, source: str) -> None:
    try:
        category_id = action.insert("category", name=checked_name(category.name))
        put_keypoints(action, category_id, category.keypoints, category.skeleton)
    except InputError as error:
        raise InputError(f"{source}, category {category.name!r}: {error}") from error


# ---------------------------------------------------------------- objects


class _Import:
    """The rows that an import writes, inside its transaction."""

    def __init__(
        self, project: Project, action: Action, source: str, summary: ImportSummary, categories: dict[str, Category]
    ) -> None:
        self.project, self.action, self.source, self.summary = project, action, source, summary
        self.category_ids = {name: category.id for name, category in categories.items()}
        self.keypoint_ids = {name: {k.name: k.id for k in c.keypoints} for name, c in categories.items()}
        self.there: dict[int, list[Instance]] = {}  # objects of each photo that no annotation was found to be
        for instance in project.instances():
            self.there.setdefault(instance.photo_id, []).append(instance)
        self.time = now()
        self.predictions: list[tuple[Any, ...]] = []

    def take_image(self, image: ReadImage, photo: Photo) -> bool:
        """Write what is known of a photo; False if there is nothing, or it cannot be used."""
        if not image.objects and not image.reviewed:
            return False
        try:
            size = self._size(photo)
        except InputError as error:
            self.summary.skipped.append(str(error))
            return False
        if image.size is not None and image.size != size:
            (h, w), (h2, w2) = image.size, size
            self.summary.skipped.append(f"{image.name}: annotated at {w} × {h} pixels, but the photo has {w2} × {h2}")
            return False
        self.summary.images += 1
        for item in image.objects:
            self._drop_outside(image, item, size)
            self._take_object(item, photo, size)
        if photo.skipped and not image.reviewed and any(item.marks for item in image.objects):
            self.action.update("photo", {"id": photo.id}, skipped=0)
        elif not photo.skipped and not image.objects and not self.there.get(photo.id):
            self.action.update("photo", {"id": photo.id}, skipped=1)
        return True

    def _size(self, photo: Photo) -> Size:
        """The size of a photo; where the project does not know it, it is read and kept."""
        if photo.size is not None:
            return photo.size
        h, w = image_size(self.project.path_of(photo))
        self.project.database.run("UPDATE photo SET width = ?, height = ? WHERE id = ?", w, h, photo.id)
        return h, w

    def _drop_outside(self, image: ReadImage, item: ReadObject, size: Size) -> None:
        h, w = size
        places = {k: xy for k, (_, xy) in item.marks.items() if xy is not None} | {
            k: xy for k, (xy, _) in item.predictions.items()
        }
        for name, (x, y) in places.items():
            if not (0 <= x <= w and 0 <= y <= h):
                item.marks.pop(name, None)
                item.predictions.pop(name, None)
                item.reviewed = False
                self.summary.skipped.append(
                    f"{image.name}: {name!r} of annotation {item.id} at ({x:g}, {y:g}) lies outside the photo of "
                    f"{w} × {h} pixels"
                )

    def _take_object(self, item: ReadObject, photo: Photo, size: Size) -> None:
        ids = self.keypoint_ids[item.category]
        category_id, box = self.category_ids[item.category], _clipped(item.box, size)
        if box is None and not item.marks and not item.predictions:
            return
        group = self.there.get(photo.id, [])
        same = find_same_object([i for i in group if i.category_id == category_id], item, box, ids)
        if same is not None:
            group.remove(same)
            self._update(same, item, box)
            instance = same
        else:
            reviewed_at = self.time if item.reviewed else None
            values = dict(zip(("x0", "y0", "x1", "y1"), box or (None,) * 4, strict=True))
            number = self.action.insert(
                "instance", photo_id=photo.id, category_id=category_id, **values, reviewed_at=reviewed_at
            )
            instance = Instance(number, photo.id, category_id)
        for name, (visibility, xy) in item.marks.items():
            x, y = xy or (None, None)
            key = {"instance_id": instance.id, "keypoint_id": ids[name]}
            before = instance.marks.get(ids[name])
            if before is None:
                self.action.insert("mark", **key, visibility=visibility, x=x, y=y, source=self.source, at=self.time)
            elif before.visibility != visibility or not same_place(before.xy, xy):
                self.action.update("mark", key, visibility=visibility, x=x, y=y, source=self.source, at=self.time)
        self.summary.objects += 1
        self.summary.keypoints += len(item.marks)
        self.summary.predictions += len(item.predictions)
        if not instance.predictions and not instance.reviewed:
            rows = item.predictions.items()
            self.predictions += [(instance.id, ids[k], *xy, score, int(item.mirrored)) for k, (xy, score) in rows]

    def _update(self, instance: Instance, item: ReadObject, box: PixelBox | None) -> None:
        key = {"id": instance.id}
        if item.reviewed and not instance.reviewed:
            self.action.update("instance", key, reviewed_at=self.time)
        if box is not None and not same_box(instance.box, box):
            self.action.update("instance", key, **dict(zip(("x0", "y0", "x1", "y1"), box, strict=True)))
            for table in ("prediction", "predicted", "vote"):  # they were looked for in another box
                self.project.database.run(f"DELETE FROM {table} WHERE instance_id = ?", instance.id)

    def write_predictions(self) -> None:
        """Write predictions, which are in no journal; what the model finds later takes their place."""
        run_many = self.project.database.run_many
        run_many(
            "INSERT OR REPLACE INTO prediction (instance_id, keypoint_id, x, y, confidence, mirrored) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            self.predictions,
        )
        instances = dict.fromkeys(row[0] for row in self.predictions)
        run_many(
            "INSERT OR REPLACE INTO predicted (instance_id, voters, at) VALUES (?, '', ?)",
            [(number, self.time) for number in instances],
        )


def _clipped(box: PixelBox | None, size: Size) -> PixelBox | None:
    """The part of a box on the photo; None if it is too small."""
    if box is None:
        return None
    x0, y0, x1, y1 = max(box[0], 0.0), max(box[1], 0.0), min(box[2], float(size[1])), min(box[3], float(size[0]))
    return (x0, y0, x1, y1) if x1 - x0 >= MIN_BOX and y1 - y0 >= MIN_BOX else None

"""Annotation file and paths → reference objects by category, and the images to annotate."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformatcher.data.coco_keypoints import AnnotatedObject, find_coco, load_coco_objects
from transformatcher.errors import InputError
from transformatcher.files import read_json

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"}  # of the files taken from a folder

References = Mapping[str, Sequence[AnnotatedObject]]  # by category


@dataclass(frozen=True)
class Annotations:
    """A COCO-keypoint file whose objects are the references."""

    path: Path
    data: Mapping[str, Any]  # the file itself
    root: Path  # of its file names
    objects: Sequence[AnnotatedObject]
    references: References

    @property
    def reference_images(self) -> list[Path]:
        """The images of the references, each once."""
        return sorted({item.image for group in self.references.values() for item in group})

    def image_ids(self) -> dict[Path, Any]:
        """The ids of the images that the file lists, by their resolved paths."""
        listed = (entry for entry in self.data["images"] if "file_name" in entry)
        return {(self.root / entry["file_name"]).resolve(): entry["id"] for entry in listed}


def read_annotations(path: Path, images_root: Path | None, category: str | None) -> Annotations:
    """Read a COCO-keypoint file and choose its references.

    Args:
        path: the file.
        images_root: what its ``file_name`` entries are relative to; None: ``images/`` beside it, or its own folder.
        category: take only the objects of this one.
    """
    root = images_root or (find_coco(path, "")[1] if path.is_file() else path.parent)
    objects = load_coco_objects(path, root)
    data = read_json(path)
    return Annotations(path, data, root, objects, choose_references(objects, data["categories"], path, category))


def choose_references(
    objects: Sequence[AnnotatedObject], categories: Sequence[Mapping[str, Any]], source: Path, category: str | None
) -> dict[str, list[AnnotatedObject]]:
    """The annotated objects by category, in the order of the file's categories; only those of ``category`` if given."""
    names = [str(entry["name"]) for entry in categories]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{source}: two categories are called {name!r}")
    if category is not None and category not in names:
        raise InputError(f"{source}: no category is called {category!r}; it has {', '.join(names)}")
    groups = {name: [item for item in objects if item.category == name] for name in names}
    chosen = {name: group for name, group in groups.items() if group and category in (None, name)}
    if not chosen:
        raise InputError(
            f"{source}: no annotated object{f' of {category!r}' if category else ''} with a visible keypoint (v = 2), "
            "so there is nothing to propagate"
        )
    return chosen


def find_targets(given: Sequence[Path], annotated: Collection[Path]) -> tuple[Path, list[str]]:
    """Files and folders → the images to annotate.

    Args:
        given: files, and folders that are searched to any depth; hidden files and folders are skipped.
        annotated: images that are left out.

    Returns:
        The folder given, or the innermost folder around all that was given; and the images' names relative to it,
        sorted.
    """
    for path in given:
        if not path.exists():
            raise InputError(f"{path}: no such image or folder")
        if path.is_dir():
            _check_readable(path)
    found = [file for path in given for file in ([path] if path.is_file() else _images_in(path))]
    if not found:
        raise InputError(f"{', '.join(map(str, given))}: no image there ({', '.join(sorted(IMAGE_SUFFIXES))})")
    excluded = {path.resolve() for path in annotated}
    targets = {path.resolve(): path for path in found if path.resolve() not in excluded}  # however it is reached, once
    if not targets:
        raise InputError(f"{', '.join(map(str, given))}: all {len(found)} images there are annotated already")
    if len(given) == 1 and given[0].is_dir():
        root = given[0]
    else:
        root = Path(os.path.commonpath([path if path.is_dir() else path.parent for path in map(absolute, given)]))
    return root, sorted(absolute(path).relative_to(absolute(root)).as_posix() for path in targets.values())


def absolute(path: Path) -> Path:
    """The absolute path, without following links."""
    return Path(os.path.abspath(path))  # noqa: PTH100 (resolve would follow links, and change names)


def _check_readable(folder: Path) -> None:
    try:
        next(folder.iterdir(), None)
    except OSError as error:
        raise InputError(f"{folder}: this folder cannot be read ({error.strerror})") from error


def _images_in(folder: Path) -> list[Path]:
    def hidden(path: Path) -> bool:
        return any(part.startswith(".") for part in path.relative_to(folder).parts)

    return [
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file() and not hidden(path)
    ]

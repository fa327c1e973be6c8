"""Annotation file and paths → reference objects by category, and the images to annotate."""

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from transformatcher.data.coco_keypoints import (
    AnnotatedObject,
    find_coco,
    inside_image,
    is_prediction,
    parse_coco_objects,
    recorded_root,
)
from transformatcher.errors import InputError
from transformatcher.files import read_json

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"}  # of the files taken from a folder
PREDICTED = "predicted"  # of an annotation: true, it was predicted; of an image: by what, see propagate_plan.py

References = Mapping[str, Sequence[AnnotatedObject]]  # by category


@dataclass(frozen=True)
class ImageState:
    """What an annotation file says about an image."""

    marked: set[str] = field(default_factory=set)  # categories of which a person has annotated an object there
    annotated: set[str] = field(default_factory=set)  # categories with any annotation, predictions as well
    predicted: Mapping[str, Any] = field(default_factory=dict)  # category → what an earlier run recorded


@dataclass(frozen=True)
class Annotations:
    """A COCO-keypoint file whose objects are the references; what was predicted in it is none."""

    path: Path
    data: Mapping[str, Any]  # the file itself
    digest: str  # of the file
    root: Path  # of its file names
    references: References
    outside: Sequence[str]  # the references' points that lie outside their photos, which are not used

    @property
    def reference_images(self) -> list[Path]:
        """The images of the references, each once."""
        return sorted({item.image for group in self.references.values() for item in group})

    def check_photos(self) -> None:
        """Refuse annotated photos that are not there."""
        for image in self.reference_images:
            if not image.is_file():
                raise InputError(
                    f"{image}: no such file; the annotated photos of {self.path} are looked for in {self.root}, "
                    "--images-root names another folder"
                )

    def image_ids(self) -> dict[Path, Any]:
        """The ids of the images that the file lists, by their resolved paths."""
        return {path.resolve(): entry["id"] for path, entry in self._listed()}

    def listed_images(self) -> list[Path]:
        """All images that the file lists."""
        return [path for path, _ in self._listed()]

    def states(self) -> dict[Path, ImageState]:
        """What the file says about each image that it lists, by its resolved path."""
        by_id = {}
        for _, entry in self._listed():
            before = entry.get(PREDICTED)
            by_id[entry["id"]] = ImageState(predicted=before if isinstance(before, dict) else {})
        names = {entry["id"]: str(entry["name"]) for entry in self.data["categories"]}
        for note in self.data["annotations"]:
            if not note.get("iscrowd"):
                state, name = by_id[note["image_id"]], names[note["category_id"]]
                state.annotated.add(name)
                if _is_marked(note):
                    state.marked.add(name)
        return {path.resolve(): by_id[entry["id"]] for path, entry in self._listed()}

    def _listed(self) -> list[tuple[Path, Mapping[str, Any]]]:
        return [(self.root / entry["file_name"], entry) for entry in self.data["images"]]


def _is_marked(note: Mapping[str, Any]) -> bool:
    """Whether a person has set keypoints, or has corrected a prediction, even if that left none."""
    return not is_prediction(note) and (PREDICTED in note or any(note["keypoints"][2::3]))


def read_annotations(path: Path, images_root: Path | None, category: str | None) -> Annotations:
    """Read a COCO-keypoint file and choose its references.

    Args:
        path: the file.
        images_root: what its ``file_name`` entries are relative to; None: the folder that the file names itself, if
            ``propagate`` wrote it, else ``images/`` beside it, or its own folder.
        category: take only the objects of this one.
    """
    data, digest = read_json(path), hash_files([path])
    root = images_root or recorded_root(path, data) or find_coco(path, "")[1]
    parse_coco_objects(data, str(path), root)  # predictions need not be used, but must not be malformed either
    objects, outside = [], []
    for item in parse_coco_objects(data, str(path), root, inside_only=False, predictions=False):
        inside = inside_image(item)
        if category in (None, item.category):
            names = [name for name, seen in zip(item.kp_names, item.visible & ~inside, strict=True) if seen]
            outside += [f"{name} of {item.image.name} (annotation {item.id})" for name in names]
        if (item.visible & inside).any():
            objects.append(replace(item, visible=item.visible & inside))
    predicted = sum(map(is_prediction, data["annotations"]))
    references = choose_references(objects, data["categories"], path, category, predicted)
    return Annotations(path, data, digest, root, references, outside)


def hash_files(paths: Sequence[Path]) -> str:
    """A hash of the content of some files."""
    digest = hashlib.sha256()
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def choose_references(
    objects: Sequence[AnnotatedObject],
    categories: Sequence[Mapping[str, Any]],
    source: Path,
    category: str | None,
    predicted: int = 0,
) -> dict[str, list[AnnotatedObject]]:
    """The annotated objects by category, in the order of the file's categories; only those of ``category`` if given.

    ``predicted`` is how many annotations were left out because they are predictions, for the message if no other is
    there.
    """
    names = [str(entry["name"]) for entry in categories]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{source}: two categories are called {name!r}")
    if category is not None and category not in names:
        raise InputError(f"{source}: no category is called {category!r}; it has {', '.join(names)}")
    groups = {name: [item for item in objects if item.category == name] for name in names}
    chosen = {name: group for name, group in groups.items() if group and category in (None, name)}
    if not chosen:
        no_references = f"; the {predicted} annotations that were predicted are no references" if predicted else ""
        raise InputError(
            f"{source}: no annotated object{f' of {category!r}' if category else ''} with a visible keypoint (v = 2), "
            f"so there is nothing to propagate{no_references}"
        )
    return chosen


def find_images(
    given: Sequence[Path], others: Collection[Path] = (), root: Path | None = None
) -> tuple[Path, list[str]]:
    """Files and folders → the images there.

    Args:
        given: files, and folders that are searched to any depth; hidden files and folders are skipped.
        others: images that the same file will list.
        root: the folder that the names are to be relative to; None: the folder given, or the innermost folder around
            all that was given and all others.

    Returns:
        The folder, and the images' names relative to it, sorted, each once.
    """
    for path in given:
        if not path.exists():
            raise InputError(f"{path}: no such image or folder")
        if path.is_dir():
            _check_readable(path)
    found = [file for path in given for file in ([path] if path.is_file() else _images_in(path))]
    if not found:
        raise InputError(f"{', '.join(map(str, given))}: no image there ({', '.join(sorted(IMAGE_SUFFIXES))})")
    root = root or _folder_around(given, others)
    images = {path.resolve(): path for path in found}  # however an image is reached, once
    return root, sorted(name_in(root, path) for path in images.values())


def _folder_around(given: Sequence[Path], others: Collection[Path]) -> Path:
    folders = {absolute(path) if path.is_dir() else absolute(path).parent for path in given}
    drives = {folder.anchor for folder in folders}
    if len(drives) > 1:
        raise InputError(f"{', '.join(map(str, given))}: on several drives; name the images of one at a time")
    around = folders | {path.parent for path in map(absolute, others) if path.anchor in drives}
    common = Path(os.path.commonpath(around))
    return given[0] if len(given) == 1 and absolute(given[0]) == common else common


def name_in(root: Path, path: Path) -> str:
    """The name of a file relative to a folder; its absolute path where there is none, as on another drive."""
    root, path = absolute(root), absolute(path)
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    name = relative(path, root)
    return name if (root / name).resolve() == path.resolve() else path.as_posix()  # a link may lead elsewhere


def relative(path: Path, folder: Path) -> str:
    """A path relative to a folder, through the folders above it; absolute where there is none, as on another drive."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:
        return absolute(path).as_posix()


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
        for parent, _, names in os.walk(folder, onerror=_refuse_folder)
        for path in (Path(parent) / name for name in names)
        if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file() and not hidden(path)
    ]


def _refuse_folder(error: OSError) -> NoReturn:
    raise InputError(
        f"{os.fsdecode(error.filename)}: this folder cannot be read ({error.strerror}); its photos would be missing"
    ) from error

"""What a person does to a project: categories, objects, marks, review. Each function is one action to be undone."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from transformatcher.annotation.journal import Action, now
from transformatcher.annotation.project import Project, only
from transformatcher.annotation.records import NOT_THERE, Category, Instance, Keypoint, Photo, PixelBox, Visibility
from transformatcher.data.coco_pairs import mirrored_names
from transformatcher.errors import InputError
from transformatcher.inference.calibration import MATCH_THRESHOLD

P = ParamSpec("P")
T = TypeVar("T")


def _at_once(function: Callable[Concatenate[Project, P], T]) -> Callable[Concatenate[Project, P], T]:
    """Nobody else changes the project between what a function reads and what it writes."""

    @wraps(function)
    def run(project: Project, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with project.database.transaction():
            return function(project, *args, **kwargs)

    return run


@_at_once
def add_category(
    project: Project, name: str, keypoints: Sequence[str], skeleton: Sequence[tuple[int, int]] = ()
) -> Category:
    """Add a category with named keypoints; left and right become twins by their names.

    Args:
        project: to be changed.
        name: of the category, not there yet.
        keypoints: their names, in order.
        skeleton: edges as pairs of positions in this order.
    """
    name = checked_name(name)
    if project.category_named(name) is not None:
        raise InputError(f"there is a category {name!r} already")
    with project.edit(f"add the category {name}") as action:
        category_id = action.insert("category", name=name)
        put_keypoints(action, category_id, keypoints, skeleton)
    return project.category(category_id)


@_at_once
def change_category(
    project: Project,
    category_id: int,
    name: str,
    keypoints: Sequence[tuple[int | None, str]],
    skeleton: Sequence[tuple[int, int]] = (),
) -> Category:
    """Rename a category; add, rename, reorder and remove its keypoints. Marks of removed keypoints go, too.

    Args:
        project: to be changed.
        category_id: of the category.
        name: the new name.
        keypoints: (id, or None for a new one; name), in the new order.
        skeleton: edges as pairs of positions in the new order.
    """
    name, category = checked_name(name), project.category(category_id)
    if (other := project.category_named(name)) is not None and other.id != category_id:
        raise InputError(f"there is a category {name!r} already")
    ids = [number for number, _ in keypoints if number is not None]
    kept = set(ids)
    if len(kept) < len(ids):
        raise InputError(f"a keypoint of the category {category.name!r} is given twice")
    if unknown := kept - {keypoint.id for keypoint in category.keypoints}:
        raise InputError(f"the category {category.name!r} has no keypoint with the id {min(unknown)}")
    removed = [keypoint.id for keypoint in category.keypoints if keypoint.id not in kept]
    rows = project.database.rows("SELECT DISTINCT photo_id FROM instance WHERE category_id = ?", category_id)
    photos = [row["photo_id"] for row in rows]
    with project.edit(f"change the category {category.name}", photos) as action:
        action.update("category", {"id": category_id}, name=name)
        for a, b in category.skeleton:
            action.delete("edge", a=a, b=b)
        for keypoint in category.keypoints:
            action.update("keypoint", {"id": keypoint.id}, twin=None)
        for keypoint_id in removed:
            for row in project.database.rows("SELECT instance_id FROM mark WHERE keypoint_id = ?", keypoint_id):
                action.delete("mark", instance_id=row["instance_id"], keypoint_id=keypoint_id)
            action.delete("keypoint", id=keypoint_id)
        put_keypoints(action, category_id, [n for _, n in keypoints], skeleton, [i for i, _ in keypoints])
    return project.category(category_id)


def put_keypoints(
    action: Action,
    category_id: int,
    names: Sequence[str],
    skeleton: Sequence[tuple[int, int]],
    ids: Sequence[int | None] | None = None,
) -> None:
    """Write the keypoints of a category, of those ids that it has already, with their twins and the skeleton."""
    names = [checked_name(name) for name in names]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two keypoints are called {name!r}; give each a name of its own")
    found = []
    for position, (name, number) in enumerate(zip(names, [None] * len(names) if ids is None else ids, strict=True)):
        if number is None:
            found.append(action.insert("keypoint", category_id=category_id, position=position, name=name))
        else:
            action.update("keypoint", {"id": number}, position=position, name=name)
            found.append(number)
    for row, twin in enumerate(mirrored_names(tuple(names)).tolist() if names else []):
        if twin not in (row, -1):
            action.update("keypoint", {"id": found[row]}, twin=found[twin])
    for a, b in dict.fromkeys((min(edge), max(edge)) for edge in skeleton):
        if a == b or not 0 <= a < b < len(found):
            raise InputError(f"an edge of the skeleton joins keypoints {a + 1} and {b + 1}, of {len(found)}")
        action.insert("edge", a=found[a], b=found[b])


@_at_once
def add_instance(
    project: Project,
    photo_id: int,
    category_id: int,
    box: PixelBox | None = None,
    known: Collection[int] | None = None,
) -> Instance:
    """Add an object to a photo; with a box, it is looked for inside.

    A box replaces the object that the program has added itself, as long as nobody has set a keypoint of it.

    Args:
        project: to be changed.
        photo_id: of the photo.
        category_id: of the object.
        box: x0, y0, x1, y1 in pixels of the photo.
        known: the objects that whoever asks has seen on the photo. If there is another one that is just like the new
            one, it comes from the same request, whose answer was lost, and is returned. None: one is always added.
    """
    photo = project.photo(photo_id)
    project.category(category_id)  # which is there
    values = _checked_box(photo, box)
    if known is not None:
        for other in project.instances([photo_id]):
            same = other.category_id == category_id and other.box == (None if box is None else tuple(values.values()))
            if same and other.id not in known and not other.marks and not other.automatic:
                return other
    with project.edit("add an object", [photo_id]) as action:
        for other in project.instances([photo_id]) if box is not None else ():
            if other.automatic and not other.marks and not other.reviewed and other.box is None:
                action.delete("instance", id=other.id)
        instance_id = action.insert("instance", photo_id=photo_id, category_id=category_id, **values)
    return project.instance(instance_id)


@_at_once
def change_box(project: Project, instance_id: int, box: PixelBox | None) -> None:
    """Give an object another box; None: it is looked for in the whole photo."""
    instance = project.instance(instance_id)
    with project.edit("change a box", [instance.photo_id]) as action:
        action.update("instance", {"id": instance_id}, **_checked_box(project.photo(instance.photo_id), box))
        if action.changes:
            project.forget_predictions([instance_id])


@_at_once
def remove_instance(project: Project, instance_id: int) -> None:
    """Remove an object with its marks."""
    instance = project.instance(instance_id)
    with project.edit("remove an object", [instance.photo_id]) as action:
        for keypoint_id in instance.marks:
            action.delete("mark", instance_id=instance_id, keypoint_id=keypoint_id)
        action.delete("instance", id=instance_id)


@_at_once
def set_mark(
    project: Project, instance_id: int, keypoint_id: int, visibility: Visibility, xy: tuple[float, float] | None = None
) -> None:
    """Set a keypoint by hand: to a position, visible or hidden, or to “not there”."""
    instance = project.instance(instance_id)
    photo = project.photo(instance.photo_id)
    name = _keypoint(project, instance, keypoint_id).name
    verbs = {0: "not there", 1: "hidden", 2: "move"}
    if visibility not in verbs:
        raise InputError(f"{visibility!r} is no visibility: 0 is not there, 1 hidden, 2 visible")
    with project.edit(f"{name}: {verbs[visibility]}", [photo.id]) as action:
        x, y = _checked_xy(photo, visibility, xy)
        action.put(
            "mark", {"instance_id": instance_id, "keypoint_id": keypoint_id},
            visibility=visibility, x=x, y=y, source="person", at=now(),
        )  # fmt: skip
        action.update("photo", {"id": photo.id}, skipped=0)  # there is something to mark after all


@_at_once
def remove_mark(project: Project, instance_id: int, keypoint_id: int) -> None:
    """Take back what was said of a keypoint, so that its prediction counts again."""
    instance = project.instance(instance_id)
    name = _keypoint(project, instance, keypoint_id).name
    with project.edit(f"{name}: back to the prediction", [instance.photo_id]) as action:
        action.delete("mark", instance_id=instance_id, keypoint_id=keypoint_id)


@_at_once
def accept(project: Project, photo_id: int, threshold: float = MATCH_THRESHOLD) -> None:
    """Accept the photo as it is shown: predictions become marks, and all its objects are reviewed.

    Keypoints of less confidence than the threshold, and those without a prediction, become “not there”.
    """
    photo = project.photo(photo_id)
    if photo.problem is not None:
        raise InputError(f"{photo.path}: {photo.problem}; nobody can see what would be accepted")
    instances = project.instances([photo_id])
    if not instances:
        raise InputError(f"{photo.path}: there is nothing to accept; mark a keypoint first, or skip the photo")
    keypoints = {category.id: category.keypoints for category in project.categories()}
    with project.edit("accept", [photo_id]) as action:
        time = now()
        for instance in instances:
            for keypoint in keypoints[instance.category_id]:
                if keypoint.id in instance.marks:
                    continue
                found = instance.predictions.get(keypoint.id)
                there = found is not None and found.confidence >= threshold
                x, y = found.xy if found is not None and there else (None, None)
                action.insert(
                    "mark", instance_id=instance.id, keypoint_id=keypoint.id, visibility=2 if there else NOT_THERE,
                    x=x, y=y, source="accepted", at=time,
                )  # fmt: skip
            action.update("instance", {"id": instance.id}, reviewed_at=instance.reviewed_at or time)
        action.update("photo", {"id": photo_id}, skipped=0)


@_at_once
def reopen(project: Project, photo_id: int) -> None:
    """Review a photo again: what was accepted without a change becomes a prediction again, marks by hand stay."""
    project.photo(photo_id)  # which is there
    with project.edit("review again", [photo_id]) as action:
        for instance in project.instances([photo_id]):
            for keypoint_id, mark in instance.marks.items():
                if mark.source == "accepted":
                    action.delete("mark", instance_id=instance.id, keypoint_id=keypoint_id)
            action.update("instance", {"id": instance.id}, reviewed_at=None)
        action.update("photo", {"id": photo_id}, skipped=0)


@_at_once
def skip(project: Project, photo_id: int, *, skipped: bool = True) -> None:
    """Say that a photo shows nothing to mark; it counts as reviewed."""
    project.photo(photo_id)  # which is there
    with project.edit("skip" if skipped else "do not skip", [photo_id]) as action:
        action.update("photo", {"id": photo_id}, skipped=int(skipped))


@_at_once
def forget_predictions(project: Project, instance_ids: Sequence[int]) -> None:
    """Drop what was predicted for objects, to be predicted again."""
    query = "SELECT DISTINCT photo_id FROM instance WHERE id IN (SELECT value FROM json_each(?))"
    rows = project.database.rows(query, json.dumps(list(instance_ids)))
    with project.changing([row["photo_id"] for row in rows]):
        project.forget_predictions(instance_ids)


# ---------------------------------------------------------------- checks


def _keypoint(project: Project, instance: Instance, keypoint_id: int) -> Keypoint:
    category = project.category(instance.category_id)
    found = (keypoint for keypoint in category.keypoints if keypoint.id == keypoint_id)
    return only(found, f"the category {category.name!r} has no keypoint with the id {keypoint_id}")


def checked_name(name: str, limit: int = 80) -> str:
    """A name without spaces around it; InputError if it is none."""
    stripped = name.strip()
    if not stripped or len(stripped) > limit or not stripped.isprintable():
        raise InputError(f"{name[:limit]!r} is not a name: a name has 1 to {limit} printable characters")
    return stripped


def _checked_xy(
    photo: Photo, visibility: Visibility, xy: tuple[float, float] | None
) -> tuple[float | None, float | None]:
    if visibility == NOT_THERE:
        return None, None
    if xy is None:
        raise InputError("a keypoint that is there needs a position")
    h, w = _known_size(photo)
    if not (0 <= xy[0] <= w and 0 <= xy[1] <= h):
        raise InputError(f"{photo.path}: ({xy[0]:g}, {xy[1]:g}) lies outside the photo of {w} × {h} pixels")
    return round(float(xy[0]), 2), round(float(xy[1]), 2)


def _checked_box(photo: Photo, box: PixelBox | None) -> Mapping[str, float | None]:
    if box is None:
        return dict.fromkeys(("x0", "y0", "x1", "y1"))
    h, w = _known_size(photo)
    x0, y0, x1, y1 = (round(float(value), 2) for value in box)
    x0, y0, x1, y1 = max(x0, 0.0), max(y0, 0.0), min(x1, float(w)), min(y1, float(h))
    if not (x1 - x0 >= 4 and y1 - y0 >= 4):
        raise InputError(f"{photo.path}: a box has at least 4 × 4 pixels inside the photo of {w} × {h}")
    return {"x0": x0, "y0": y0, "x1": x1, "y1": y1}


def _known_size(photo: Photo) -> tuple[int, int]:
    if photo.size is None:
        raise InputError(f"{photo.path}: {photo.problem or 'its size is not known yet; wait a moment'}")
    return photo.size

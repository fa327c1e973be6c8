"""An annotation of a file and the objects of its photo → the one that it is, if it is there already."""

from collections.abc import Mapping, Sequence

from transformatcher.annotation.formats.coco_read import ReadObject
from transformatcher.annotation.records import Instance, PixelBox
from transformatcher.data.coco_keypoints import ROUNDING

XY = tuple[float, float]


def find_same_object(
    instances: Sequence[Instance], item: ReadObject, box: PixelBox | None, keypoint_ids: Mapping[str, int]
) -> Instance | None:
    """The object with the same box or most of the same keypoints; else one that nobody has marked or boxed yet.

    Coordinates are the same within half a pixel, as some programs round them.

    Args:
        instances: of the photo and the category, without those that were found for other annotations.
        item: the annotation.
        box: its box on the photo, if it has one.
        keypoint_ids: of the project, by the names in the annotation.
    """
    places = {keypoint_ids[name]: xy for name, (_, xy) in item.marks.items() if xy is not None}
    guesses = {keypoint_ids[name]: xy for name, (xy, _) in item.predictions.items()}
    marks = {keypoint_ids[name]: xy for name, (_, xy) in item.marks.items()}
    found, best = None, (0.0, False, False)
    for instance in instances:
        found_there = {number: prediction.xy for number, prediction in instance.predictions.items()}
        marked = {number: mark.xy for number, mark in instance.marks.items() if mark.xy is not None}
        agreement = _agreement(marked or found_there, places) if places else _agreement(found_there, guesses)
        boxed = same_box(instance.box, box)
        # Of objects in the same box, the one with just these marks.
        score = boxed + agreement, _alike(instance, marks), bool(marked) == bool(places)
        if (boxed or agreement >= 0.5) and score > best:  # most points, not all: one may have been moved since
            found, best = instance, score
    if found is None:
        found = next((one for one in instances if one.box is None and not one.marks), None)
    return found


def same_box(a: PixelBox | None, b: PixelBox | None) -> bool:
    """Whether both are the same box; False if there is none."""
    return a is not None and b is not None and all(abs(p - q) <= ROUNDING for p, q in zip(a, b, strict=True))


def same_place(a: XY | None, b: XY | None) -> bool:
    """Whether both are the same point, or none."""
    if a is None or b is None:
        return a is b
    return max(abs(a[0] - b[0]), abs(a[1] - b[1])) <= ROUNDING


def _alike(instance: Instance, marks: Mapping[int, XY | None]) -> bool:
    """Whether an object has these marks and no others."""
    own = {number: mark.xy for number, mark in instance.marks.items()}
    return own.keys() == marks.keys() and all(same_place(own[number], marks[number]) for number in own)


def _agreement(own: Mapping[int, XY], places: Mapping[int, XY]) -> float:
    """Which part of the keypoints that both have is at the same place, from 0 to 1."""
    shared = own.keys() & places.keys()
    return sum(same_place(own[number], places[number]) for number in shared) / max(len(shared), 1)

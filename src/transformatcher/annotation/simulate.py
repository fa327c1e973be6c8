"""Photos with known keypoints → the clicks that a person needs to annotate them in the studio, and by hand.

The person is simulated: she knows where every keypoint is and works in a temporary project with the real predictor.
What is counted is one click or key for each decision: accepting a photo, moving a point, placing one that is not shown,
saying "not there" of one that is. A predicted point of less confidence than the threshold is shown as unsure, and
accepting the photo makes it "not there"; so if the keypoint is there, that is a click, however near the unsure point
is. Finding the photo, zooming and looking cost nothing here, though they take time in life.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from transformatcher.annotation.edits import accept, add_category, add_instance, set_mark
from transformatcher.annotation.known_photos import KnownPhoto
from transformatcher.annotation.predictor import Predictor
from transformatcher.annotation.project import Project
from transformatcher.annotation.records import Category, Instance, Photo
from transformatcher.annotation.scan import identify_photo, scan_photos
from transformatcher.annotation.suggestion import choose_next
from transformatcher.data.coco_keypoints import AnnotatedObject, box_around
from transformatcher.errors import InputError
from transformatcher.files import copy_file, make_folder
from transformatcher.inference.calibration import MATCH_THRESHOLD
from transformatcher.inference.matcher import Matcher

FirstPhotos = Literal["suggested", "least_like", "random"]
FINE = 0.05  # of the object: the exactness of the result is told at this distance, too

Track = Callable[[int], None]  # is called with the number of photos finished


@dataclass(frozen=True)
class Rules:
    """How the simulated person works.

    Args:
        first: which photos she marks before she reviews: those that the studio suggests, the ones that are least like
            those marked already (another rule, to compare), or some at random.
        references: how many of them.
        tolerance: a predicted point this near to the true one is accepted; of the longer side of the object's box.
        refresh: so many photos are predicted anew after each that is reviewed, the least sure first; None: all. The
            studio does it in the background, in the same order, as long as there is something to do.
        seed: of the photos at random.
    """

    first: FirstPhotos = "suggested"
    references: int = 3
    tolerance: float = 0.1
    refresh: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class FinishedPhoto:
    """What it took to finish one photo, besides the click that accepts it."""

    image: str
    placed: int  # keypoints that were not shown: without prediction, or of too little confidence
    moved: int  # keypoints that were shown at a wrong place
    removed: int  # keypoints that were shown and are not there
    by_hand: int  # clicks to mark the same photo by hand

    @property
    def clicks(self) -> int:
        """All clicks, with the one that accepts the photo."""
        return 1 + self.placed + self.moved + self.removed


@dataclass(frozen=True)
class Unreviewed:
    """How good the predictions of all other photos are when some are marked and nobody has reviewed any."""

    references: int
    clicks: int  # spent so far
    photos: int  # predicted
    photos_right: int  # with all keypoints right
    visible: int  # keypoints that are there
    found: int  # of these, how many are shown within the tolerance
    absent: int  # keypoints that are not there
    left_out: int  # of these, how many are not shown


@dataclass(frozen=True)
class SimulatedRun:
    """One simulated person and one category, from the first photo to the last."""

    category: str
    rules: Rules
    steps: Sequence[FinishedPhoto]  # in the order of the work
    unreviewed: Sequence[Unreviewed]  # after each photo that was marked before the review
    mean_error: float  # of the result: distance of the visible keypoints to the truth, of the longer side of the box
    within_fine: float  # their share within FINE
    seconds: float  # that predicting took

    @property
    def name(self) -> str:
        """Which run it is, among those with the same photos and model."""
        return run_name(self.category, self.rules)

    @property
    def clicks(self) -> int:
        """All clicks."""
        return sum(step.clicks for step in self.steps)

    @property
    def by_hand(self) -> int:
        """All clicks if every keypoint of every photo is marked by hand."""
        return sum(step.by_hand for step in self.steps)


def run_name(category: str, rules: Rules) -> str:
    """The category and the way of work, such as ``cat, suggested, 0.1``."""
    return f"{category}, {rules.first}, {rules.tolerance:g}"


def read_simulated_run(value: Mapping[str, Any]) -> SimulatedRun:
    """A run from its JSON, as :func:`dataclasses.asdict` makes it."""
    lists = {
        "rules": Rules(**value["rules"]),
        "steps": [FinishedPhoto(**step) for step in value["steps"]],
        "unreviewed": [Unreviewed(**row) for row in value["unreviewed"]],
    }
    return SimulatedRun(**(dict(value) | lists))


def simulate(
    matcher: Matcher,
    photos: Sequence[KnownPhoto],
    rules: Rules,
    workspace: Path,
    *,
    boxes: bool = False,
    batch: int = 4,
    track: Track = lambda _done: None,
) -> SimulatedRun:
    """Let a simulated person annotate photos of one category in a new project.

    She finishes the first photos by ``rules.first``, then reviews the others, least sure first, as the studio shows
    them. Every finished photo is a reference for those that are left. The very first photo has no predictions, so she
    places all its points; on all others she corrects what is wrong.

    Args:
        matcher: predicts.
        photos: of one category, each with the same names of keypoints; they are not changed.
        rules: how she works.
        workspace: an empty folder, or the one of another run on the same photos, whose features are used again.
        boxes: the objects are given with their boxes, which costs no click.
        batch: objects predicted at a time.
        track: called after each photo.

    Example:
        >>> photos = choose_photos(load_coco(Path("marked.json")), "cat", 60)
        >>> simulate(Matcher.from_pretrained(), photos, Rules(), Path("workspace")).clicks
    """
    known = _copy_photos(photos, workspace / "photos")
    file = workspace / "project.sqlite"
    for path in workspace.glob(f"{file.name}*"):
        if path.is_file():  # its features stay, in a folder
            path.unlink()
    with Project(workspace / "photos", file) as project:
        person = _Person(project, matcher, known, rules, boxes=boxes, batch=batch, track=track)
        try:
            person.work()
        finally:
            person.predictor.close()
        return SimulatedRun(
            photos[0].objects[0].category, rules, person.steps, person.unreviewed, *person.exactness(), person.seconds
        )


def _copy_photos(photos: Sequence[KnownPhoto], folder: Path) -> dict[str, KnownPhoto]:
    """Photos → by the names of their copies in the folder of the project."""
    make_folder(folder)
    known = {}
    for number, photo in enumerate(photos):
        name = f"{number:05d}{photo.image.suffix.lower()}"
        known[name] = photo
        if not (folder / name).exists():
            copy_file(photo.image, folder / name)
    return known


class _Person:
    """Knows where all keypoints are, and counts her clicks."""

    def __init__(
        self, project: Project, matcher: Matcher, known: Mapping[str, KnownPhoto], rules: Rules, *, boxes: bool,
        batch: int, track: Track,
    ) -> None:  # fmt: skip
        self.project, self.known, self.rules, self.track = project, known, rules, track
        self.steps: list[FinishedPhoto] = []
        self.unreviewed: list[Unreviewed] = []
        self.seconds = 0.0
        scan_photos(project)
        self.photos = {photo.path: identify_photo(project, photo) for photo in project.photos()}
        self._check_photos()
        some = next(iter(known.values())).objects[0]
        self.category: Category = add_category(project, some.category, some.kp_names)
        self.objects: dict[int, AnnotatedObject] = {}  # by the id of the instance
        if boxes:
            for name, photo in known.items():
                for item in photo.objects:
                    assert item.bbox_px is not None
                    x0, y0, x1, y1 = map(float, item.bbox_px)
                    h, w = self.photos[name].size or (0, 0)
                    box = (max(x0, 0.0), max(y0, 0.0), min(x1, float(w)), min(y1, float(h)))
                    added = add_instance(project, self.photos[name].id, self.category.id, box)
                    self.objects[added.id] = item
        self.boxes = boxes
        self.predictor = Predictor(project, matcher, batch=min(batch, rules.refresh or batch))

    def _check_photos(self) -> None:
        for name, photo in self.known.items():
            if name not in self.photos:
                raise InputError(f"{photo.image}: not a photo by its name; use JPEG, PNG or WebP")
            if (problem := self.photos[name].problem) is not None:
                raise InputError(f"{photo.image}: {problem}")

    # ------------------------------------------------------------ the work

    def work(self) -> None:
        """Mark the first photos, then review the others."""
        self._predict()
        at_random = np.random.default_rng(self.rules.seed).permutation(sorted(self.known)).tolist()
        for number in range(1, min(self.rules.references, len(self.known)) + 1):
            done = {step.image for step in self.steps}
            name = next(n for n in at_random if n not in done) if self.rules.first == "random" else self._suggested()
            self._finish(self.photos[name])
            self._predict()
            self.unreviewed.append(self._judge(number))
        while (photo := self._least_sure()) is not None:
            self._finish(photo)
            self._predict(self.rules.refresh)

    def _predict(self, count: int | None = None) -> None:
        """Predict ``count`` photos again, the least sure first; None: all of them."""
        start = time.monotonic()
        if count is None:
            self.predictor.run()
        else:
            for _ in range(-(-count // self.predictor.batch)):
                self.predictor.step()
        self.seconds += time.monotonic() - start

    def _suggested(self) -> str:
        """The photo that the studio suggests, or the one that the other rule would."""
        photo_id = self.predictor.suggestion()
        if self.rules.first == "least_like" and self.steps:
            done = {step.image for step in self.steps}
            names = sorted(set(self.known) - done)
            marked, others = (self._descriptors(group) for group in (done, names))
            return names[choose_next(others, marked, "least_like")]
        assert photo_id is not None
        return self.project.photo(photo_id).path

    def _descriptors(self, names: Collection[str]) -> Float[np.ndarray, "n c"]:
        found = [self.predictor.descriptors.of(self.photos[name].id) for name in sorted(names)]
        return np.stack([vector for vector in found if vector is not None])

    def _least_sure(self) -> Photo | None:
        """The next photo in the order of the page; None if all are finished."""
        waiting = [summary for summary in self.project.summaries() if summary.state != "reviewed"]
        for summary in waiting:
            if summary.problem is not None:
                raise InputError(f"{self.known[summary.path].image}: {summary.problem}")
        if not waiting:
            return None
        first = min(waiting, key=lambda s: (s.state == "unmarked", 2.0 if s.sureness is None else s.sureness, s.path))
        return self.photos[first.path]

    def _finish(self, photo: Photo) -> None:
        """Correct what is shown of a photo, and accept it."""
        instances = self.project.instances([photo.id]) or [add_instance(self.project, photo.id, self.category.id)]
        placed = moved = removed = 0
        for instance in instances:
            item = self._object(instance, photo)
            for row, keypoint in enumerate(self.category.keypoints):
                shown = _shown(instance, keypoint.id)
                x, y = map(float, item.kps_px[row])
                if item.visible[row]:
                    if shown is not None and self._is_near(item, row, shown):
                        continue
                    placed, moved = placed + (shown is None), moved + (shown is not None)
                    set_mark(self.project, instance.id, keypoint.id, 2, (x, y))
                elif shown is not None:
                    removed += 1
                    set_mark(self.project, instance.id, keypoint.id, 0)
        accept(self.project, photo.id)
        self.steps.append(FinishedPhoto(photo.path, placed, moved, removed, self.known[photo.path].clicks_by_hand))
        self.track(len(self.steps))

    def _object(self, instance: Instance, photo: Photo) -> AnnotatedObject:
        return self.objects[instance.id] if self.boxes else self.known[photo.path].objects[0]

    def _is_near(self, item: AnnotatedObject, row: int, xy: tuple[float, float]) -> bool:
        return _distance(item, row, xy) <= self.rules.tolerance

    # ------------------------------------------------------------ how good it is

    def _judge(self, references: int) -> Unreviewed:
        """The predictions of all photos that are not finished."""
        paths = {photo.id: photo for photo in self.photos.values()}
        right: dict[int, bool] = {}
        visible = found = absent = left_out = 0
        for instance in self.project.instances():
            if instance.reviewed:
                continue
            item = self._object(instance, paths[instance.photo_id])
            right.setdefault(instance.photo_id, True)
            for row, keypoint in enumerate(self.category.keypoints):
                shown = _shown(instance, keypoint.id)
                if item.visible[row]:
                    good = shown is not None and self._is_near(item, row, shown)
                    visible, found = visible + 1, found + good
                else:
                    good = shown is None
                    absent, left_out = absent + 1, left_out + good
                right[instance.photo_id] &= good
        clicks = sum(step.clicks for step in self.steps)
        return Unreviewed(references, clicks, len(right), sum(right.values()), visible, found, absent, left_out)

    def exactness(self) -> tuple[float, float]:
        """Mean distance of the visible keypoints of the result to the truth, and their share within ``FINE``."""
        paths = {photo.id: photo for photo in self.photos.values()}
        distances = [
            _distance(item, self.category.position(keypoint_id), xy)
            for instance in self.project.instances()
            for item in [self._object(instance, paths[instance.photo_id])]
            for keypoint_id, xy in instance.visible_marks.items()
        ]
        return float(np.mean(distances)), float(np.mean([distance <= FINE for distance in distances]))


def _shown(instance: Instance, keypoint_id: int) -> tuple[float, float] | None:
    """Where the studio shows a keypoint that accepting the photo would keep."""
    found = instance.predictions.get(keypoint_id)
    return found.xy if found is not None and found.confidence >= MATCH_THRESHOLD else None


def _distance(item: AnnotatedObject, row: int, xy: tuple[float, float]) -> float:
    """From the true keypoint, as a part of the longer side of the object's box (of its keypoints where it has none)."""
    if item.bbox_px is not None:
        x0, y0, x1, y1 = item.bbox_px
        side = max(x1 - x0, y1 - y0)
    else:
        size = item.image_size or (10**6, 10**6)
        side = max(box_around(item.kps_px[item.visible], size)[2:])
    return float(np.hypot(xy[0] - item.kps_px[row, 0], xy[1] - item.kps_px[row, 1]) / side)

"""A request → what its route works with: the studio, and the photo, object or category that its path names."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from transformatcher.annotation.project import Project
from transformatcher.annotation.records import Category, Instance, Photo
from transformatcher.annotation.scan import identify_photo
from transformatcher.errors import InputError
from transformatcher.inference.calibration import MATCH_THRESHOLD
from transformatcher.web.errors import RequestError
from transformatcher.web.job_queue import JobQueue
from transformatcher.web.studio.changes import ChangeFeed
from transformatcher.web.studio.overview import Overview
from transformatcher.web.studio.pictures import Pictures
from transformatcher.web.uploads import Limits

if TYPE_CHECKING:
    from transformatcher.annotation.worker import PredictionWorker


@dataclass
class Studio:
    """What all requests share; ``app.state.studio`` holds it."""

    project: Project
    worker: "PredictionWorker"
    temporary: bool = False  # the project is a demonstration's: photos are uploaded, and nothing is kept
    limits: Limits = field(default_factory=Limits)
    calibrated: bool = field(init=False)
    overview: Overview = field(init=False)
    feed: ChangeFeed = field(init=False)
    pictures: Pictures = field(init=False)
    jobs: JobQueue = field(init=False, default_factory=JobQueue)  # files that requests bring, one after the other
    _editing: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Build what belongs to the project."""
        file = self.project.file
        self.calibrated = self.worker.predictor.matcher.calibrated
        self.overview = Overview(self.project, self.threshold)
        self.feed = ChangeFeed(self.project, lambda: (self.worker.state, self.worker.predictor.suggestion()))
        self.pictures = Pictures(file.with_name(f"{file.name}.cache") / "thumbnails")

    @property
    def threshold(self) -> float:
        """Below this confidence, a predicted point counts as not there; without a calibration, none does."""
        return MATCH_THRESHOLD if self.calibrated else float("-inf")

    @contextmanager
    def editing(self) -> Iterator[Project]:
        """One change of the project by a person at a time; the prediction waits meanwhile."""
        with self._editing:
            try:
                yield self.project
            finally:
                self.worker.person_is_active()


async def get_studio(request: Request) -> Studio:
    """The studio of the application."""
    studio: Studio = request.app.state.studio
    return studio


CurrentStudio = Annotated[Studio, Depends(get_studio)]


@contextmanager
def _or_404() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise RequestError(404, str(error)) from error


def get_photo(photo_id: int, studio: CurrentStudio) -> Photo:
    """The photo that the path names, or 404."""
    with _or_404():
        return studio.project.photo(photo_id)


def get_identified_photo(photo: Annotated[Photo, Depends(get_photo)], studio: CurrentStudio) -> Photo:
    """The photo that the path names, with its size, unless it cannot be read."""
    return photo if photo.problem else identify_photo(studio.project, photo)


def get_instance(instance_id: int, studio: CurrentStudio) -> Instance:
    """The object that the path names, or 404; the size of its photo is known afterwards."""
    with _or_404():
        instance = studio.project.instance(instance_id)
    get_identified_photo(studio.project.photo(instance.photo_id), studio)
    return instance


def get_category(category_id: int, studio: CurrentStudio) -> Category:
    """The category that the path names, or 404."""
    with _or_404():
        return studio.project.category(category_id)


def get_keypoint_id(
    keypoint_id: int, instance: Annotated[Instance, Depends(get_instance)], studio: CurrentStudio
) -> int:
    """The id of the keypoint that the path names, or 404 if the object's category does not have it."""
    category = studio.project.category(instance.category_id)
    if all(keypoint.id != keypoint_id for keypoint in category.keypoints):
        raise RequestError(404, f"the category {category.name!r} has no keypoint with the id {keypoint_id}")
    return keypoint_id


CurrentPhoto = Annotated[Photo, Depends(get_photo)]
IdentifiedPhoto = Annotated[Photo, Depends(get_identified_photo)]
CurrentInstance = Annotated[Instance, Depends(get_instance)]
CurrentCategory = Annotated[Category, Depends(get_category)]
CurrentKeypointId = Annotated[int, Depends(get_keypoint_id)]

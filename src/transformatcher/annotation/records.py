"""What an annotation project holds: categories, photos, instances, marks of a person and predictions.

An instance is one object on one photo.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from transformatcher.schema import Size

PixelBox = tuple[float, float, float, float]  # x0, y0, x1, y1 in pixels of the photo
Visibility = Literal[0, 1, 2]  # as in COCO: 0 not there, 1 hidden, 2 visible
PhotoState = Literal["failed", "unmarked", "predicted", "marked", "reviewed"]

NOT_THERE: Final = 0
HIDDEN: Final = 1
VISIBLE: Final = 2


@dataclass(frozen=True)
class Keypoint:
    """A named keypoint of a category."""

    id: int
    name: str
    twin: int | None = None  # the id of the same keypoint of the other side: left and right


@dataclass(frozen=True)
class Category:
    """A kind of object with its keypoints in order and the edges of its skeleton."""

    id: int
    name: str
    keypoints: tuple[Keypoint, ...] = ()
    skeleton: tuple[tuple[int, int], ...] = ()  # pairs of keypoint ids

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the keypoints, in order."""
        return tuple(keypoint.name for keypoint in self.keypoints)

    def position(self, keypoint_id: int) -> int:
        """The place of a keypoint in the order, from 0."""
        return next(i for i, keypoint in enumerate(self.keypoints) if keypoint.id == keypoint_id)


@dataclass(frozen=True)
class Mark:
    """What a person, or an imported file, says about one keypoint of one object."""

    visibility: Visibility
    xy: tuple[float, float] | None  # None where visibility is 0
    source: str  # "person", "accepted" (a prediction that a person accepted), or "import: FILE"
    at: str  # time in UTC, ISO 8601


@dataclass(frozen=True)
class Prediction:
    """Where the model finds one keypoint of one object."""

    xy: tuple[float, float]
    confidence: float
    reference: int | None = None  # id of the instance that it was copied from
    mirrored: bool = False


@dataclass(frozen=True)
class Instance:
    """One object on one photo. Marks and predictions are by keypoint id; a keypoint may have both, or neither."""

    id: int
    photo_id: int
    category_id: int
    box: PixelBox | None = None  # drawn by a person or imported; None: the object is looked for in the whole photo
    reviewed_at: str | None = None
    same_kind: float | None = None  # probability that it shows what the references show
    marks: Mapping[int, Mark] = field(default_factory=dict)
    predictions: Mapping[int, Prediction] = field(default_factory=dict)
    predicted_at: str | None = None
    automatic: bool = False  # added by the program, for a photo that nobody had marked

    @property
    def reviewed(self) -> bool:
        """Whether a person has said that all its keypoints are right, or they were imported as such."""
        return self.reviewed_at is not None

    @property
    def visible_marks(self) -> dict[int, tuple[float, float]]:
        """The keypoints that it can lend to other photos."""
        return {k: mark.xy for k, mark in self.marks.items() if mark.visibility == VISIBLE and mark.xy is not None}


@dataclass(frozen=True)
class Photo:
    """A photo of the folder."""

    id: int
    path: str  # relative to the folder, with forward slashes
    size: Size | None  # (h, w) after the rotation of its EXIF tag; None until its header was read
    bytes: int
    digest: str | None = None  # SHA-256 of the file; None until it was read
    problem: str | None = None  # why it cannot be used
    skipped: bool = False  # a person has said that there is nothing to mark
    revision: int = 0  # of the project when the photo or its instances changed last


@dataclass(frozen=True)
class PhotoSummary:
    """What the grid shows of a photo."""

    id: int
    path: str
    size: Size | None
    state: PhotoState
    sureness: float | None  # least confidence of its predictions; None without any
    instances: int
    problem: str | None
    revision: int
    same_kind: float | None = None  # of its objects that nobody reviewed, the one most like the references

"""The photos, points and corrections of one open page, kept in memory."""

import secrets
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from transformatcher.coords import rescale_px
from transformatcher.errors import InputError
from transformatcher.inference.matched_pair import EncodedPhoto, MatchedPair
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.photos import check_points
from transformatcher.schema import Size
from transformatcher.web.errors import RequestError
from transformatcher.web.uploads import Upload

MAX_LABEL_LENGTH = 80  # characters in a point's name


@dataclass(frozen=True)
class Limits:
    """What one server allows."""

    upload_bytes: int = 20_000_000
    pixels: int = 50_000_000
    photos: int = 12  # in one session, the source included; a photo takes about 15 MB
    points: int = 200
    sessions: int = 4  # the least recently used is dropped first
    idle_s: float = 1800.0  # an open page sends a request every few minutes
    waiting: int = 8  # heavy requests in the queue


class XY(NamedTuple):
    """A position in pixels of the original photo."""

    x: float
    y: float


@dataclass(frozen=True)
class SessionPhoto:
    """A photo with the features that the matcher needs."""

    id: str
    name: str
    size: Size  # (h, w) of the original; the stored copy, ``encoded``, may be smaller
    encoded: EncodedPhoto
    jpeg: bytes

    @classmethod
    def encode(cls, upload: Upload, matcher: Matcher) -> "SessionPhoto":
        """Compute the features of an uploaded photo. Slow."""
        (encoded,) = matcher.encode([upload.pixels])
        return cls(secrets.token_hex(4), upload.name, upload.size, encoded, upload.jpeg)

    def to_stored_px(self, points_px: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
        """Pixels of the original → pixels of the stored copy."""
        return rescale_px(points_px, self.size, self.encoded.size)

    def to_original_px(self, points_px: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
        """Pixels of the stored copy → pixels of the original."""
        return rescale_px(points_px, self.encoded.size, self.size)

    def check_inside(self, xy: XY) -> XY:
        """Return ``xy``, or raise InputError if it lies outside the photo."""
        check_points([xy], self.size, self.name)
        return xy


@dataclass(frozen=True)
class Point:
    """A named point of the source."""

    id: int
    name: str
    xy: XY


@dataclass
class Session:
    """Photos, points and pins; a pin is a position on a target that the user has set.

    Several requests may use one session at a time: hold ``lock`` while calling its methods.
    """

    limits: Limits = field(default_factory=Limits)
    id: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    lock: RLock = field(default_factory=RLock, repr=False)
    photos: dict[str, SessionPhoto] = field(default_factory=dict)
    source_id: str | None = None
    points: dict[int, Point] = field(default_factory=dict)
    pins: dict[tuple[int, str], XY | None] = field(default_factory=dict)  # (point, target); None: not visible there
    pairs: dict[tuple[str, str], MatchedPair] = field(default_factory=dict, repr=False)  # (reference, target)
    last_point_id: int = 0

    # ------------------------------------------------------------ photos

    @property
    def source(self) -> SessionPhoto:
        """The photo that points are set on."""
        if self.source_id is None:
            raise InputError("There is no source photo yet; add one first.")
        return self.photos[self.source_id]

    @property
    def targets(self) -> list[SessionPhoto]:
        """All photos but the source, in the order of their upload."""
        return [photo for photo in self.photos.values() if photo.id != self.source_id]

    def photo(self, photo_id: str) -> SessionPhoto:
        """The photo with this id."""
        if photo_id not in self.photos:
            raise RequestError(404, "This photo has been removed.")
        return self.photos[photo_id]

    def target(self, photo_id: str) -> SessionPhoto:
        """The target with this id."""
        if photo_id == self.source_id:
            raise InputError("This photo is the source; only predictions on a target can be corrected.")
        return self.photo(photo_id)

    def check_room(self, *, as_source: bool) -> None:
        """Raise InputError if the session cannot hold another photo."""
        replaces = as_source and self.source_id is not None
        if len(self.photos) - replaces >= self.limits.photos:
            raise InputError(f"A session holds at most {self.limits.photos} photos; remove one first.")

    def add_photo(self, photo: SessionPhoto, *, as_source: bool) -> None:
        """Add a photo; a new source replaces the old one together with its points."""
        self.check_room(as_source=as_source)
        if as_source and self.source_id is not None:
            self.remove_photo(self.source_id)
        taken = {other.name for other in self.photos.values()}
        self.photos[photo.id] = replace(photo, name=_unique_name(photo.name, taken))
        if as_source:
            self.source_id = photo.id

    def remove_photo(self, photo_id: str) -> None:
        """Remove a photo with its pins and matches; with the source, all points go too."""
        del self.photos[self.photo(photo_id).id]
        if photo_id == self.source_id:
            self.source_id = None
            self.points.clear()
        self.pins = {key: xy for key, xy in self.pins.items() if key[1] != photo_id and key[0] in self.points}
        self.pairs = {key: pair for key, pair in self.pairs.items() if photo_id not in key}

    # ------------------------------------------------------------ points

    def point(self, point_id: int) -> Point:
        """The point with this id."""
        if point_id not in self.points:
            raise RequestError(404, "This point has been deleted.")
        return self.points[point_id]

    def add_point(self, xy: XY, name: str = "") -> Point:
        """Add a point to the source; without a name it gets one like “point 3”."""
        if len(self.points) >= self.limits.points:
            raise InputError(f"A session holds at most {self.limits.points} points; delete one first.")
        self.source.check_inside(xy)
        self.last_point_id += 1
        taken = {point.name for point in self.points.values()}
        name = _check_label(name, taken) if name else _unique_name(f"point {len(self.points) + 1}", taken)
        self.points[self.last_point_id] = Point(self.last_point_id, name, xy)
        return self.points[self.last_point_id]

    def change_point(self, point_id: int, xy: XY | None = None, name: str | None = None) -> None:
        """Move or rename a point."""
        point = self.point(point_id)
        if xy is not None:
            point = replace(point, xy=self.source.check_inside(xy))
        if name is not None:
            point = replace(point, name=_check_label(name, {p.name for p in self.points.values() if p.id != point_id}))
        self.points[point_id] = point

    def remove_point(self, point_id: int) -> None:
        """Delete a point and its pins."""
        del self.points[self.point(point_id).id]
        self.pins = {key: xy for key, xy in self.pins.items() if key[0] != point_id}

    def replace_points(self, other: "Session") -> None:
        """Take over the points and pins of another session with the same photos."""
        self.points, self.pins, self.last_point_id = other.points, other.pins, other.last_point_id

    # ------------------------------------------------------------ pins

    def pin(self, point_id: int, photo_id: str, xy: XY | None) -> None:
        """Set the true position of a point on a target; None means that the point is not visible there."""
        point, photo = self.point(point_id), self.target(photo_id)
        self.pins[point.id, photo.id] = xy if xy is None else photo.check_inside(xy)

    def unpin(self, point_id: int, photo_id: str) -> None:
        """Undo a pin, so that the position is predicted again."""
        self.pins.pop((self.point(point_id).id, self.target(photo_id).id), None)

    def known_points(self, photo_id: str) -> dict[int, XY]:
        """Point id → position, for the points set by the user on a photo: all on the source, the pinned on a target."""
        if photo_id == self.source_id:
            return {point.id: point.xy for point in self.points.values()}
        return {point: xy for (point, photo), xy in self.pins.items() if photo == photo_id and xy is not None}


def _check_label(name: str, taken: set[str]) -> str:
    name = " ".join(name.split())
    if not name or len(name) > MAX_LABEL_LENGTH:
        raise InputError(f"A point's name must have 1 to {MAX_LABEL_LENGTH} characters.")
    if name in taken:
        raise InputError(f"Another point is called “{name}” already; choose a different name.")
    return name


def _unique_name(name: str, taken: set[str]) -> str:
    """The name, or the first of "name (2)", "name (3)", … that is free; a file name keeps its suffix."""
    stem, dot, suffix = name.rpartition(".")
    number, unique = 1, name
    while unique in taken:
        number += 1
        unique = f"{stem} ({number}){dot}{suffix}" if stem else f"{name} ({number})"
    return unique

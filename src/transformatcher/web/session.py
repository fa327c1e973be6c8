"""One person's photos and points, kept in memory: which points lie where, and which photo knows best."""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock, RLock
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from transformatcher.coords import rescale_px
from transformatcher.errors import InputError
from transformatcher.inference.matcher import EncodedPhoto, MatchedPair, Matcher, check_points
from transformatcher.inference.propagate import vote_keypoints
from transformatcher.schema import Size
from transformatcher.viz.warp import thin_plate_warp
from transformatcher.web.refusal import RefusedError
from transformatcher.web.uploads import Upload

LONGEST_LABEL = 80  # letters in a point's name
FEWEST_TO_WARP = 3


@dataclass(frozen=True)
class Limits:
    """What one server gives to those who use it."""

    upload_bytes: int = 20_000_000
    pixels: int = 50_000_000
    photos: int = 12  # of one session, its source included; a photo takes about 15 MB
    points: int = 200
    sessions: int = 4  # the least recently used goes first
    idle_s: float = 1800.0  # the page shows a sign of life every few minutes while it is open
    waiting: int = 8  # requests for heavy work in the queue


class XY(NamedTuple):
    """A place, in pixels of the original photo."""

    x: float
    y: float


@dataclass(frozen=True)
class Photo:
    """A photo and what the matcher needs of it."""

    id: str
    name: str
    size: Size  # (h, w) of the original; ``encoded`` may be smaller
    encoded: EncodedPhoto
    jpeg: bytes

    @classmethod
    def of(cls, upload: Upload, matcher: Matcher) -> "Photo":
        """Compute the features: heavy."""
        (encoded,) = matcher.encode([upload.pixels])
        return cls(secrets.token_hex(4), upload.name, upload.size, encoded, upload.jpeg)

    def to_kept(self, points_px: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
        """Pixels of the original → pixels of the copy that is kept."""
        return rescale_px(points_px, self.size, self.encoded.size)

    def from_kept(self, points_px: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
        """Pixels of the copy that is kept → pixels of the original."""
        return rescale_px(points_px, self.encoded.size, self.size)


@dataclass(frozen=True)
class Point:
    """A named point of the source."""

    id: int
    name: str
    at: XY


@dataclass(frozen=True)
class Placement:
    """Where a point lies on a target."""

    at: XY | None  # None: a person said that it is not there
    confidence: float
    found: bool
    pinned: bool = False  # by a person
    reference: str = ""  # the photo that the prediction was carried over from


def vote(candidates: Iterable[Mapping[int, Placement]], size: Size) -> dict[int, Placement]:
    """What each reference says of the points it knows, on one photo of ``size`` → the placement of each to believe.

    The vote is :func:`transformatcher.inference.propagate.vote_keypoints`, as in the command.
    """
    said = [by_point for by_point in candidates if by_point]
    points = list(dict.fromkeys(point for by_point in said for point in by_point))
    kps_px, confidence = np.zeros((len(said), len(points), 2)), np.zeros((len(said), len(points)))
    for row, by_point in enumerate(said):
        for column, point in enumerate(points):
            if (placement := by_point.get(point)) and placement.at is not None:
                kps_px[row, column] = placement.at
                confidence[row, column] = max(placement.confidence, 1e-9)  # 0 is for those that do not know the point
    chosen = vote_keypoints(kps_px, confidence, max(size)).chosen.tolist() if points else []
    return {point: said[row][point] for point, row in zip(points, chosen, strict=True)}


@dataclass
class Session:
    """Photos, points and pins. Whoever calls holds ``lock``, but for what says that it is heavy."""

    limits: Limits = field(default_factory=Limits)
    id: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    lock: RLock = field(default_factory=RLock, repr=False)
    photos: dict[str, Photo] = field(default_factory=dict)
    source_id: str | None = None
    points: dict[int, Point] = field(default_factory=dict)
    pins: dict[tuple[int, str], XY | None] = field(default_factory=dict)  # (point, target) → its true place, or none
    pairs: dict[tuple[str, str], MatchedPair] = field(default_factory=dict, repr=False)  # (reference, target)
    _last_id: int = 0

    # ------------------------------------------------------------ photos

    @property
    def source(self) -> Photo:
        """The photo that points are set on."""
        if self.source_id is None:
            raise InputError("There is no source photo yet; add one first.")
        return self.photos[self.source_id]

    @property
    def targets(self) -> list[Photo]:
        """All photos but the source, in the order they came."""
        return [photo for photo in self.photos.values() if photo.id != self.source_id]

    def photo(self, photo_id: str) -> Photo:
        """By its id."""
        if photo_id not in self.photos:
            raise RefusedError(404, "That photo is not here any more.")
        return self.photos[photo_id]

    def target(self, photo_id: str) -> Photo:
        """By its id, and not the source."""
        if photo_id == self.source_id:
            raise InputError("That photo is the source; a prediction is corrected on a target.")
        return self.photo(photo_id)

    def need_room(self, *, as_source: bool) -> None:
        """Refuse a photo too many, before it is worked on."""
        replaces = as_source and self.source_id is not None
        if len(self.photos) - replaces >= self.limits.photos:
            raise InputError(f"{self.limits.photos} photos are all that fit in; remove one first.")

    def add_photo(self, photo: Photo, *, as_source: bool) -> None:
        """Take a photo in; a new source takes the place of the old one, whose points mean nothing on it."""
        self.need_room(as_source=as_source)
        if as_source and self.source_id is not None:
            self.remove_photo(self.source_id)
        taken = {other.name for other in self.photos.values()}
        self.photos[photo.id] = replace(photo, name=_free(photo.name, taken))
        if as_source:
            self.source_id = photo.id

    def remove_photo(self, photo_id: str) -> None:
        """Forget a photo and all that was said of it."""
        del self.photos[self.photo(photo_id).id]
        if photo_id == self.source_id:
            self.source_id = None
            self.points.clear()
        self.pins = {key: at for key, at in self.pins.items() if key[1] != photo_id and key[0] in self.points}
        self.pairs = {key: pair for key, pair in self.pairs.items() if photo_id not in key}

    # ------------------------------------------------------------ points

    def point(self, point_id: int) -> Point:
        """By its id."""
        if point_id not in self.points:
            raise RefusedError(404, "That point is not here any more.")
        return self.points[point_id]

    def add_point(self, at: XY, name: str = "") -> Point:
        """A new point of the source, under a name that is free."""
        if len(self.points) >= self.limits.points:
            raise InputError(f"{self.limits.points} points are all that fit in; delete one first.")
        inside(at, self.source)
        self._last_id += 1
        taken = {point.name for point in self.points.values()}
        name = _label(name, taken) if name else _free(f"point {len(self.points) + 1}", taken)
        self.points[self._last_id] = Point(self._last_id, name, at)
        return self.points[self._last_id]

    def change_point(self, point_id: int, at: XY | None = None, name: str | None = None) -> None:
        """Move or rename a point."""
        point = self.point(point_id)
        if at is not None:
            point = replace(point, at=inside(at, self.source))
        if name is not None:
            point = replace(point, name=_label(name, {p.name for p in self.points.values() if p.id != point_id}))
        self.points[point_id] = point

    def remove_point(self, point_id: int) -> None:
        """Forget a point and its pins."""
        del self.points[self.point(point_id).id]
        self.pins = {key: at for key, at in self.pins.items() if key[0] != point_id}

    def pin(self, point_id: int, photo_id: str, at: XY | None) -> None:
        """A person's word on where a point lies on a target, or that it is not there."""
        point, photo = self.point(point_id), self.target(photo_id)
        self.pins[point.id, photo.id] = at if at is None else inside(at, photo)

    def unpin(self, point_id: int, photo_id: str) -> None:
        """Predict again."""
        self.pins.pop((self.point(point_id).id, self.target(photo_id).id), None)

    # ------------------------------------------------------------ which photo knows what

    def known_on(self, photo_id: str) -> dict[int, XY]:
        """The points whose place on a photo is certain: all on the source, on a target those pinned there."""
        if photo_id == self.source_id:
            return {point.id: point.at for point in self.points.values()}
        return {point: at for (point, photo), at in self.pins.items() if photo == photo_id and at is not None}

    def missing(self) -> dict[str, list[Photo]]:
        """Pairs still to be matched, as reference → targets: the source with all, a corrected target where it helps."""
        wanted: dict[str, list[Photo]] = {}
        for reference in self.photos:
            for target in self.targets:
                helps = reference == self.source_id or any(
                    (point, target.id) not in self.pins for point in self.known_on(reference)
                )
                if helps and reference != target.id and (reference, target.id) not in self.pairs:
                    wanted.setdefault(reference, []).append(target)
        return wanted

    def complete(self, matcher: Matcher) -> None:
        """Match what is missing: heavy, and takes the lock itself, only for moments."""
        with self.lock:
            wanted = self.missing()
            references = {reference: self.photos[reference] for reference in wanted}
        for reference, targets in wanted.items():
            encoded = [target.encoded for target in targets]
            for target, pair in zip(targets, matcher.pairs(references[reference].encoded, encoded), strict=True):
                with self.lock:
                    if {reference, target.id} <= self.photos.keys():  # neither was removed meanwhile
                        self.pairs[reference, target.id] = pair

    def placements(self) -> dict[int, dict[str, Placement]]:
        """Every point on every target: pinned, or what the photos vote for where its place is known."""
        said: dict[str, list[dict[int, Placement]]] = {}
        for (reference, target_id), pair in self.pairs.items():
            known = {p: at for p, at in self.known_on(reference).items() if (p, target_id) not in self.pins}
            if known:
                found = self._carry(pair, self.photos[reference], self.photos[target_id], list(known.values()))
                said.setdefault(target_id, []).append(dict(zip(known, found, strict=True)))
        placed: dict[int, dict[str, Placement]] = {point: {} for point in self.points}
        for target in self.targets:
            elected = vote(said.get(target.id, []), target.size)
            for point in self.points:
                if (point, target.id) in self.pins:
                    at = self.pins[point, target.id]
                    placed[point][target.id] = Placement(at, 1.0, found=at is not None, pinned=True)
                elif point in elected:
                    placed[point][target.id] = elected[point]
        return placed

    def match(self, at: XY) -> dict[str, Placement]:
        """Any point of the source on every target that is ready."""
        source = self.source
        inside(at, source)
        return {
            target.id: self._carry(pair, source, target, [at])[0]
            for target in self.targets
            if (pair := self.pairs.get((source.id, target.id)))
        }

    def heat(self, at: XY) -> dict[str, UInt8[np.ndarray, "h w"]]:
        """Where on every target a point of the source might be: 255 at the likeliest place."""
        known = {target.id: (self.source.id, at) for target in self.targets}
        return dict(self._heats(known))

    def heat_of(self, point_id: int) -> dict[str, UInt8[np.ndarray, "h w"]]:
        """The same for a named point, seen from the reference that its prediction comes from."""
        point = self.point(point_id)
        known = {}
        for target, placement in self.placements()[point_id].items():
            reference = placement.reference or self.source.id
            known[target] = (reference, self.known_on(reference).get(point_id, point.at))
        return dict(self._heats(known))

    def _heats(self, known: Mapping[str, tuple[str, XY]]) -> Iterable[tuple[str, UInt8[np.ndarray, "h w"]]]:
        for target, (reference, at) in known.items():
            if pair := self.pairs.get((reference, target)):
                (point,) = self.photos[reference].to_kept(
                    np.array([inside(at, self.photos[reference])], dtype=np.float64)
                )
                heat = pair.heatmap(point)
                yield target, (255 * heat / heat.max()).round().astype(np.uint8)

    @staticmethod
    def _carry(pair: MatchedPair, reference: Photo, target: Photo, at: list[XY]) -> list[Placement]:
        matches = pair.points(reference.to_kept(np.array(at, dtype=np.float64)))
        places = target.from_kept(matches.keypoints1).tolist()
        return [
            Placement(XY(*place), float(sure), found=bool(found), reference=reference.id)
            for place, sure, found in zip(places, matches.confidence, matches.is_match, strict=True)
        ]

    # ------------------------------------------------------------ warping

    def warp(self, photo_id: str, through: str) -> tuple[UInt8[np.ndarray, "h w 3"], UInt8[np.ndarray, "h w"], str]:
        """The source bent onto a target's frame (heavy; takes the lock itself, only for a moment).

        Args:
            photo_id: the target.
            through: "points" (those named), "matches" (all that are consistent and sure), or "auto": points where
                there are enough of them.

        Returns:
            Pixels, their opacity (0 or 255), and what the warp goes through, in words.
        """
        with self.lock:
            source, target = self.source, self.target(photo_id)
            on = {p: places[target.id] for p, places in self.placements().items() if target.id in places}
            named = [(self.points[p].at, place.at) for p, place in on.items() if place.found and place.at is not None]
            pair = self.pairs.get((source.id, target.id))
        if through == "points" or (through == "auto" and len(named) >= FEWEST_TO_WARP):
            points0 = source.to_kept(np.array([a for a, _ in named], dtype=np.float64).reshape(-1, 2))
            points1 = target.to_kept(np.array([b for _, b in named], dtype=np.float64).reshape(-1, 2))
            words, smoothing = f"{len(named)} points", 0.0
        else:
            if pair is None:
                raise InputError(f"{target.name} is not matched yet; wait a moment.")
            matches = pair.consistent()
            points0, points1 = matches.keypoints0[matches.reliable], matches.keypoints1[matches.reliable]
            words, smoothing = f"{len(points0)} sure matches", 0.01
        if len(points0) < FEWEST_TO_WARP:
            raise InputError(f"{words} on {target.name}: a warp takes {FEWEST_TO_WARP} or more, not on one line.")
        warped, mask = thin_plate_warp(
            source.encoded.pixels, points0, points1, target.encoded.size, smoothing=smoothing
        )  # fmt: skip
        return warped, mask.astype(np.uint8) * 255, words

    # ------------------------------------------------------------ for the page

    def state(self) -> dict[str, Any]:
        """All that the page shows."""
        placed = self.placements()
        return {
            "source": self.source_id,
            "photos": [
                {
                    "id": photo.id,
                    "name": photo.name,
                    "width": photo.size[1],
                    "height": photo.size[0],
                    "ready": photo.id == self.source_id or (self.source_id, photo.id) in self.pairs,
                }
                for photo in self.photos.values()
            ],
            "points": [
                {
                    "id": point.id,
                    "name": point.name,
                    "x": round(point.at.x, 2),
                    "y": round(point.at.y, 2),
                    "on": {target: to_plain(placement) for target, placement in placed[point.id].items()},
                }
                for point in self.points.values()
            ],
        }


def to_plain(placement: Placement) -> dict[str, Any]:
    """A placement as JSON."""
    return {
        "x": None if placement.at is None else round(placement.at.x, 2),
        "y": None if placement.at is None else round(placement.at.y, 2),
        "confidence": round(placement.confidence, 4),
        "found": placement.found,
        "pinned": placement.pinned,
        "reference": placement.reference,
    }


def inside(at: XY, photo: Photo) -> XY:
    """The place itself, if it is on the photo."""
    check_points([at], photo.size, photo.name)
    return at


def _label(name: str, taken: set[str]) -> str:
    name = " ".join(name.split())
    if not name or len(name) > LONGEST_LABEL:
        raise InputError(f"A point's name has 1 to {LONGEST_LABEL} letters.")
    if name in taken:
        raise InputError(f"There is another point called “{name}”; choose another name.")
    return name


def _free(name: str, taken: set[str]) -> str:
    """The name, or the first of "name (2)", "name (3)", … that is not taken; a photo keeps its ending."""
    stem, dot, ending = name.rpartition(".")
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{stem} ({number}){dot}{ending}" if stem else f"{name} ({number})"
    return free


class Store:
    """All sessions of a server: the least recently used goes when there are too many, an idle one after a while.

    Args:
        limits: their number and how long they may idle.
        clock: seconds, from any moment.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._lock = Lock()
        self._sessions: OrderedDict[str, tuple[Session, float]] = OrderedDict()  # least recently used first

    def create(self) -> Session:
        """A new, empty session."""
        self.sweep()
        session = Session(self.limits)
        with self._lock:
            while len(self._sessions) >= self.limits.sessions:
                self._sessions.popitem(last=False)
            self._sessions[session.id] = session, self._clock()
        return session

    def get(self, session_id: str) -> Session:
        """The session, which counts as used now."""
        self.sweep()
        with self._lock:
            if session_id not in self._sessions:
                raise RefusedError(404, "This session is over; its photos are forgotten. Load the page again.")
            session, _ = self._sessions.pop(session_id)
            self._sessions[session_id] = session, self._clock()
            return session

    def close(self, session_id: str) -> None:
        """Forget a session, if it is there."""
        with self._lock:
            self._sessions.pop(session_id, None)

    def sweep(self) -> None:
        """Forget the idle ones."""
        oldest = self._clock() - self.limits.idle_s
        with self._lock:
            while self._sessions and next(iter(self._sessions.values()))[1] < oldest:
                self._sessions.popitem(last=False)

    def __len__(self) -> int:
        return len(self._sessions)

"""Matched pairs in memory + references that were moved → new votes at once, and heat maps, for photos on the screen."""

import copy
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np
from jaxtyping import UInt8

from transformatcher.annotation.project import Project
from transformatcher.annotation.references import Reference, Region, find_references
from transformatcher.annotation.votes import (
    NO_STAMP,
    count_by_category,
    read_votes,
    vote_state,
    write_estimate,
    write_votes,
)
from transformatcher.inference.crops import Box
from transformatcher.inference.encoded_photo import EncodedPhoto
from transformatcher.inference.matched_pair import MatchedPair
from transformatcher.inference.propagate_voting import Vote, exchange_sides, read_vote

MAX_PAIRS = 72  # of twelve photos with six references each, about 1.4 MB a pair
PROVISIONAL = "provisional "  # before the state of votes that were read from matches of other points


@dataclass(frozen=True)
class _Remembered:
    reference: str  # the key of its region
    target: Region
    pair: MatchedPair


@dataclass(frozen=True)
class HeatMap:
    """How well a keypoint matches every place of a part of a photo."""

    box: Box  # the part: x0, y0, x1, y1 in pixels of the photo
    values: UInt8[np.ndarray, "h w"]  # 255 at the maximum


class Revoting:
    """Answers for moved points without the network, in milliseconds. Any thread may call it.

    The crops are still those around the old points, so the objects are matched again later.

    Args:
        project: to be changed.
        model: names the model.
    """

    def __init__(self, project: Project, model: str) -> None:
        self.project, self.model = project, model
        self._pairs: OrderedDict[tuple[int, int], _Remembered] = OrderedDict()  # by reference and object
        self._lock = Lock()

    def remember(self, reference: Reference, instance_id: int, target: Region, pair: MatchedPair) -> None:
        """Keep a matched pair, without the features and pixels of its photos."""
        kept = copy.copy(pair)
        kept.src, kept.trg = _without_pixels(kept.src), _without_pixels(kept.trg)
        with self._lock:
            self._pairs.pop((reference.id, instance_id), None)
            self._pairs[reference.id, instance_id] = _Remembered(reference.region.key, target, kept)
            while len(self._pairs) > MAX_PAIRS:
                self._pairs.popitem(last=False)

    def knows(self, reference: Reference, instance_id: int) -> bool:
        """Whether a matched pair is in memory."""
        with self._lock:
            known = self._pairs.get((reference.id, instance_id))
            return known is not None and known.reference == reference.region.key

    def heatmap(self, instance_id: int, keypoint_id: int) -> HeatMap | None:
        """The heat map of a predicted keypoint, from the reference that it was predicted from.

        None if nobody predicted it, or the pair is not in memory.
        """
        query = "SELECT reference FROM prediction WHERE instance_id = ? AND keypoint_id = ?"
        row = self.project.database.row(query, instance_id, keypoint_id)
        with self._lock:
            known = None if row is None else self._pairs.get((row["reference"], instance_id))
        if row is None or known is None:
            return None
        categories = {category.id: category for category in self.project.categories()}
        found = find_references(self.project, list(categories.values()), [row["reference"]])
        reference = next(iter(found), None)
        if reference is None or reference.region.key != known.reference:
            return None
        keypoints = categories[reference.category_id].keypoints
        shown = {keypoint.id: xy for keypoint, xy, visible in zip(keypoints, reference.kps_px, reference.visible,
                                                                  strict=True) if visible}  # fmt: skip
        if known.pair.mirrored:
            shown = exchange_sides(shown, {keypoint.id: keypoint.name for keypoint in keypoints})
        if keypoint_id not in shown:
            return None
        heat = known.pair.heatmap(shown[keypoint_id])
        return HeatMap(known.target.crop, (255 * heat / max(heat.max(), 1e-12)).round().astype(np.uint8))

    def vote_again(self, in_view: Collection[int]) -> list[int]:
        """Read points that have moved, and count the votes on the photos in view again; returns the photos changed."""
        categories = {category.id: category for category in self.project.categories()}
        with self._lock:
            pairs = {key: known for key, known in self._pairs.items() if known.target.photo_id in in_view}
        stored = {instance_id: read_votes(self.project, instance_id) for instance_id in {i for _, i in pairs}}
        voters = {number for votes in stored.values() for number in votes}
        references = find_references(self.project, list(categories.values()), voters)
        by_id = {reference.id: reference for reference in references}
        moved: dict[int, tuple[Region, dict[int, tuple[str, Vote]]]] = {}
        for (reference_id, instance_id), known in pairs.items():
            reference = by_id.get(reference_id)
            if reference is None or reference.region.key != known.reference:
                continue
            votes = stored[instance_id]
            state = vote_state(self.model, reference, known.target)
            if reference_id not in votes or votes[reference_id][0] in (state, PROVISIONAL + state):
                continue
            matches = known.pair.points(reference.kps_px[reference.visible])
            vote = read_vote(matches, reference.visible, categories[reference.category_id].names)
            vote = replace(vote, kps_px=vote.kps_px + known.target.offset)
            moved.setdefault(instance_id, (known.target, {}))[1][reference_id] = PROVISIONAL + state, vote
        photos: list[int] = []
        if not moved:
            return photos
        with self.project.changing(computed=True) as touched:
            for instance_id, (target, new) in moved.items():
                query = "SELECT category_id, x0 FROM instance WHERE id = ? AND reviewed_at IS NULL"
                row = self.project.database.row(query, instance_id)
                if row is None or (row["x0"] is None) != (target.box is None):
                    continue
                write_votes(self.project, instance_id, new)
                n = len(categories[row["category_id"]].keypoints)
                known_votes = stored[instance_id] | new
                cast = {i: vote for i, (_, vote) in known_votes.items() if len(vote.confidence) == n}
                estimates = count_by_category(references, cast, target.size)
                if (estimate := estimates.get(row["category_id"])) is not None:
                    category = categories[row["category_id"]]
                    write_estimate(self.project, instance_id, category, target.size, estimate, NO_STAMP)
                    touched.add(target.photo_id)
                    photos.append(target.photo_id)
        return photos


def _without_pixels(photo: EncodedPhoto) -> EncodedPhoto:
    """A photo of the same size, all black, that takes no memory."""
    return EncodedPhoto(np.broadcast_to(np.uint8(0), photo.pixels.shape), [], photo.name)

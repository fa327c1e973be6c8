"""Predictions of several references for one photo → the best supported one of each keypoint."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import expit, logit

from transformatcher.data.coco_pairs import mirrored_names
from transformatcher.inference.cues import pooled_similarity
from transformatcher.inference.encoded_photo import EncodedPhoto
from transformatcher.inference.matched_pair import MatchedPoints
from transformatcher.inference.matcher import Matcher

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

AGREEMENT_RADIUS = 0.1  # of the longer side of a photo: predictions this near to each other support each other
SAME_PLACE_RADIUS = 0.05  # of the longer side of a photo: two keypoints this near to each other lie at one place

# Confidence of a vote, see vote_confidence. docs/make/vote_confidence.py fits the two weights; the rest was tried.
SHARE_WEIGHT = 0.57
RIVAL_WEIGHT = 1.12
USUAL_PART = -0.6  # logarithm of a keypoint's part of the votes for its place, if no keypoint is at a wrong one
SMOOTHING = 0.05  # added to votes that are divided by each other


@dataclass(frozen=True)
class KeypointEstimate:
    """The keypoints of one category on one photo."""

    kps_px: Float[np.ndarray, "n 2"]
    confidence: Float[np.ndarray, " n"]  # see vote_confidence; 0 where no reference shows the keypoint
    chosen: Int[np.ndarray, " n"]  # index of the reference that each keypoint comes from
    mirrored: Collection[int] = ()  # indices of the references that were matched mirrored
    same_kind: float | None = None  # probability that the photo shows what the references show, by the best of them


@dataclass(frozen=True)
class Vote:
    """What one reference says about the keypoints of its category on one photo."""

    kps_px: Float[np.ndarray, "n 2"]
    confidence: Float[np.ndarray, " n"]  # 0 where the reference does not show the keypoint
    mirrored: bool = False  # the reference was matched mirrored, and left and right exchanged
    same_kind: float | None = None  # probability that the photo shows what the reference shows


def cast_votes(
    matcher: Matcher,
    reference: EncodedPhoto,
    kps_px: Float[np.ndarray, "n 2"],
    visible: Bool[np.ndarray, " n"],
    names: Sequence[str],
    photos: Sequence[EncodedPhoto],
) -> list[Vote]:
    """Match the keypoints of a reference with photos, in one batch. Where a match is mirrored, sides are exchanged.

    Args:
        matcher: finds the points.
        reference: a photo with keypoints.
        kps_px: its keypoints.
        visible: those that it shows.
        names: of the keypoints.
        photos: to be voted on.
    """
    found = matcher.match_many(reference, photos, kps_px[visible], batch=max(1, len(photos)))
    return [read_vote(matches, visible, names) for matches in found]


def read_vote(matches: MatchedPoints, visible: Bool[np.ndarray, " n"], names: Sequence[str]) -> Vote:
    """Matches of the visible ones of n keypoints → a vote. If they are mirrored, sides are exchanged."""
    by_keypoint = {int(k): i for i, k in enumerate(np.flatnonzero(visible))}
    if matches.mirrored:
        by_keypoint = exchange_sides(by_keypoint, dict(enumerate(names)))
    kps_px, confidence = np.zeros((len(names), 2)), np.zeros(len(names))
    keypoints, indices = list(by_keypoint), list(by_keypoint.values())
    kps_px[keypoints], confidence[keypoints] = matches.keypoints1[indices], matches.confidence[indices]
    return Vote(kps_px, confidence, matches.mirrored, matches.same_kind)


def count_votes(votes: Mapping[int, Vote], side_px: int) -> KeypointEstimate:
    """The votes on one photo → the best supported position of each keypoint; see :func:`vote_keypoints`.

    Args:
        votes: at least one, by the index of the reference.
        side_px: the longer side of the photo.
    """
    rows = np.array(list(votes))
    cast = list(votes.values())
    estimate = vote_keypoints(np.stack([v.kps_px for v in cast]), np.stack([v.confidence for v in cast]), side_px)
    return replace(
        estimate,
        chosen=rows[estimate.chosen],
        mirrored=[row for row, vote in votes.items() if vote.mirrored],
        same_kind=max((vote.same_kind for vote in cast if vote.same_kind is not None), default=None),
    )


def exchange_sides(predictions: Mapping[Key, Value], names: Mapping[Key, str]) -> dict[Key, Value]:
    """What a mirrored match found, by keypoint of the source → by keypoint of the target: left ↔ right.

    Where two cars face opposite ways, the left front wheel of one is matched with the right front wheel of the other.
    A name without a side stays as it is. A name whose mirror twin is missing has no prediction.

    Args:
        predictions: one for each keypoint that the source shows.
        names: of all keypoints.

    Example:
        >>> exchange_sides({0: "here", 2: "there"}, {0: "left eye", 1: "right eye", 2: "nose", 3: "left ear"})
        {1: 'here', 2: 'there'}
    """
    keys = list(names)
    twins = {key: keys[row] for key, row in zip(keys, mirrored_names(tuple(names.values())), strict=True) if row >= 0}
    return {key: predictions[twin] for key, twin in twins.items() if twin in predictions}


def choose_voters(
    references: Sequence[EncodedPhoto], shown: Bool[np.ndarray, "r n"], photo: EncodedPhoto, most: int
) -> set[int]:
    """As :func:`rank_voters`, by the mean features of r references and of the photo to be voted on."""
    if most >= len(references):
        return set(range(len(references)))
    similarity = [float(pooled_similarity(reference.features, photo.features).sum()) for reference in references]
    return rank_voters(np.array(similarity), shown, most)


def rank_voters(similarity: Float[np.ndarray, " r"], shown: Bool[np.ndarray, "r n"], most: int) -> set[int]:
    """Indices of the references that vote on a photo: the ``most`` that look most like it.

    For a keypoint that none of these shows, the next one that shows it votes, too.

    Args:
        similarity: of each of r references with the photo.
        shown: the keypoints that each of them shows.
        most: number of references.
    """
    ranked = np.argsort(-similarity, kind="stable").tolist()
    voters, known = set(ranked[:most]), shown[ranked[:most]].any(axis=0)
    for index in ranked[most:]:
        if (shown[index] & ~known).any():
            voters.add(index)
            known |= shown[index]
    return voters


def vote_keypoints(
    kps_px: Float[np.ndarray, "r n 2"], confidence: Float[np.ndarray, "r n"], side_px: int
) -> KeypointEstimate:
    """Choose one of the predictions of r references for each of n keypoints.

    Every reference votes for its own prediction and, with a weight that falls off as a Gaussian of the distance, for
    those near it. Its vote counts its confidence in the keypoint times its mean confidence in this photo. So of two
    references the more confident one wins, and among more, two that agree beat one that does not.

    Args:
        kps_px: the predictions of each reference.
        confidence: of each prediction; 0 where a reference does not show the keypoint.
        side_px: the longer side of the photo.

    Example:
        >>> kps_px = np.array([[[10.0, 10.0]], [[12.0, 10.0]], [[80.0, 80.0]]])  # the first two agree
        >>> vote_keypoints(kps_px, np.array([[0.5], [0.4], [0.6]]), side_px=100).kps_px
        array([[10., 10.]])
    """
    votes = _votes(confidence)
    distance = np.linalg.norm(kps_px[:, None] - kps_px[None], axis=3)  # (r, r, n)
    support = (np.exp(-((distance / (AGREEMENT_RADIUS * side_px)) ** 2) / 2) * votes[None]).sum(axis=1)  # (r, n)
    chosen = np.where(confidence > 0, support, -1.0).argmax(axis=0)  # (n,)
    places = kps_px[chosen, np.arange(len(chosen))]
    return KeypointEstimate(places, vote_confidence(kps_px, confidence, places, side_px), chosen)


def vote_confidence(
    kps_px: Float[np.ndarray, "r n 2"],
    confidence: Float[np.ndarray, "r n"],
    places: Float[np.ndarray, "n 2"],
    side_px: int,
) -> Float[np.ndarray, " n"]:
    """The probability that each keypoint is on the photo, at the place that was chosen for it.

    It is the mean confidence of the references that show the keypoint, corrected by what all of them say: a keypoint
    that few references show is often not on the photo either, and of two keypoints at one place, one is wrong. With a
    single reference it is that one's confidence.

    Args:
        kps_px, confidence, side_px: as for :func:`vote_keypoints`.
        places: the chosen ones.
    """
    if len(confidence) == 1:
        return confidence[0]
    mean, share, rival = vote_cues(kps_px, confidence, places, side_px)
    return np.where((confidence > 0).any(axis=0), expit(mean + SHARE_WEIGHT * share + RIVAL_WEIGHT * rival), 0.0)


def vote_cues(
    kps_px: Float[np.ndarray, "r n 2"],
    confidence: Float[np.ndarray, "r n"],
    places: Float[np.ndarray, "n 2"],
    side_px: int,
) -> Float[np.ndarray, "3 n"]:
    """What the confidence of a vote is computed from; see :func:`vote_confidence`.

    Returns:
        Three rows. The logit of the mean confidence. The logit of the smoothed share of references that show the
        keypoint, less that of a single reference. The logarithm of the keypoint's part of all votes near its place,
        less its usual value, times 1 - 1/r. For a single reference the last two are 0.
    """
    r, shown = len(confidence), (confidence > 0).sum(axis=0)
    share = logit((shown + 0.5) / (r + 1)) - logit(0.75)
    distance = np.linalg.norm(kps_px[:, None] - places[None, :, None], axis=3)  # (r, place, keypoint)
    near = np.exp(-((distance / (SAME_PLACE_RADIUS * side_px)) ** 2) / 2)
    votes_at = (near * _votes(confidence)[:, None]).sum(axis=0)  # (place, keypoint)
    own = np.diagonal(votes_at)
    rival = (votes_at - np.diagflat(own)).max(axis=1, initial=0.0)
    part = (own + SMOOTHING) / (own + rival + SMOOTHING)
    return np.stack([logit(confidence.sum(axis=0) / shown.clip(1)), share, (1 - 1 / r) * (np.log(part) - USUAL_PART)])


def _votes(confidence: Float[np.ndarray, "r n"]) -> Float[np.ndarray, "r n"]:
    """What the vote of each reference counts: its confidence in a keypoint times its mean confidence in the photo."""
    trust = confidence.sum(axis=1) / (confidence > 0).sum(axis=1).clip(1)  # (r,)
    return confidence * trust[:, None]

"""A session's points and pins → predicted positions, heat maps and a warp on every target."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from transformatcher.errors import InputError
from transformatcher.inference.matched_pair import MatchedPair
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.propagate_voting import vote_keypoints
from transformatcher.schema import Size
from transformatcher.viz.warp import thin_plate_warp
from transformatcher.web.session import XY, Session, SessionPhoto

MIN_WARP_POINTS = 3
MATCHES_SMOOTHING = 0.01  # of the thin-plate spline: matches are noisy, points set by the user are not

ControlPoints = Literal["auto", "points", "matches"]
HeatMap = UInt8[np.ndarray, "h w"]  # over the target's feature grid; 255 at its maximum


@dataclass(frozen=True)
class PointPrediction:
    """The position of a point on a target."""

    xy: XY | None  # None: the user said that the point is not visible there
    confidence: float  # 0 to 1
    is_match: bool
    pinned: bool = False  # set by the user
    reference: str = ""  # id of the photo that the prediction was made from


class WarpedPhoto(NamedTuple):
    """The source warped onto a target."""

    pixels: UInt8[np.ndarray, "h w 3"]
    alpha: UInt8[np.ndarray, "h w"]  # 255 where the source covers the target, else 0
    control_points: str  # what the warp follows, such as "3 points"


# ---------------------------------------------------------------- which pairs to match


def missing_pairs(session: Session) -> dict[str, list[SessionPhoto]]:
    """Pairs still to be matched, as reference id → targets.

    The source is matched with every target. A target with pins is a reference, too: it is matched with each target
    where one of its points is not pinned.
    """
    missing: dict[str, list[SessionPhoto]] = {}
    for reference in session.photos:
        known = session.known_points(reference)
        for target in session.targets:
            useful = reference == session.source_id or any((point, target.id) not in session.pins for point in known)
            if useful and reference != target.id and (reference, target.id) not in session.pairs:
                missing.setdefault(reference, []).append(target)
    return missing


def match_missing(session: Session, matcher: Matcher) -> None:
    """Match the missing pairs. Slow; it takes the session's lock itself, but not while the network runs."""
    with session.lock:
        missing = missing_pairs(session)
        references = {reference: session.photos[reference] for reference in missing}
    for reference, targets in missing.items():
        encoded = [target.encoded for target in targets]
        for target, pair in zip(targets, matcher.pairs(references[reference].encoded, encoded), strict=True):
            with session.lock:
                if {reference, target.id} <= session.photos.keys():  # neither was removed meanwhile
                    session.pairs[reference, target.id] = pair


# ---------------------------------------------------------------- positions


def predict_points(session: Session) -> dict[int, dict[str, PointPrediction]]:
    """Point id → target id → prediction: the pin if there is one, else the vote of all references of that point."""
    candidates: dict[str, list[dict[int, PointPrediction]]] = {}
    for (reference, target_id), pair in session.pairs.items():
        known = {p: xy for p, xy in session.known_points(reference).items() if (p, target_id) not in session.pins}
        if known:
            predictions = _predict(pair, session.photos[reference], session.photos[target_id], list(known.values()))
            candidates.setdefault(target_id, []).append(dict(zip(known, predictions, strict=True)))
    by_point: dict[int, dict[str, PointPrediction]] = {point: {} for point in session.points}
    for target in session.targets:
        chosen = vote_predictions(candidates.get(target.id, []), target.size)
        for point in session.points:
            if (point, target.id) in session.pins:
                xy = session.pins[point, target.id]
                by_point[point][target.id] = PointPrediction(xy, 1.0, is_match=xy is not None, pinned=True)
            elif point in chosen:
                by_point[point][target.id] = chosen[point]
    return by_point


def vote_predictions(candidates: Iterable[Mapping[int, PointPrediction]], size: Size) -> dict[int, PointPrediction]:
    """The predictions of several references (each: point id → prediction) on a photo of ``size`` → one for each point.

    The vote is :func:`transformatcher.inference.propagate_voting.vote_keypoints`, as in the command.
    """
    references = [by_point for by_point in candidates if by_point]
    points = list(dict.fromkeys(point for by_point in references for point in by_point))
    kps_px, confidence = np.zeros((len(references), len(points), 2)), np.zeros((len(references), len(points)))
    for row, by_point in enumerate(references):
        for column, point in enumerate(points):
            if (prediction := by_point.get(point)) and prediction.xy is not None:
                kps_px[row, column] = prediction.xy
                confidence[row, column] = max(prediction.confidence, 1e-9)  # 0 means that a reference lacks the point
    chosen = vote_keypoints(kps_px, confidence, max(size)).chosen.tolist() if points else []
    return {point: references[row][point] for point, row in zip(points, chosen, strict=True)}


def predict_position(session: Session, xy: XY) -> dict[str, PointPrediction]:
    """Any position on the source → target id → prediction, for the targets that are matched."""
    source = session.source
    source.check_inside(xy)
    return {
        target.id: _predict(pair, source, target, [xy])[0]
        for target in session.targets
        if (pair := session.pairs.get((source.id, target.id)))
    }


def _predict(
    pair: MatchedPair, reference: SessionPhoto, target: SessionPhoto, positions: Sequence[XY]
) -> list[PointPrediction]:
    matches = pair.points(reference.to_stored_px(_to_array(positions)))
    predicted = target.to_original_px(matches.keypoints1).tolist()
    return [
        PointPrediction(XY(*xy), float(confidence), is_match=bool(is_match), reference=reference.id)
        for xy, confidence, is_match in zip(predicted, matches.confidence, matches.is_match, strict=True)
    ]


# ---------------------------------------------------------------- heat maps


def position_heatmaps(session: Session, xy: XY) -> dict[str, HeatMap]:
    """Target id → heat map of a position on the source."""
    return _heatmaps(session, {target.id: (session.source.id, xy) for target in session.targets})


def point_heatmaps(session: Session, point_id: int) -> dict[str, HeatMap]:
    """Target id → heat map of a point, from the reference that its prediction was made from."""
    point, origins = session.point(point_id), {}
    for target, prediction in predict_points(session)[point_id].items():
        reference = prediction.reference or session.source.id
        origins[target] = (reference, session.known_points(reference).get(point_id, point.xy))
    return _heatmaps(session, origins)


def _heatmaps(session: Session, origins: Mapping[str, tuple[str, XY]]) -> dict[str, HeatMap]:
    """For each target, the heat map of a position on a reference."""
    maps = {}
    for target, (reference_id, xy) in origins.items():
        if pair := session.pairs.get((reference_id, target)):
            reference = session.photos[reference_id]
            (position,) = reference.to_stored_px(_to_array([reference.check_inside(xy)]))
            heatmap = pair.heatmap(position)
            maps[target] = (255 * heatmap / heatmap.max()).round().astype(np.uint8)
    return maps


# ---------------------------------------------------------------- warp


def warp_source(session: Session, photo_id: str, control_points: ControlPoints) -> WarpedPhoto:
    """Warp the source onto a target. Slow; it takes the session's lock itself, but not while it warps.

    Args:
        session: with a source and the target.
        photo_id: the target.
        control_points: what the thin-plate spline goes through: "points" (the user's), "matches" (all reliable ones),
            or "auto" (the points if there are at least three, else the matches).
    """
    with session.lock:
        source, target = session.source, session.target(photo_id)
        points0, points1 = _point_pairs(session, target)
        pair = session.pairs.get((source.id, target.id))
    if control_points == "points" or (control_points == "auto" and len(points0) >= MIN_WARP_POINTS):
        points0, points1 = source.to_stored_px(points0), target.to_stored_px(points1)
        description, smoothing = f"{len(points0)} points", 0.0
    else:
        if pair is None:
            raise InputError(f"{target.name} is not matched yet; wait a moment.")
        matches = pair.consistent()
        points0, points1 = matches.keypoints0[matches.reliable], matches.keypoints1[matches.reliable]
        description, smoothing = f"{len(points0)} reliable matches", MATCHES_SMOOTHING
    if len(points0) < MIN_WARP_POINTS:
        raise InputError(
            f"{target.name} has {description}; a warp needs at least {MIN_WARP_POINTS} that are not on one line."
        )
    pixels, mask = thin_plate_warp(
        source.encoded.pixels, points0, points1, target.encoded.size, smoothing=smoothing
    )  # fmt: skip
    return WarpedPhoto(pixels, mask.astype(np.uint8) * 255, description)


def _point_pairs(session: Session, target: SessionPhoto) -> tuple[Float[np.ndarray, "n 2"], Float[np.ndarray, "n 2"]]:
    """The points visible on a target: their positions on the source and on the target, in pixels of the originals."""
    by_point = predict_points(session)
    on_target = {p: by_target[target.id] for p, by_target in by_point.items() if target.id in by_target}
    visible = {p: found.xy for p, found in on_target.items() if found.is_match and found.xy is not None}
    return _to_array([session.points[p].xy for p in visible]), _to_array(list(visible.values()))


def _to_array(positions: Sequence[XY]) -> Float[np.ndarray, "n 2"]:
    return np.array(positions, dtype=np.float64).reshape(-1, 2)

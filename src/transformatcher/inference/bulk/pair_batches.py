"""Listed pairs → matches: matched in batches, errors recorded pair by pair."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transformatcher.coords import norm_to_px
from transformatcher.data.pairs import point_array, stack_points
from transformatcher.data.prefetch import batched
from transformatcher.errors import InputError
from transformatcher.inference.bulk.pair_list import ListedPair
from transformatcher.inference.calibration import is_match
from transformatcher.inference.encoded_photo import EncodedPhoto, View, stack_features
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.passes import FineMatches, QueryPoints
from transformatcher.inference.photo_encoder import MAX_ERROR_LENGTH, CachedFeatures, Encoder
from transformatcher.inference.photos import check_points
from transformatcher.inference.readout import PointMatches, TwoWayFlow, read_grid, read_points

BATCHES_AHEAD = 2  # whose images are decoded while one batch is matched


@dataclass(frozen=True)
class PairMatches:
    """The matches of one pair, in pixels of the original images; a row of the file for each point."""

    pair: ListedPair
    src_px: Float[np.ndarray, "n 2"] = field(default_factory=lambda: np.zeros((0, 2)))
    trg_px: Float[np.ndarray, "n 2"] = field(default_factory=lambda: np.zeros((0, 2)))
    confidence: Float[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0))
    is_match: Bool[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    same_kind: float | None = None  # see MatchedPoints
    mirrored: bool | None = None
    error: str = ""


@dataclass(frozen=True)
class _CheckedPair:
    """A pair whose images can be read and whose points lie inside the source."""

    pair: ListedPair
    src: CachedFeatures
    trg: CachedFeatures
    src_photo: EncodedPhoto
    trg_photo: EncodedPhoto
    points: Float[np.ndarray, "n 2"] | None  # in pixels of the source; None for the cells of the grid


def match_shard(encoder: Encoder, pairs: Sequence[ListedPair], batch: int) -> Iterator[list[PairMatches]]:
    """Match pairs in batches, those of one source together. A pair that cannot be matched gets an error message."""
    first = {pair.src: number for number, pair in reversed(list(enumerate(pairs)))}
    order = sorted(pairs, key=lambda pair: first[pair.src])  # stable: otherwise in the order of the list
    batches = list(batched(order, batch))
    for number, chunk in enumerate(batches):
        for upcoming in batches[number : number + 1 + BATCHES_AHEAD]:
            encoder.prefetch(_images(upcoming))
        yield _match_batch(encoder, chunk)


def _images(pairs: Iterable[ListedPair]) -> list[str]:
    return [name for pair in pairs if not pair.error for name in (pair.src, pair.trg)]


@torch.inference_mode()
def _match_batch(encoder: Encoder, pairs: Sequence[ListedPair]) -> list[PairMatches]:
    features = encoder.encode(_images(pairs))
    results: list[PairMatches] = []
    checked: list[_CheckedPair] = []
    for pair in pairs:
        try:
            checked.append(_check(pair, features))
        except InputError as error:
            results.append(PairMatches(pair, error=str(error)[:MAX_ERROR_LENGTH]))
    if not checked:
        return results
    read = _read_once if encoder.matcher.coarse_to_fine is None else _read_passes
    calibrated = encoder.matcher.calibrated
    for group in ([one for one in checked if one.points is None], [one for one in checked if one.points is not None]):
        if group:
            matches, kept = read(encoder.matcher, group)
            results += _in_pixels(group, matches, kept, calibrated=calibrated)
    encoder.matcher.recent_sources.keep(*_photos(checked))  # pairs of one source follow each other
    return results


_Read = tuple[PointMatches, list[Bool[np.ndarray, " n"]]]  # matches, and which of them count


def _read_once(matcher: Matcher, pairs: Sequence[_CheckedPair]) -> _Read:
    """Matches of whole photos, all with points or all without."""
    model, calibration = matcher.network, matcher.calibration.one_pass
    src, trg = (stack_features([View(photo) for photo in side]) for side in _photos(pairs))
    flows = TwoWayFlow.of(model.readout, model.refine(src, trg))
    if pairs[0].points is None:
        cells = read_grid(flows, calibration)
        return cells, [flags.cpu().numpy() for flags in cells.cycle_consistent]
    src_norm, own = _points(pairs)
    matches = read_points(flows, src_norm.to(flows.refined.device), calibration, transfer=model.transfer)
    return matches, list(own.numpy())


def _read_passes(matcher: Matcher, pairs: Sequence[_CheckedPair]) -> _Read:
    """The same for a model that matches in several passes."""
    coarse_to_fine = matcher.coarse_to_fine
    assert coarse_to_fine is not None
    src, trg = _photos(pairs)
    if pairs[0].points is None:
        matches, kept = coarse_to_fine.run(src, trg).read_object()
        return matches, list(kept.cpu().numpy())
    src_norm, own = _points(pairs)
    return coarse_to_fine.match(src, trg, QueryPoints(src_norm, own).to(matcher.device)), list(own.numpy())


def _photos(pairs: Sequence[_CheckedPair]) -> tuple[list[EncodedPhoto], list[EncodedPhoto]]:
    return [item.src_photo for item in pairs], [item.trg_photo for item in pairs]


def _points(pairs: Sequence[_CheckedPair]) -> tuple[Float[Tensor, "b n 2"], Bool[Tensor, "b n"]]:
    """The points of all pairs in [-1, 1]², and which are a pair's own; the others fill up the batch."""
    points = [item.points for item in pairs if item.points is not None]
    src_norm = stack_points(points, [item.src.size for item in pairs])
    own = torch.arange(src_norm.shape[1])[None] < torch.tensor([[len(one)] for one in points])
    return src_norm, own


def _in_pixels(
    pairs: Sequence[_CheckedPair],
    matches: PointMatches,
    kept: Sequence[Bool[np.ndarray, " n"]],
    *,
    calibrated: bool,
) -> list[PairMatches]:
    """The ``kept`` points of each pair of a batch."""
    same_kind: Sequence[float | None] = [None] * len(pairs)
    mirrored: Sequence[bool | None] = [None] * len(pairs)
    if isinstance(matches, FineMatches):
        same_kind = same_kind if matches.same_kind is None else matches.same_kind.tolist()
        mirrored = mirrored if matches.mirrored is None else matches.mirrored.tolist()
    src_norm, trg_norm = (points.double().cpu().numpy() for points in (matches.src_norm, matches.trg_norm))
    confidence = matches.confidence.cpu().numpy()
    return [
        PairMatches(
            item.pair,
            src_px=norm_to_px(src_norm[row, keep], item.src.size) if item.points is None else item.points,
            trg_px=norm_to_px(trg_norm[row, keep], item.trg.size),
            confidence=confidence[row, keep],
            is_match=is_match(confidence[row, keep], calibrated=calibrated),
            same_kind=same_kind[row],
            mirrored=mirrored[row],
        )
        for row, (item, keep) in enumerate(zip(pairs, kept, strict=True))
    ]


def _check(pair: ListedPair, features: Mapping[str, CachedFeatures]) -> _CheckedPair:
    """The pair with its features and points; an InputError if any of them cannot be used."""
    error = pair.error or features[pair.src].error or features[pair.trg].error
    if error:
        raise InputError(error)
    src, trg, points = features[pair.src], features[pair.trg], None
    assert src.photo is not None
    assert trg.photo is not None
    if pair.keypoints is not None:
        points = check_points(point_array(pair.keypoints, "keypoints"), src.size, "keypoints")
    return _CheckedPair(pair, src, trg, src.photo, trg.photo, points)

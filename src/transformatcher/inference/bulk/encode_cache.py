"""Listed pairs → matches: each image looked at once, batches of pairs, faults told and passed over."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transformatcher.coords import grid_norm, norm_to_px
from transformatcher.data.pairs import point_array, stack_points
from transformatcher.errors import InputError
from transformatcher.images import to_tensor
from transformatcher.inference.bulk.pair_list import ListedPair, PairList
from transformatcher.inference.matcher import MATCH_THRESHOLD, Matcher, check_points, to_pixels
from transformatcher.models.flow import cycle_error, swap_source_target
from transformatcher.models.sampler import bilinear_sample
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.schema import Flow, Size

MAX_ERROR_LENGTH = 500  # characters of an error that are kept


# ---------------------------------------------------------------- images, each looked at once


@dataclass(frozen=True)
class NetworkInput:
    """An image as the network takes it."""

    pixels: Float[Tensor, "3 h w"]
    size: Size  # of the original


@dataclass(frozen=True)
class CachedFeatures:
    """An image's features, or why there are none."""

    size: Size = (0, 0)
    features: tuple[Tensor, ...] = ()  # (1, c, h, w) each
    fault: str = ""

    @property
    def bytes(self) -> int:
        """What keeping it costs, nearly."""
        return 1000 + len(self.fault) + sum(f.numel() * f.element_size() for f in self.features)


@dataclass
class FeatureCache:
    """The features of the images used last, up to so many bytes."""

    limit: int
    kept: OrderedDict[str, CachedFeatures] = field(default_factory=OrderedDict)
    bytes: int = 0
    encoded: int = 0  # images whose features were computed

    def get(self, name: str) -> CachedFeatures | None:
        """What is kept of an image, which now counts as just used."""
        if name in self.kept:
            self.kept.move_to_end(name)
        return self.kept.get(name)

    def put(self, name: str, seen: CachedFeatures) -> None:
        """Keep it, and let go of those that were used longest ago."""
        self.kept[name] = seen
        self.bytes += seen.bytes
        while self.bytes > self.limit and len(self.kept) > 1:
            _, old = self.kept.popitem(last=False)
            self.bytes -= old.bytes


def _decode(path: Path, size: Size) -> NetworkInput | str:
    """An image, or what is wrong with it: one bad file among millions must not end the work."""
    try:
        pixels = to_pixels(path)
        return NetworkInput(to_tensor(pixels, size), (pixels.shape[0], pixels.shape[1]))
    except (InputError, MemoryError, OSError) as error:
        return (str(error) or f"{path}: too large for this machine's memory")[:MAX_ERROR_LENGTH]


class Encoder:
    """Names of images → their features; threads decode what comes next while the network is busy."""

    def __init__(self, matcher: Matcher, pairs: PairList, cache: FeatureCache, pool: ThreadPoolExecutor) -> None:
        self.matcher, self.list, self.cache, self.pool = matcher, pairs, cache, pool
        self.coming: dict[str, Future[NetworkInput | str]] = {}

    def expect(self, names: Iterable[str]) -> None:
        """Begin to decode those that are not there."""
        for name in names:
            if name not in self.cache.kept and name not in self.coming:
                path = self.list.image(name)
                self.coming[name] = self.pool.submit(_decode, path, self.matcher.config.image_size)

    def see(self, names: Sequence[str]) -> dict[str, CachedFeatures]:
        """All of them, those that are new in one go through the network."""
        found = {name: seen for name in names if (seen := self.cache.get(name)) is not None}
        new = [name for name in dict.fromkeys(names) if name not in found]
        self.expect(new)
        decoded = {name: self.coming.pop(name).result() for name in new}
        good = {name: image for name, image in decoded.items() if isinstance(image, NetworkInput)}
        if good:
            images = torch.stack([image.pixels for image in good.values()]).to(self.matcher.device)
            features = self.matcher.model.encode(images)
            for row, (name, image) in enumerate(good.items()):
                # A copy: a view would keep the features of all.
                found[name] = CachedFeatures(image.size, tuple(f[row : row + 1].clone() for f in features))
            self.cache.encoded += len(good)
        found |= {name: CachedFeatures(fault=fault) for name, fault in decoded.items() if isinstance(fault, str)}
        for name in new:
            self.cache.put(name, found[name])
        return found


# ---------------------------------------------------------------- matching


@dataclass(frozen=True)
class PairMatches:
    """What was found for one pair: a row of the file for each point, in pixels of the originals."""

    pair: ListedPair
    src_px: Float[np.ndarray, "n 2"] = field(default_factory=lambda: np.zeros((0, 2)))
    trg_px: Float[np.ndarray, "n 2"] = field(default_factory=lambda: np.zeros((0, 2)))
    confidence: Float[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0))
    is_match: Bool[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    fault: str = ""


def match_part(encoder: Encoder, pairs: Sequence[ListedPair], batch: int) -> Iterator[list[PairMatches]]:
    """Match pairs in batches, those of one source together; what is wrong with one is told, and the others go on."""
    first = {pair.src: place for place, pair in reversed(list(enumerate(pairs)))}
    order = sorted(pairs, key=lambda pair: first[pair.src])  # stable: in the list's own order otherwise
    batches = [order[start : start + batch] for start in range(0, len(order), batch)]
    for number, chunk in enumerate(batches):
        for ahead in batches[number : number + 3]:
            encoder.expect(name for pair in ahead if not pair.fault for name in (pair.src, pair.trg))
        yield _match_batch(encoder, chunk)


@torch.inference_mode()
def _match_batch(encoder: Encoder, pairs: Sequence[ListedPair]) -> list[PairMatches]:
    model, calibration = encoder.matcher.model, encoder.matcher.calibration
    seen = encoder.see([name for pair in pairs if not pair.fault for name in (pair.src, pair.trg)])
    found: list[PairMatches] = []
    good: list[tuple[ListedPair, Float[np.ndarray, "n 2"] | None]] = []
    for pair in pairs:
        try:
            good.append((pair, _checked(pair, seen)))
        except InputError as error:
            found.append(PairMatches(pair, fault=str(error)[:MAX_ERROR_LENGTH]))
    if not good:
        return found
    src, trg = ([seen[getattr(pair, side)] for pair, _ in good] for side in ("src", "trg"))
    refined = model.refine(_stacked(src), _stacked(trg))
    forth, back = model.readout(refined), model.readout(swap_source_target(refined))
    grid: Size = (refined.shape[1], refined.shape[2])
    cells = grid_norm(grid, like=refined).flatten(0, 1).double().cpu().numpy()
    sizes = [image.size for image in src]
    points = [norm_to_px(cells, size) if own is None else own for (_, own), size in zip(good, sizes, strict=True)]
    src_norm = stack_points(points, sizes).to(refined.device)
    trg_norm = _carried(model, forth, src_norm, [own is not None for _, own in good])
    drifts = cycle_error(back, src_norm, trg_norm).double().cpu().numpy()
    peaks = bilinear_sample(forth.peak[..., None], src_norm)[..., 0].double().cpu().numpy()
    ends = trg_norm.double().cpu().numpy()
    for row, (pair, own) in enumerate(good):
        n = len(points[row])
        kept = drifts[row, :n] < (np.inf if own is not None else 2 / (max(grid) - 1))  # back within a cell of itself
        confidence = peaks[row, :n][kept]
        if calibration is not None:
            confidence = calibration(confidence, drifts[row, :n][kept])
        found.append(
            PairMatches(
                pair,
                src_px=points[row][kept],
                trg_px=norm_to_px(ends[row, :n][kept], trg[row].size),
                confidence=confidence,
                is_match=confidence >= (MATCH_THRESHOLD if calibration is not None else -np.inf),
            )
        )
    return found


def _carried(
    model: TransforMatcher, flow: Flow, src_norm: Float[Tensor, "b n 2"], named: Sequence[bool]
) -> Float[Tensor, "b n 2"]:
    """Points that a list names are carried by the model's own sampler; cells of the grid, as in predictor.py, not."""
    if all(named):
        return model.transfer(flow, src_norm)
    cells = bilinear_sample(flow.trg_norm, src_norm)
    if not any(named):
        return cells
    return torch.where(torch.tensor(named, device=cells.device)[:, None, None], model.transfer(flow, src_norm), cells)


def _checked(pair: ListedPair, seen: Mapping[str, CachedFeatures]) -> Float[np.ndarray, "n 2"] | None:
    """The pair's own points, if it has any; an error if there is anything wrong with it."""
    fault = pair.fault or seen[pair.src].fault or seen[pair.trg].fault
    if fault:
        raise InputError(fault)
    if pair.keypoints is None:
        return None
    return check_points(point_array(pair.keypoints, "keypoints"), seen[pair.src].size, "keypoints")


def _stacked(images: Sequence[CachedFeatures]) -> list[Tensor]:
    return [torch.cat(layer) for layer in zip(*(image.features for image in images), strict=True)]

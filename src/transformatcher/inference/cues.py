"""What passes over a pair show → numbers that tell right matches from wrong ones, and one kind of thing from two."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from transformatcher.models.correlation import finest_grid
from transformatcher.models.flow import gaussian_at_peak
from transformatcher.models.transformatcher import Features

MIN_PEAK = 1e-6  # smaller values are raised to these before their logarithm is taken
MIN_DISTANCE = 0.02  # in half sides of a photo or crop: a fraction of a cell, below which differences mean nothing
RUNNER_UP = 8.0  # cells of the upsampled grid: another peak is at least this far away

POINT_CUES = (
    "log_peak", "gap", "log_cycle", "log_first_cycle", "log_shift", "log_moved", "similarity", "contrast",
    "log_cycle_together",
)  # fmt: skip
PAIR_CUES = (
    "pair_log_peak", "pair_gap", "pair_log_cycle", "pair_similarity", "pooled_fine", "pooled_deep", "log_enlargement",
    "matched_once",
)  # fmt: skip


@dataclass(frozen=True)
class PointCues:
    """What tells whether a match is right; the last axis of ``values`` is named by ``POINT_CUES``.

    ``log_peak``: probability of the best target cell. ``gap``: its score above that of the best cell elsewhere.
    ``log_cycle``, ``log_first_cycle``: cycle error of the last and of the first pass, in half sides of the source crop.
    ``log_shift``: distance between the answers of both passes, in half sides of the target crop. ``log_moved``: how far
    the agreement with other points moved the answer, in the same unit. ``similarity``: of the features at both points.
    ``contrast``: that similarity above the mean over all target cells, in their standard deviations.
    ``log_cycle_together``: the mean of ``log_cycle`` over the points that are asked for together.
    """

    values: Float[Tensor, "b n 9"]

    @classmethod
    def of(
        cls,
        *,
        peak: Float[Tensor, "b n"],
        gap: Float[Tensor, "b n"],
        cycle: Float[Tensor, "b n"],
        first_cycle: Float[Tensor, "b n"],
        shift: Float[Tensor, "b n"],
        moved: Float[Tensor, "b n"],
        similarity: Float[Tensor, "b n"],
        contrast: Float[Tensor, "b n"],
        together: Bool[Tensor, "b n"] | None = None,
    ) -> "PointCues":
        """Take logarithms where needed; ``together`` are the points that are asked for together, None if none are."""
        distances = [value.double().clamp(min=MIN_DISTANCE).log() for value in (cycle, first_cycle, shift, moved)]
        log_peak = peak.double().clamp(min=MIN_PEAK).log()
        mean = distances[0]
        if together is not None:
            count = together.sum(dim=1, keepdim=True).clamp(min=1)
            mean = torch.where(together, (mean * together).sum(dim=1, keepdim=True) / count, mean)
        values = [log_peak, gap.double(), *distances, similarity.double(), contrast.double(), mean]
        return cls(torch.stack(values, dim=-1))

    @classmethod
    def joined(cls, parts: "Sequence[PointCues]") -> "PointCues":
        """Those of several lists of points of the same pairs."""
        return cls(torch.cat([part.values for part in parts], dim=1))


@dataclass(frozen=True)
class PairCues:
    """What a pair as a whole shows; the last axis is named by ``PAIR_CUES``.

    The first four are means over points of the object, the next two are those of :func:`pooled_similarity`.
    ``log_enlargement``: of the last crops. ``matched_once``: 1 where crops would enlarge the pair too little, else 0.
    """

    values: Float[Tensor, "b 8"]

    @classmethod
    def of(cls, points: PointCues, pooled: Float[Tensor, "b 2"], enlargement: Float[Tensor, " b"]) -> "PairCues":
        """Means over points of the object, and what is known of the pair itself."""
        means = points.values.mean(dim=1)  # (b, 9)
        chosen = means[:, [POINT_CUES.index(name.removeprefix("pair_")) for name in PAIR_CUES[:4]]]
        crops = torch.stack([enlargement.log(), (enlargement == 1).to(enlargement)], dim=1)
        return cls(torch.cat([chosen, pooled.double(), crops.double()], dim=1))


def runner_up_gap(scores: Float[Tensor, "b n h w"]) -> Float[Tensor, "b n"]:
    """How far the best score lies above the best one at least ``RUNNER_UP`` cells away from it."""
    near = gaussian_at_peak(scores[:, :, None], RUNNER_UP / 2)[:, :, 0] > torch.tensor(-2.0).exp()  # within 2 σ
    elsewhere = torch.where(near, scores.new_tensor(-torch.inf), scores).amax(dim=(2, 3))
    gap = scores.amax(dim=(2, 3)) - elsewhere
    return torch.where(elsewhere.isinf(), torch.zeros_like(gap), gap)


def pooled_features(features: Features) -> list[Float[Tensor, "b _"]]:
    """The mean features of images in two layers: the deepest with the finest grid; the deepest."""
    grid = finest_grid(features)
    fine = max(layer for layer, feature in enumerate(features) if tuple(feature.shape[-2:]) == grid)
    return [features[layer].float().mean(dim=(2, 3)) for layer in (fine, len(features) - 1)]


def pooled_similarity(src: Features, trg: Features) -> Float[Tensor, "b 2"]:
    """Cosine similarity of both images' :func:`pooled_features`."""
    pooled = zip(pooled_features(src), pooled_features(trg), strict=True)
    return torch.stack([F.cosine_similarity(a, b) for a, b in pooled], dim=1)

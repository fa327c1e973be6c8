"""Passes over a batch of pairs → matches of any points, flow and heat maps, in the frame of the whole photos.

The scores of all passes are added on the grid of the last target crop: whole photos show the surroundings, crops show
detail. Every refined map here is in the frame of photos that are not mirrored, whatever the network was shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transformatcher.config import CoarseToFineConfig
from transformatcher.coords import grid_norm
from transformatcher.inference.agreement import agreement_prior
from transformatcher.inference.calibration import FineCalibration
from transformatcher.inference.crops import CropFrame, enlargement
from transformatcher.inference.cues import PairCues, PointCues, runner_up_gap
from transformatcher.inference.readout import PointMatches, TwoWayFlow
from transformatcher.models.flow import KernelSoftArgmax, match_distribution, swap_source_target
from transformatcher.models.sampler import bilinear_sample

EDGE = 0.01  # a crop ends at whole pixels, so a point on its border may lie this far outside it
CHUNK = 1024  # points that are read at a time
MIN_DEVIATION = 1e-3  # of similarities: smaller ones, as of blank photos, are rounding
MAX_HEATMAP = 4  # a heat map has at most this many times the cells of one pass along each side
MAX_AGREEING = 512  # points: more are read one by one, because agreement compares every point with every other


@dataclass(frozen=True)
class QueryPoints:
    """Points of the source that are asked for together, in each pair of a batch.

    ``norm`` is in [-1, 1]². Where pairs have different numbers of points, any values fill up the batch. ``given`` marks
    the points that crops and agreement are made from; each of the others is read by itself.
    """

    norm: Float[Tensor, "b n 2"]
    given: Bool[Tensor, "b n"]

    @classmethod
    def all(cls, norm: Float[Tensor, "b n 2"]) -> "QueryPoints":
        """Points of which none fills up the batch."""
        return cls(norm, torch.ones_like(norm[..., 0], dtype=torch.bool))

    def to(self, device: torch.device) -> "QueryPoints":
        """The same points on another device."""
        return QueryPoints(self.norm.to(device), self.given.to(device))

    def thinned(self, limit: int) -> "QueryPoints":
        """At most ``limit`` of each pair's given points, evenly spaced in their list."""
        if self.given.shape[1] <= limit:
            return self
        norm = self.norm.new_zeros(len(self.norm), limit, 2)
        given = self.given.new_zeros(len(self.given), limit)
        for row, mask in enumerate(self.given):
            own = mask.nonzero()[:, 0]
            if len(own) > limit:
                own = own[torch.linspace(0, len(own) - 1, limit, device=own.device).long()]
            norm[row, : len(own)], given[row, : len(own)] = self.norm[row, own], True
        return QueryPoints(norm, given)


@dataclass(frozen=True)
class Pass:
    """One pass over b pairs: the crops that were matched, and their scores."""

    src_frame: CropFrame
    trg_frame: CropFrame
    flows: TwoWayFlow
    similarity: Float[Tensor, "b hs ws ht wt"]  # weighted mean cosine of the features, before any refinement
    pooled: Float[Tensor, "b 2"]  # see pooled_similarity

    def rows(self, rows: slice | list[int]) -> "Pass":
        """Some pairs of the batch."""
        return Pass(
            self.src_frame.rows(rows), self.trg_frame.rows(rows), self.flows.rows(rows), self.similarity[rows],
            self.pooled[rows],
        )  # fmt: skip

    def mapped_back(self, readout: KernelSoftArgmax, trg_norm: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n 2"]:
        """Points of the whole target → where this pass maps them on the whole source."""
        back = readout.flow_at(swap_source_target(self.flows.refined), self.trg_frame.to_crop(trg_norm))
        return self.src_frame.to_whole(back)

    def similarity_at(
        self, src_norm: Float[Tensor, "b n 2"], trg_norm: Float[Tensor, "b n 2"]
    ) -> tuple[Float[Tensor, "b n"], Float[Tensor, "b n"]]:
        """The similarity of points of the whole source with points of the whole target.

        And how many standard deviations of the source point's similarity to all target cells it lies above their mean.
        """
        b, n = src_norm.shape[:2]
        ht, wt = self.similarity.shape[3:]
        maps = bilinear_sample(self.similarity.flatten(3), self.src_frame.to_crop(src_norm)).reshape(b * n, 1, ht, wt)
        at = self.trg_frame.to_crop(trg_norm).reshape(b * n, 1, 1, 2).to(maps)
        similarity = F.grid_sample(maps, at, padding_mode="border", align_corners=True).reshape(b, n)
        mean, deviation = (value.reshape(b, n) for value in (maps.mean(dim=(1, 2, 3)), maps.flatten(1).std(dim=1)))
        return similarity, (similarity - mean) / deviation.clamp(min=MIN_DEVIATION)

    def swapped(self) -> "Pass":
        """The same pass with source and target exchanged; nothing is computed again."""
        similarity = self.similarity.permute(0, 3, 4, 1, 2)
        return Pass(self.trg_frame, self.src_frame, self.flows.swapped(), similarity, self.pooled)


@dataclass(frozen=True)
class Reading:
    """Points read from one pass, with the scores of the passes before it added."""

    scores: Float[Tensor, "b n h w"]  # over the cells of the pass's target crop
    found: Float[Tensor, "b n 2"]  # in [-1, 1]² of the whole target
    alone: Float[Tensor, "b n 2"]  # the same without agreement
    peak: Float[Tensor, "b n"]  # probability of the best cell
    number: Int[Tensor, "b n"]  # of the pass

    def unless(self, outside: Bool[Tensor, "b n"], before: "Reading") -> "Reading":
        """These points, but those ``outside`` as they were read before."""
        return Reading(
            torch.where(outside[..., None, None], before.scores, self.scores),
            torch.where(outside[..., None], before.found, self.found),
            torch.where(outside[..., None], before.alone, self.alone),
            torch.where(outside, before.peak, self.peak),
            torch.where(outside, before.number, self.number),
        )


@dataclass(frozen=True)
class FineMatches(PointMatches):
    """Matches of several passes. ``flows`` are those of the first; positions are in the frame of the whole photos."""

    fine_peak: Float[Tensor, "b n"] | None = None
    fine_cycle_error: Float[Tensor, "b n"] | None = None
    point_cues: PointCues | None = None
    pair_cues: PairCues | None = None
    fine_calibration: FineCalibration | None = None
    mirrored: Bool[Tensor, " b"] | None = None  # the pairs whose source was matched mirrored

    def rows(self, rows: slice) -> "FineMatches":
        """Some pairs of the batch."""

        def part(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[rows]

        return replace(
            self,
            flows=self.flows.rows(rows),
            src_norm=self.src_norm[rows],
            trg_norm=self.trg_norm[rows],
            fine_peak=part(self.fine_peak),
            fine_cycle_error=part(self.fine_cycle_error),
            point_cues=None if self.point_cues is None else PointCues(self.point_cues.values[rows]),
            pair_cues=None if self.pair_cues is None else PairCues(self.pair_cues.values[rows]),
            mirrored=part(self.mirrored),
        )

    @cached_property
    def peak(self) -> Float[Tensor, "b n"]:
        """The probability of the best cell of the last target crop."""
        assert self.fine_peak is not None
        return self.fine_peak

    @cached_property
    def cycle_error(self) -> Float[Tensor, "b n"]:
        """The distance in [-1, 1]² of the whole source between a point and its match mapped back by the last pass."""
        assert self.fine_cycle_error is not None
        return self.fine_cycle_error

    @cached_property
    def confidence(self) -> Float[Tensor, "b n"]:
        """With a calibration, the probability of each match to be right; without, its peak."""
        if self.fine_calibration is None:
            return self.peak.to(self.precision)
        assert self.point_cues is not None
        assert self.pair_cues is not None
        return self.fine_calibration.right(self.point_cues, self.pair_cues)

    @cached_property
    def same_kind(self) -> Float[Tensor, " b"] | None:
        """The probability that both photos of a pair show the same kind of thing; None without a calibration."""
        if self.fine_calibration is None or self.pair_cues is None:
            return None
        return self.fine_calibration.same_kind(self.pair_cues)


@dataclass(frozen=True)
class Passes:
    """All passes of b pairs, to be read at any points.

    Args:
        settings: how scores are added and read.
        readout: of the model.
        calibration: of the confidence; without one, confidence is the peak.
        passes: from whole photos to the last crops. Pairs that were not matched again repeat their pass.
        mirrored: which sources were matched mirrored.
        src_object, trg_object: the cells of both photos that lie on the object.
    """

    settings: CoarseToFineConfig
    readout: KernelSoftArgmax
    calibration: FineCalibration | None
    passes: Sequence[Pass]
    mirrored: Bool[Tensor, " b"]
    src_object: Bool[Tensor, "b hs ws"]
    trg_object: Bool[Tensor, "b ht wt"]

    def followed_by(self, one: Pass) -> "Passes":
        """These passes and one more."""
        return replace(self, passes=[*self.passes, one])

    def copied(self) -> "Passes":
        """The same passes with tensors of their own, where these are a part of a larger batch."""
        passes = [
            Pass(
                one.src_frame,
                one.trg_frame,
                TwoWayFlow.of(self.readout, one.flows.refined.clone()),
                one.similarity.clone(),
                one.pooled.clone(),
            )
            for one in self.passes
        ]
        masks = {name: getattr(self, name).clone() for name in ("mirrored", "src_object", "trg_object")}
        return replace(self, passes=passes, **masks)

    def rows(self, rows: slice | list[int]) -> "Passes":
        """Some pairs of the batch."""
        return replace(
            self,
            passes=[one.rows(rows) for one in self.passes],
            mirrored=self.mirrored[rows],
            src_object=self.src_object[rows],
            trg_object=self.trg_object[rows],
        )

    def swapped(self) -> "Passes":
        """The same passes with source and target exchanged; nothing is computed again."""
        passes = [one.swapped() for one in self.passes]
        return replace(self, passes=passes, src_object=self.trg_object, trg_object=self.src_object)

    @property
    def last(self) -> Pass:
        """The pass with the smallest crops."""
        return self.passes[-1]

    @property
    def flows(self) -> TwoWayFlow:
        """The flow of the whole photos."""
        return self.passes[0].flows

    @cached_property
    def object_pair(self) -> PairCues:
        """What the pair as a whole shows, judged by cells in the middle of the last source crop."""
        last = self.last
        h, w = last.flows.grid
        edge = 2 if min(h, w) > 4 else 0  # cells
        cells = grid_norm((h, w), like=last.src_frame.centre)[edge : h - edge : 3, edge : w - edge : 3].flatten(0, 1)
        inside = last.src_frame.to_whole(cells.expand(len(self.mirrored), -1, -1))
        matches = self._read_separately(inside)
        assert matches.point_cues is not None
        return PairCues.of(matches.point_cues, last.pooled, enlargement(last.src_frame, last.trg_frame))

    @torch.inference_mode()
    def read(
        self,
        src_norm: Float[Tensor, "b n 2"],
        given: Bool[Tensor, "b n"] | None = None,
        *,
        positions_only: bool = False,
    ) -> FineMatches:
        """Find points of the source on the target.

        Args:
            src_norm: points (x, y) in [-1, 1]² of the whole source.
            given: the points of each pair that agree on where each of them should be, if there are at most
                ``MAX_AGREEING`` in the pair; every other point is read by itself. None: all of them are.
            positions_only: leave out what only the confidence needs.
        """
        if not src_norm.shape[1]:  # torch interpolates no empty tensors
            centre = src_norm.new_zeros(len(src_norm), 1, 2)
            return _without_points(self.read(centre, positions_only=positions_only))
        agreeing = None
        if given is not None and self.settings.agreement:
            agreeing = given & (given.sum(dim=1, keepdim=True) <= MAX_AGREEING)
        if agreeing is None or not agreeing.any():
            matches = self._read_separately(src_norm, positions_only=positions_only)
        elif src_norm.shape[1] <= MAX_AGREEING:
            matches = self._read(src_norm, agreeing, positions_only=positions_only)
        else:  # a pair with many points is in the batch; the points of the others agree all the same
            matches = self._read_separately(src_norm, positions_only=positions_only)
            few = QueryPoints(src_norm, agreeing).thinned(MAX_AGREEING)
            matches = _replaced(matches, agreeing, self._read(few.norm, few.given, positions_only=positions_only), few)
        return matches if positions_only else replace(matches, pair_cues=self.object_pair)

    @torch.inference_mode()
    def read_object(self) -> tuple[FineMatches, Bool[Tensor, "b n"]]:
        """Match the cells of the last source crop's grid; and which of them lead from object to object and back.

        The cycle error of those is less than one cell.
        """
        last = self.last
        cells = grid_norm(last.flows.grid, like=last.src_frame.centre).flatten(0, 1)
        matches = self.read(last.src_frame.to_whole(cells.expand(len(self.mirrored), -1, -1)))
        cell = 2 / (max(last.flows.grid) - 1) * last.src_frame.half.amax(dim=1, keepdim=True)
        on_object = [
            bilinear_sample(mask[..., None].float(), points)[..., 0] >= 0.5
            for mask, points in ((self.src_object, matches.src_norm), (self.trg_object, matches.trg_norm))
        ]
        return matches, (matches.cycle_error < cell) & on_object[0] & on_object[1]

    @torch.inference_mode()
    def heatmap(
        self, src_norm: Float[Tensor, "1 n 2"], given: Bool[Tensor, "1 n"] | None = None, index: int = 0
    ) -> Float[Tensor, "1 h w"]:
        """The match distribution of one point over a grid on the whole target, fine enough for the crop's detail.

        Args:
            src_norm: points (x, y) in [-1, 1]² of the whole source.
            given: as for :meth:`read`.
            index: of the point.
        """
        _, reading = self._readings(src_norm, given)
        p = self.distribution(reading.scores[:, index : index + 1])
        frame = self.passes[int(reading.number[0, index])].trg_frame
        factor = min(MAX_HEATMAP, int((1 / frame.half).amax().ceil()))
        h, w = (factor * side for side in p.shape[2:])
        positions = frame.to_crop(grid_norm((h, w), like=p).flatten(0, 1)[None]).reshape(1, h, w, 2)
        whole = F.grid_sample(p, positions, padding_mode="zeros", align_corners=True)[:, 0]
        return whole / whole.sum(dim=(1, 2), keepdim=True).clamp(min=torch.finfo(whole.dtype).tiny)

    def _read_separately(self, src_norm: Float[Tensor, "b n 2"], *, positions_only: bool = False) -> FineMatches:
        """Each point by itself, so many of them as memory allows at a time."""
        parts = torch.split(src_norm, CHUNK, dim=1)
        return _joined([self._read(part, None, positions_only=positions_only) for part in parts])

    def _read(
        self, src_norm: Float[Tensor, "b n 2"], agreeing: Bool[Tensor, "b n"] | None, *, positions_only: bool
    ) -> FineMatches:
        first, reading = self._readings(src_norm, agreeing)
        matches = FineMatches(
            self.flows, src_norm, reading.found, fine_calibration=self.calibration, mirrored=self.mirrored
        )
        if positions_only:
            return matches
        src_half, trg_half = self.last.src_frame.half[:, None], self.last.trg_frame.half[:, None]
        back, similarity, contrast = torch.zeros_like(src_norm), *(torch.zeros_like(reading.peak) for _ in range(2))
        for number, one in enumerate(self.passes):
            if (read_here := reading.number == number).any():
                back = torch.where(read_here[..., None], one.mapped_back(self.readout, reading.found) - src_norm, back)
                here = one.similarity_at(src_norm, reading.found)
                similarity = torch.where(read_here, here[0], similarity)
                contrast = torch.where(read_here, here[1], contrast)
        first_back = self.passes[0].mapped_back(self.readout, first.found) - src_norm
        cues = PointCues.of(
            peak=reading.peak,
            gap=runner_up_gap(reading.scores),
            cycle=(back / src_half).norm(dim=-1),
            first_cycle=(first_back / src_half).norm(dim=-1),
            shift=((reading.found - first.found) / trg_half).norm(dim=-1),
            moved=((reading.found - reading.alone) / trg_half).norm(dim=-1),
            similarity=similarity,
            contrast=contrast,
            together=agreeing,
        )
        return replace(matches, fine_peak=reading.peak, fine_cycle_error=back.norm(dim=-1), point_cues=cues)

    def _readings(
        self, src_norm: Float[Tensor, "b n 2"], agreeing: Bool[Tensor, "b n"] | None
    ) -> tuple[Reading, Reading]:
        """Points read from the first pass alone, and from all passes.

        A point outside the crops of a pass is read from the passes before it.
        """
        first = reading = None
        total, before = src_norm.new_zeros(()), self.passes[0]
        for number, one in enumerate(self.passes):
            src_crop = one.src_frame.to_crop(src_norm)
            outside = torch.zeros_like(src_norm[..., 0], dtype=torch.bool)
            if reading is None:
                total = self.readout.scores_at(one.flows.refined, src_crop)
            else:
                total = self._added(total, before, one, src_crop)
                reach = torch.maximum(src_crop.abs(), one.trg_frame.to_crop(reading.found).abs())
                outside = reach.amax(dim=-1) > 1 + EDGE
            scores, cells = total, grid_norm((total.shape[2], total.shape[3]), like=total)
            found, peak = self._expectation(scores, cells)
            alone = found
            if agreeing is not None and (number or len(self.passes) == 1):  # crops are made without it at first
                weight, turn = peak * (agreeing & ~outside), src_crop.new_tensor([-1.0, 1.0])
                shown = torch.where(self.mirrored[:, None, None], src_crop * turn, src_crop)  # as the network saw them
                prior = agreement_prior(cells, shown, found, weight).to(scores)
                scores = scores + prior * agreeing[..., None, None]
                found, peak = self._expectation(scores, cells)
            of_pass = torch.full_like(outside, number, dtype=torch.int)
            here = Reading(scores, one.trg_frame.to_whole(found), one.trg_frame.to_whole(alone), peak, of_pass)
            reading = here if reading is None else here.unless(outside, reading)
            first, before = first or reading, one
        assert first is not None
        assert reading is not None
        return first, reading

    def _added(
        self, total: Float[Tensor, "b n h w"], before: Pass, one: Pass, src_crop: Float[Tensor, "b n 2"]
    ) -> Float[Tensor, "b n h w"]:
        """The scores of a pass plus those of all passes before it, which lie on the cells of another target crop.

        Pairs that were not matched again keep the scores they have.
        """
        pairs_of_frames = ((before.src_frame, one.src_frame), (before.trg_frame, one.trg_frame))
        again = torch.stack([old.differs_from(new) for old, new in pairs_of_frames]).any(dim=0)
        if not again.any():
            return total
        fine = self.readout.scores_at(one.flows.refined, src_crop)
        h, w = total.shape[2:]
        cells = grid_norm((h, w), like=fine).flatten(0, 1).expand(len(fine), -1, -1)
        positions = one.trg_frame.inside(before.trg_frame).to_whole(cells).reshape(-1, h, w, 2)
        coarse = F.grid_sample(total, positions, padding_mode="border", align_corners=True)
        return torch.where(again[:, None, None, None], fine + self.settings.coarse_weight * coarse, total)

    def _expectation(
        self, scores: Float[Tensor, "b n h w"], cells: Float[Tensor, "h w 2"]
    ) -> tuple[Float[Tensor, "b n 2"], Float[Tensor, "b n"]]:
        """The expected position of each point on a grid of cells, and the probability of the best cell."""
        p = self.distribution(scores)
        return torch.einsum("bnkl,klc->bnc", p, cells), p.amax(dim=(2, 3))

    def distribution(self, scores: Float[Tensor, "b n h w"]) -> Float[Tensor, "b n h w"]:
        """Scores of points → for each point, a probability distribution over the target cells."""
        return match_distribution(
            scores[:, :, None],
            kernel_sigma=self.settings.kernel_sigma,
            temperature=self.readout.temperature,
            kernel_on="probabilities",
        )[:, :, 0]


def _replaced(
    matches: FineMatches, chosen: Bool[Tensor, "b n"], new: FineMatches, new_points: QueryPoints
) -> FineMatches:
    """Matches of which the ``chosen`` ones are replaced by those of ``new_points``, which are the same points."""

    def put(old: Tensor, values: Tensor) -> Tensor:
        result = old.clone()
        result[chosen] = values[new_points.given]
        return result

    if matches.point_cues is None or new.point_cues is None:
        return replace(matches, trg_norm=put(matches.trg_norm, new.trg_norm))
    return replace(
        matches,
        trg_norm=put(matches.trg_norm, new.trg_norm),
        fine_peak=put(matches.peak, new.peak),
        fine_cycle_error=put(matches.cycle_error, new.cycle_error),
        point_cues=PointCues(put(matches.point_cues.values, new.point_cues.values)),
    )


def _joined(parts: Sequence[FineMatches]) -> FineMatches:
    """Matches of several lists of points of the same pairs, as one list."""
    if len(parts) == 1:
        return parts[0]
    cues = [part.point_cues for part in parts if part.point_cues is not None]
    return replace(
        parts[0],
        src_norm=torch.cat([part.src_norm for part in parts], dim=1),
        trg_norm=torch.cat([part.trg_norm for part in parts], dim=1),
        fine_peak=_cat([part.fine_peak for part in parts]),
        fine_cycle_error=_cat([part.fine_cycle_error for part in parts]),
        point_cues=PointCues.joined(cues) if cues else None,
    )


def _without_points(matches: FineMatches) -> FineMatches:
    """What matches tell about their pairs, without any point."""
    cues = matches.point_cues
    return replace(
        matches,
        src_norm=matches.src_norm[:, :0],
        trg_norm=matches.trg_norm[:, :0],
        fine_peak=None if matches.fine_peak is None else matches.fine_peak[:, :0],
        fine_cycle_error=None if matches.fine_cycle_error is None else matches.fine_cycle_error[:, :0],
        point_cues=None if cues is None else PointCues(cues.values[:, :0]),
    )


def _cat(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present, dim=1) if present else None

"""Encoded photos → matches in several passes: whole photos first, then crops around the object, with the same weights.

Most objects fill a part of the photo, so most cells of the correlation grid lie on background. The second pass matches
crops of the original pixels: the source around the points that were asked for, the target around where the first pass
found them. Without points, the crops show the object that the features themselves point out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from transformatcher.config import CoarseToFineConfig
from transformatcher.coords import grid_norm
from transformatcher.inference.calibration import FineCalibration
from transformatcher.inference.crops import (
    Box,
    CropFrame,
    box_around,
    enlargement,
    object_cells,
    object_extent,
)
from transformatcher.inference.cues import pooled_similarity
from transformatcher.inference.encoded_photo import EncodedPhoto, View, encode_views, stack_features
from transformatcher.inference.orientation import faces_other_way, layer_weights
from transformatcher.inference.passes import FineMatches, Pass, Passes, QueryPoints
from transformatcher.inference.readout import TwoWayFlow
from transformatcher.models.correlation import finest_grid
from transformatcher.models.flow import KernelSoftArgmax
from transformatcher.models.transformatcher import Features, TransforMatcher
from transformatcher.schema import Size

MIN_LAYOUT, MAX_LAYOUT = 4, 128  # points that orientation is found from: cells of the object if fewer are given
NEXT_MARGIN = 0.7  # margins of each further pass, as a part of those of the pass before


@dataclass(frozen=True)
class CoarseToFine:
    """Matches batches of encoded photos in one or several passes.

    Args:
        model: in evaluation mode.
        image_size: (h, w) of the network's input.
        settings: number of passes, crops, how scores are added.
        calibration: of the confidence; without one, confidence is the peak.
        try_mirrored: compare the target with the mirrored source, too, and match the mirrored source if it fits better.

    Example:
        >>> matching = CoarseToFine(model, (272, 272), CoarseToFineConfig(passes=2))
        >>> matches = matching.match([src], [trg], QueryPoints.all(torch.zeros(1, 1, 2)))  # the centre of the source
        >>> matches.trg_norm, matches.confidence  # (1, 1, 2), (1, 1)
    """

    model: TransforMatcher
    image_size: Size
    settings: CoarseToFineConfig
    calibration: FineCalibration | None = None
    try_mirrored: bool = False

    @property
    def detail(self) -> float:
        """How many times the network's input a photo must be large for crops of all its detail."""
        return 1 / self.settings.min_side

    def match(self, src: Sequence[EncodedPhoto], trg: Sequence[EncodedPhoto], query: QueryPoints) -> FineMatches:
        """Find points of b sources on b targets; one source with many targets is cropped and encoded once."""
        if self.settings.region == "object":
            return self.run(src, trg).read(query.norm)
        return self.run(src, trg, query).read(query.norm, query.given)

    @torch.inference_mode()
    def run(self, src: Sequence[EncodedPhoto], trg: Sequence[EncodedPhoto], query: QueryPoints | None = None) -> Passes:
        """Run all passes on b pairs; the result can be read at any points.

        Args:
            src, trg: the photos.
            query: points that the crops must show; None: crops of the object that the features point out.
        """
        mirrored = self._find_mirrored(src, trg, query)
        like = src[0].features[0].new_zeros((), dtype=torch.float32)
        frame = CropFrame.whole(len(src), like)
        views = [View(photo, mirrored=m) for photo, m in zip(src, mirrored, strict=True)], [View(p) for p in trg]
        first = self._pass(*views, frame, frame)
        objects = (object_cells(stack_features([View(p) for p in photos]), first.flows.grid) for photos in (src, trg))
        passes = Passes(
            self.settings,
            self._readout,
            self.calibration,
            [first],
            torch.tensor(mirrored, device=like.device),
            *objects,
        )
        for number in range(1, self.settings.passes):
            boxes = self._boxes(passes, src, trg, query, NEXT_MARGIN ** (number - 1))
            passes = passes.followed_by(self._next_pass(passes, src, trg, *boxes))
        return passes

    @property
    def _readout(self) -> KernelSoftArgmax:
        assert isinstance(self.model.readout, KernelSoftArgmax)  # there is no other kind
        return self.model.readout

    def _find_mirrored(
        self, src: Sequence[EncodedPhoto], trg: Sequence[EncodedPhoto], query: QueryPoints | None
    ) -> list[bool]:
        """Which sources are to be matched mirrored.

        It is the source that is mirrored, not the target, because one source often has many targets.
        """
        if not self.try_mirrored:
            return [False] * len(src)
        views = [View(photo) for photo in src], [View(p, mirrored=True) for p in src], [View(photo) for photo in trg]
        encode_views(self.model, self.image_size, views[1])
        plain, turned, targets = (stack_features(side) for side in views)
        points = _layout_points(plain, query)
        return faces_other_way(self.model, plain, turned, targets, points.norm, points.given).tolist()

    def _pass(self, src: Sequence[View], trg: Sequence[View], src_frame: CropFrame, trg_frame: CropFrame) -> Pass:
        """Match views of photos; the result is in the frame of views that are not mirrored."""
        refined, similarity, pooled = self._refine(src, trg)
        if self.settings.mirror_average:
            other = self._refine([view.flipped() for view in src], [view.flipped() for view in trg])
            refined, similarity, pooled = (
                (a + b) / 2 for a, b in zip((refined, similarity, pooled), other, strict=True)
            )
        return Pass(src_frame, trg_frame, TwoWayFlow.of(self.model.readout, refined), similarity, pooled)

    def _refine(self, src: Sequence[View], trg: Sequence[View]) -> tuple[Tensor, Tensor, Tensor]:
        """Refined map, similarity and pooled similarity, with mirrored views turned back."""
        encode_views(self.model, self.image_size, [*src, *trg])
        f_src, f_trg = stack_features(src), stack_features(trg)
        corr = self.model.correlation(f_src, f_trg)  # (b, l, hs, ws, ht, wt)
        weights = layer_weights(self.model)
        similarity = corr.mean(dim=1) if weights is None else torch.einsum("l,blhwij->bhwij", weights, corr.to(weights))
        refined = self.model.refiner(corr)
        for views, axis in ((src, 2), (trg, 4)):
            if rows := [row for row, view in enumerate(views) if view.mirrored]:
                refined, similarity = refined.clone(), similarity.clone()
                for scores in (refined, similarity):
                    scores[rows] = scores[rows].flip(axis)
        return refined, similarity, pooled_similarity(f_src, f_trg)

    def _next_pass(
        self,
        passes: Passes,
        src: Sequence[EncodedPhoto],
        trg: Sequence[EncodedPhoto],
        src_boxes: Sequence[Box],
        trg_boxes: Sequence[Box],
    ) -> Pass:
        """Crop and match again; pairs that a crop would hardly enlarge keep their last pass."""
        last = passes.last
        like = last.src_frame.centre
        src_frame = CropFrame.of(src_boxes, [photo.size for photo in src], like)
        trg_frame = CropFrame.of(trg_boxes, [photo.size for photo in trg], like)
        gain = enlargement(src_frame, trg_frame) / enlargement(last.src_frame, last.trg_frame)
        rows = [row for row, factor in enumerate(gain.tolist()) if factor >= self.settings.min_enlargement]
        if not rows:
            return last
        mirrored = passes.mirrored.tolist()
        new = self._pass(
            [View(src[row], src_boxes[row], mirrored[row]) for row in rows],
            [View(trg[row], trg_boxes[row]) for row in rows],
            src_frame.rows(rows),
            trg_frame.rows(rows),
        )
        return new if len(rows) == len(src) else _merge(self.model, last, new, rows)

    def _boxes(
        self,
        passes: Passes,
        src: Sequence[EncodedPhoto],
        trg: Sequence[EncodedPhoto],
        query: QueryPoints | None,
        shrink: float,
    ) -> tuple[list[Box], list[Box]]:
        """The crops of the next pass; ``shrink`` multiplies their margins."""
        s = self.settings
        if query is None:
            objects = (object_extent(cells) for cells in (passes.src_object, passes.trg_object))
            sides = [(list(extent), s.object_margin) for extent in objects]
        else:
            agreeing = query.given if len(passes.passes) > 1 else None
            found = passes.read(query.norm, agreeing, positions_only=True).trg_norm
            sides = [
                ([points[mask] for points, mask in zip(_array(norm), _array(query.given), strict=True)], margin)
                for norm, margin in ((query.norm, s.src_margin), (found, s.trg_margin))
            ]
        src_boxes, trg_boxes = (
            [
                box_around(points, photo.size, margin=margin * shrink, min_side=s.min_side)
                for points, photo in zip(pointsets, photos, strict=True)
            ]
            for (pointsets, margin), photos in zip(sides, (src, trg), strict=True)
        )
        return src_boxes, trg_boxes


def _array(values: Tensor) -> np.ndarray:
    return (values.double() if values.is_floating_point() else values).cpu().numpy()


def _layout_points(src: Features, query: QueryPoints | None) -> QueryPoints:
    """The points that tell which way the source's object faces: those of the query, or cells where it has too few."""
    thinned = None if query is None else query.thinned(MAX_LAYOUT)
    if thinned is not None and (enough := thinned.given.sum(dim=1, keepdim=True) >= MIN_LAYOUT).all():
        return thinned
    grid = finest_grid(src)
    cells = object_cells(src, grid)[:, ::2, ::2]
    positions = grid_norm(grid, like=src[0].float())[::2, ::2].flatten(0, 1)
    on_object = QueryPoints(positions.expand(len(cells), -1, -1), cells.flatten(1)).thinned(MAX_LAYOUT)
    if thinned is None:
        return on_object
    return QueryPoints(
        torch.cat([thinned.norm, on_object.norm.to(thinned.norm)], dim=1),
        torch.cat([thinned.given & enough, on_object.given & ~enough], dim=1),
    )


def _merge(model: TransforMatcher, last: Pass, new: Pass, rows: list[int]) -> Pass:
    """The last pass with some rows replaced by those of a new one."""

    def put(old: Tensor, values: Tensor) -> Tensor:
        merged = old.clone()
        merged[rows] = values.to(merged)
        return merged

    src_frame, trg_frame = (
        CropFrame(put(old.centre, fresh.centre), put(old.half, fresh.half))
        for old, fresh in ((last.src_frame, new.src_frame), (last.trg_frame, new.trg_frame))
    )
    flows = TwoWayFlow.of(model.readout, put(last.flows.refined, new.flows.refined))
    return Pass(src_frame, trg_frame, flows, put(last.similarity, new.similarity), put(last.pooled, new.pooled))

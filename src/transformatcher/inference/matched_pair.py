"""A matched pair of photos → matches of any points, dense flow, heat maps and pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transformatcher.coords import grid_norm, norm_to_px, px_to_norm
from transformatcher.errors import InputError
from transformatcher.inference.calibration import MATCH_THRESHOLD, SAME_KIND_THRESHOLD, Calibration, is_match
from transformatcher.inference.encoded_photo import EncodedPhoto
from transformatcher.inference.passes import MAX_AGREEING, FineMatches, Passes
from transformatcher.inference.photos import PointList, check_points
from transformatcher.inference.readout import PointMatches, TwoWayFlow, read_flow, read_grid, read_points
from transformatcher.models.flow import KernelSoftArgmax
from transformatcher.models.sampler import Sampler, bilinear_sample
from transformatcher.schema import Flow, Matches

if TYPE_CHECKING:
    import matplotlib.figure


@dataclass(frozen=True)
class MatchedPoints(Matches):
    """Matches of :meth:`Matcher.match`. ``pair`` answers for other points and holds both photos.

    Example:
        >>> matches = matcher.match("cat_a.jpg", "cat_b.jpg", [[168, 115]])
        >>> matches.keypoints1, matches.confidence  # (1, 2) pixels of cat_b.jpg, (1,)
        >>> matches.draw("matches.png")
    """

    pair: "MatchedPair" = field(kw_only=True, repr=False)

    @property
    def same_kind(self) -> float | None:
        """The probability that both photos show the same kind of thing; None where the model does not tell."""
        return self.pair.same_kind

    @property
    def mirrored(self) -> bool:
        """Whether the two objects face opposite ways, so that the mirror image of the source was matched."""
        return self.pair.mirrored

    @property
    def other_kind(self) -> bool:
        """Whether the two photos probably do not show the same kind of thing."""
        return self.same_kind is not None and self.same_kind < SAME_KIND_THRESHOLD

    @property
    def calibrated(self) -> bool:
        """Whether confidence is the probability of a match to be right; if not, it is only the match's peak."""
        return self.pair.calibrated

    @property
    def is_match(self) -> Bool[np.ndarray, " n"]:
        """Which points have a match: those at least as likely right as wrong. Without a calibration, all of them."""
        return is_match(self.confidence, calibrated=self.calibrated)

    @property
    def reliable(self) -> Bool[np.ndarray, " n"]:
        """Which matches to build on: those of ``is_match``. Without a calibration, the half with higher peaks."""
        if self.calibrated or not len(self.confidence):
            return self.is_match
        return self.confidence >= np.median(self.confidence)

    @property
    def flow_px(self) -> Float[np.ndarray, "h w 2"]:
        """Where every cell of a grid over the source lies, in pixels of the target."""
        return self.pair.flow_px

    @property
    def flow_confidence(self) -> Float[np.ndarray, "h w"]:
        """Confidence of every cell of the flow."""
        return self.pair.flow_confidence

    def draw(
        self, path: str | Path | None = None, title: str = "", *, point_names: Sequence[str] = ()
    ) -> "matplotlib.figure.Figure":
        """Draw both photos with lines between the matches, coloured by confidence; save the figure under ``path``."""
        from transformatcher.viz.matches import draw_matches  # matplotlib takes half a second to import

        figure = draw_matches(
            self.pair.src.pixels,
            self.pair.trg.pixels,
            self,
            title,
            names=self.pair.names,
            point_names=point_names,
            calibrated=self.calibrated,
            threshold=MATCH_THRESHOLD if self.calibrated else None,
            notes=self._notes(),
        )
        return _saved(figure, path)

    def _notes(self) -> list[str]:
        notes = ["mirrored: the objects face opposite ways"] if self.mirrored else []
        if self.other_kind:
            notes.append(f"probably not the same kind of thing (probability of the same: {self.same_kind:.2f})")
        return notes


class MatchedPair:
    """Two photos that have been matched; ask it for any points.

    Args:
        src, trg: the photos.
        readout, sampler: of the model that matched them.
        flows: of this pair alone (b = 1), with the refined map that they come from; None if there are ``passes``.
        calibration: of the confidence of ``flows``, if there is one.
        passes: of this pair alone, of a model that matches in several passes.
        asked: the points in [-1, 1]² that the crops of ``passes`` were made around, if any; points that are asked for
            together then agree on where each of them should be.
        asked_matches: the matches of ``asked``, which a batch of pairs reads together.

    Example:
        >>> pair = next(matcher.pairs("cat_a.jpg", ["cat_b.jpg"]))
        >>> pair.points([[168, 115], [262, 241]]).keypoints1  # (2, 2) pixels of cat_b.jpg
    """

    def __init__(
        self,
        src: EncodedPhoto,
        trg: EncodedPhoto,
        readout: KernelSoftArgmax,
        sampler: Sampler,
        flows: TwoWayFlow | None = None,
        calibration: Calibration | None = None,
        *,
        passes: Passes | None = None,
        asked: Float[Tensor, "1 n 2"] | None = None,
        asked_matches: Callable[[], FineMatches] | None = None,
    ) -> None:
        self.src, self.trg, self.calibration = src, trg, calibration
        self.readout, self.sampler = readout, sampler
        self.passes, self.asked, self._asked_matches = passes, asked, asked_matches
        if flows is None:
            assert passes is not None
            flows = passes.flows
        self.flows = flows

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the scores and the pixels of both photos, without their features."""
        src, trg = (EncodedPhoto(photo.pixels, [], photo.name) for photo in (self.src, self.trg))
        passes = None if self.passes is None else self.passes.copied()
        flows = TwoWayFlow.of(self.readout, self.refined.clone()) if passes is None else passes.flows
        constant = {name: getattr(self, name) for name in ("calibration", "readout", "sampler", "asked")}
        return {**constant, "src": src, "trg": trg, "passes": passes, "flows": flows, "_asked_matches": None}

    @property
    def names(self) -> tuple[str, str]:
        """Names of both photos for pictures: those of their files where they are known."""
        return self.src.name or "source", self.trg.name or "target"

    @property
    def refined(self) -> Float[Tensor, "1 hs ws ht wt"]:
        """The model's scores of all candidate matches of the whole photos."""
        return self.flows.refined

    @property
    def mirrored(self) -> bool:
        """Whether the two objects face opposite ways, so that the mirror image of the source was matched."""
        return self.passes is not None and bool(self.passes.mirrored[0])

    @cached_property
    def same_kind(self) -> float | None:
        """The probability that both photos show the same kind of thing, judged by cells of the last source crop.

        None where the model does not tell.
        """
        if self.passes is None or self.passes.calibration is None:
            return None
        with torch.inference_mode():
            return float(self.passes.calibration.same_kind(self.passes.object_pair)[0])

    @property
    def calibrated(self) -> bool:
        """Whether confidence is the probability of a match to be right; if not, it is only the match's peak."""
        return (self.calibration if self.passes is None else self.passes.calibration) is not None

    @torch.inference_mode()
    def points(self, keypoints: PointList) -> MatchedPoints:
        """Find points (x, y), in pixels of the source, on the target. The network is not run again."""
        src_norm = self._normalised(keypoints, "source keypoints")
        if self.passes is None:
            transfer = partial(_sample, self.sampler)
            return self._in_pixels(read_points(self.flows, src_norm, self.calibration, transfer=transfer))
        if self._asked_matches is not None and self.asked is not None and torch.equal(src_norm, self.asked):
            return self._in_pixels(self._asked_matches())
        queried = torch.ones_like(src_norm[..., 0], dtype=torch.bool) if self.asked is not None else None
        return self._in_pixels(self.passes.read(src_norm, queried))

    @torch.inference_mode()
    def consistent(self) -> MatchedPoints:
        """Match the cells of a grid over the source's object and keep those whose cycle error is less than one cell.

        A model that matches once takes the cells of the whole photo.
        """
        if self.passes is None:
            cells = read_grid(self.flows, self.calibration)
            return self._in_pixels(cells, cells.cycle_consistent[0])
        matches, kept = self.passes.read_object()
        return self._in_pixels(matches, kept[0])

    @torch.inference_mode()
    def heatmap(self, point: Sequence[float | int] | np.ndarray) -> Float[np.ndarray, "h w"]:
        """The match distribution of one source point (x, y) over a grid on the target; it sums to one.

        It is that of the point among those that the pair was matched for.
        """
        src_norm = self._normalised(np.asarray(point)[None], "source point")
        if self.passes is not None:
            return self.passes.heatmap(*self._among_asked(src_norm))[0].double().cpu().numpy()
        ht, wt = self.refined.shape[3:]
        scores = bilinear_sample(self.refined.flatten(3), src_norm)  # (1, 1, ht·wt)
        # The read-out takes a grid of source cells; with four equal cells, upsampling between them changes nothing.
        equal = scores.reshape(1, 1, 1, ht, wt).expand(1, 2, 2, ht, wt)
        return self.readout.distribution(equal)[0, 0, 0].double().cpu().numpy()

    @torch.inference_mode()
    def warp_points(self, src_norm: Float[Tensor, "n 2"]) -> tuple[Float[Tensor, "n 2"], Float[np.ndarray, " n"]]:
        """Source points in [-1, 1]² → target points in [-1, 1]², interpolated in the flow, and their confidence."""
        if self.passes is None:
            matches: PointMatches = read_points(self.flows, src_norm[None], self.calibration)
            return matches.trg_norm[0], matches.confidence[0].cpu().numpy()
        flow = self._fine_flow
        h, w = self.flow_px.shape[:2]
        values = torch.cat([flow.trg_norm, flow.confidence[..., None].to(flow.trg_norm)], dim=-1).reshape(1, h, w, 3)
        sampled = bilinear_sample(values, src_norm[None])[0]
        return sampled[:, :2], sampled[:, 2].double().cpu().numpy()

    def reversed(self) -> "MatchedPair":
        """The same pair with source and target exchanged; nothing is computed again."""
        if self.passes is not None:
            return MatchedPair(self.trg, self.src, self.readout, self.sampler, passes=self.passes.swapped())
        return MatchedPair(self.trg, self.src, self.readout, self.sampler, self.flows.swapped(), self.calibration)

    @cached_property
    def flow_px(self) -> Float[np.ndarray, "h w 2"]:
        """Where every cell of a grid over the source lies, in pixels of the target."""
        return norm_to_px(self._flow_norm(), self.trg.size)

    @cached_property
    def flow_confidence(self) -> Float[np.ndarray, "h w"]:
        """Confidence of every cell of the flow."""
        with torch.inference_mode():
            matches = read_flow(self.flows, self.calibration) if self.passes is None else self._fine_flow
            return matches.confidence[0].cpu().numpy().reshape(self.flow_px.shape[:2])

    def draw_flow(self, path: str | Path | None = None, title: str = "") -> "matplotlib.figure.Figure":
        """Draw the dense flow: the source in colours, and the same colours where it lies on the target."""
        from transformatcher.viz.pictures import draw_flow

        options: dict[str, Any] = {"names": self.names, "calibrated": self.calibrated}
        arrays = (self.src.pixels, self.trg.pixels, self._flow_norm(), self.flow_confidence)
        return _saved(draw_flow(*arrays, self._marked(title), **options), path)

    def draw_heatmap(
        self, point: Sequence[float | int] | np.ndarray, path: str | Path | None = None, title: str = ""
    ) -> "matplotlib.figure.Figure":
        """Draw the match distribution of one source point (x, y) over the target."""
        from transformatcher.viz.pictures import draw_heatmap

        point_px = np.asarray(point, dtype=np.float64)
        arrays = (self.src.pixels, self.trg.pixels, point_px, self.heatmap(point))
        return _saved(draw_heatmap(*arrays, self._marked(title), names=self.names), path)

    def _marked(self, title: str) -> str:
        """The title of a picture, with a mark if the pair is mirrored."""
        return " · ".join(part for part in (title, "mirrored" if self.mirrored else "") if part)

    @cached_property
    def _fine_flow(self) -> FineMatches:
        """The matches of a grid over the whole source that is twice as fine as that of one pass, row by row."""
        assert self.passes is not None
        h, w = self._fine_grid()
        cells = grid_norm((h, w), like=self.flows.refined).flatten(0, 1)
        return self.passes.read(cells[None])

    def _fine_grid(self) -> tuple[int, int]:
        assert self.passes is not None
        h, w = self.flows.grid
        factor = 2 * self.passes.readout.upsample
        return factor * h, factor * w

    def _flow_norm(self) -> Float[np.ndarray, "h w 2"]:
        with torch.inference_mode():
            if self.passes is None:
                return self.flows.forward.trg_norm[0].double().cpu().numpy()
            return self._fine_flow.trg_norm[0].double().cpu().numpy().reshape(*self._fine_grid(), 2)

    def _among_asked(
        self, src_norm: Float[Tensor, "1 1 2"]
    ) -> tuple[Float[Tensor, "1 n 2"], Bool[Tensor, "1 n"] | None, int]:
        """A point together with those that the crops were made around; which of them agree; and the point's index."""
        if self.asked is None or self.asked.shape[1] >= MAX_AGREEING:
            return src_norm, None, 0
        same = (self.asked == src_norm).all(dim=-1)[0]
        points = self.asked if same.any() else torch.cat([self.asked, src_norm], dim=1)
        index = int(same.float().argmax()) if same.any() else points.shape[1] - 1
        agreeing = torch.ones_like(points[..., 0], dtype=torch.bool)
        return points, agreeing if self.passes is not None and self.passes.settings.agreement else None, index

    def _normalised(self, points: PointList, what: str) -> Float[Tensor, "1 n 2"]:
        points_norm = px_to_norm(check_points(points, self.src.size, what), self.src.size)
        return torch.from_numpy(points_norm).float().to(self.refined.device)[None]

    def _in_pixels(self, matches: PointMatches, kept: Bool[Tensor, " n"] | slice = slice(None)) -> MatchedPoints:
        trg_norm, confidence = matches.trg_norm[0, kept], matches.confidence[0, kept]
        if not (trg_norm.isfinite().all() and confidence.isfinite().all()):
            raise InputError(
                "the model computes infinite numbers or NaN: its weights, or its settings, are too large or too small"
            )
        return MatchedPoints(
            keypoints0=norm_to_px(matches.src_norm[0, kept].double().cpu().numpy(), self.src.size),
            keypoints1=norm_to_px(trg_norm.double().cpu().numpy(), self.trg.size),
            confidence=confidence.cpu().numpy(),
            pair=self,
        )


def _sample(sampler: Sampler, flow: Flow, src_norm: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n 2"]:
    return sampler(flow.trg_norm, src_norm)


def _saved(figure: "matplotlib.figure.Figure", path: str | Path | None) -> "matplotlib.figure.Figure":
    if path is not None:
        from transformatcher.viz.pictures import save_figure

        save_figure(figure, Path(path))
    return figure

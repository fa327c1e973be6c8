"""A matched pair of photos → matches of any points, dense flow, heat maps and pictures."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from transformatcher.coords import norm_to_px, px_to_norm
from transformatcher.inference.calibration import MATCH_THRESHOLD, Calibration, is_match
from transformatcher.inference.photos import PointList, check_points
from transformatcher.inference.readout import PointMatches, TwoWayFlow, read_flow, read_grid, read_points
from transformatcher.models.flow import KernelSoftArgmax
from transformatcher.models.sampler import bilinear_sample
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.schema import Matches, Size

if TYPE_CHECKING:
    import matplotlib.figure


@dataclass(frozen=True)
class EncodedPhoto:
    """A photo and its features, which can be kept and matched with many other photos."""

    pixels: UInt8[np.ndarray, "_ _ 3"]
    features: list[Tensor]  # (1, c, h, w) of each layer
    name: str = ""  # of the photo's file, if there is one

    @property
    def size(self) -> Size:
        """(h, w) in pixels."""
        return self.pixels.shape[0], self.pixels.shape[1]


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
    def calibrated(self) -> bool:
        """Whether confidence is the probability of a match to be right; if not, it is only the match's peak."""
        return self.pair.calibration is not None

    @property
    def is_match(self) -> Bool[np.ndarray, " n"]:
        """Which points have a match: those at least as likely right as wrong. Without a calibration, all of them."""
        return is_match(self.confidence, self.pair.calibration)

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
        )
        return _saved(figure, path)


class MatchedPair:
    """Two photos that have been matched; ask it for any points.

    Args:
        src, trg: the photos.
        model: that matched them.
        flows: of this pair alone (b = 1), with the refined map that they come from.
        calibration: of the model's confidence, if there is one.

    Example:
        >>> pair = next(matcher.pairs("cat_a.jpg", ["cat_b.jpg"]))
        >>> pair.points([[168, 115], [262, 241]]).keypoints1  # (2, 2) pixels of cat_b.jpg
    """

    def __init__(
        self,
        src: EncodedPhoto,
        trg: EncodedPhoto,
        model: TransforMatcher,
        flows: TwoWayFlow,
        calibration: Calibration | None,
    ) -> None:
        self.src, self.trg, self.model, self.flows, self.calibration = src, trg, model, flows, calibration

    @property
    def names(self) -> tuple[str, str]:
        """Names of both photos for pictures: those of their files where they are known."""
        return self.src.name or "source", self.trg.name or "target"

    @property
    def refined(self) -> Float[Tensor, "1 hs ws ht wt"]:
        """The model's scores of all candidate matches."""
        return self.flows.refined

    @torch.inference_mode()
    def points(self, keypoints: PointList) -> MatchedPoints:
        """Find points (x, y), in pixels of the source, on the target."""
        src_norm = self._normalised(keypoints, "source keypoints")
        return self._in_pixels(read_points(self.flows, src_norm, self.calibration, transfer=self.model.transfer))

    @torch.inference_mode()
    def consistent(self) -> MatchedPoints:
        """Match the cells of the correlation grid and keep those whose cycle error is less than one cell."""
        cells = read_grid(self.flows, self.calibration)
        return self._in_pixels(cells, cells.cycle_consistent[0])

    @torch.inference_mode()
    def heatmap(self, point: Sequence[float | int] | np.ndarray) -> Float[np.ndarray, "h w"]:
        """The match distribution of one source point (x, y) over a grid on the target; it sums to one."""
        src_norm = self._normalised(np.asarray(point)[None], "source point")
        assert isinstance(self.model.readout, KernelSoftArgmax)
        ht, wt = self.refined.shape[3:]
        scores = bilinear_sample(self.refined.flatten(3), src_norm)  # (1, 1, ht·wt)
        # The read-out takes a grid of source cells; with four equal cells, upsampling between them changes nothing.
        equal = scores.reshape(1, 1, 1, ht, wt).expand(1, 2, 2, ht, wt)
        return self.model.readout.distribution(equal)[0, 0, 0].double().cpu().numpy()

    @torch.inference_mode()
    def warp_points(self, src_norm: Float[Tensor, "n 2"]) -> tuple[Float[Tensor, "n 2"], Float[np.ndarray, " n"]]:
        """Source points in [-1, 1]² → target points in [-1, 1]², interpolated in the flow, and their confidence."""
        matches = read_points(self.flows, src_norm[None], self.calibration)
        return matches.trg_norm[0], matches.confidence[0].cpu().numpy()

    def reversed(self) -> "MatchedPair":
        """The same pair with source and target exchanged; nothing is computed again."""
        return MatchedPair(self.trg, self.src, self.model, self.flows.swapped(), self.calibration)

    @cached_property
    def flow_px(self) -> Float[np.ndarray, "h w 2"]:
        """Where every cell of a grid over the source lies, in pixels of the target."""
        return norm_to_px(self._flow_norm(), self.trg.size)

    @cached_property
    def flow_confidence(self) -> Float[np.ndarray, "h w"]:
        """Confidence of every cell of the flow."""
        with torch.inference_mode():
            confidence = read_flow(self.flows, self.calibration).confidence[0].cpu().numpy()
        return confidence.reshape(self.flows.forward.peak.shape[1:])

    def draw_flow(self, path: str | Path | None = None, title: str = "") -> "matplotlib.figure.Figure":
        """Draw the dense flow: the source in colours, and the same colours where it lies on the target."""
        from transformatcher.viz.pictures import draw_flow

        options: dict[str, Any] = {"names": self.names, "calibrated": self.calibration is not None}
        arrays = (self.src.pixels, self.trg.pixels, self._flow_norm(), self.flow_confidence)
        return _saved(draw_flow(*arrays, title, **options), path)

    def draw_heatmap(
        self, point: Sequence[float | int] | np.ndarray, path: str | Path | None = None, title: str = ""
    ) -> "matplotlib.figure.Figure":
        """Draw the match distribution of one source point (x, y) over the target."""
        from transformatcher.viz.pictures import draw_heatmap

        point_px = np.asarray(point, dtype=np.float64)
        arrays = (self.src.pixels, self.trg.pixels, point_px, self.heatmap(point))
        return _saved(draw_heatmap(*arrays, title, names=self.names), path)

    def _flow_norm(self) -> Float[np.ndarray, "h w 2"]:
        with torch.inference_mode():
            return self.flows.forward.trg_norm[0].double().cpu().numpy()

    def _normalised(self, points: PointList, what: str) -> Float[Tensor, "1 n 2"]:
        points_norm = px_to_norm(check_points(points, self.src.size, what), self.src.size)
        return torch.from_numpy(points_norm).float().to(self.refined.device)[None]

    def _in_pixels(self, matches: PointMatches, kept: Bool[Tensor, " n"] | slice = slice(None)) -> MatchedPoints:
        return MatchedPoints(
            keypoints0=norm_to_px(matches.src_norm[0, kept].double().cpu().numpy(), self.src.size),
            keypoints1=norm_to_px(matches.trg_norm[0, kept].double().cpu().numpy(), self.trg.size),
            confidence=matches.confidence[0, kept].cpu().numpy(),
            pair=self,
        )


def _saved(figure: "matplotlib.figure.Figure", path: str | Path | None) -> "matplotlib.figure.Figure":
    if path is not None:
        from transformatcher.viz.pictures import save_figure

        save_figure(figure, Path(path))
    return figure

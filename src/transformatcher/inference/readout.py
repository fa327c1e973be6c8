"""Refined map and source points → target points, peak, cycle error and confidence: the only read-out there is."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transformatcher.coords import grid_norm
from transformatcher.inference.calibration import Calibration
from transformatcher.models.flow import cycle_error, swap_source_target
from transformatcher.models.sampler import bilinear_sample
from transformatcher.schema import Flow, Size

ReadOut = Callable[[Float[Tensor, "b hs ws ht wt"]], Flow]
Transfer = Callable[[Flow, Float[Tensor, "b n 2"]], Float[Tensor, "b n 2"]]


class TwoWayFlow:
    """The flow of a batch of refined maps, from source to target and back. Each is computed when it is first used.

    Args:
        refined: scores of all candidate matches, (b, hs, ws, ht, wt).
        forward: computes the flow from source to target.
        backward: computes the flow from target to source.
    """

    def __init__(
        self, refined: Float[Tensor, "b hs ws ht wt"], forward: Callable[[], Flow], backward: Callable[[], Flow]
    ) -> None:
        self.refined, self._forward, self._backward = refined, forward, backward

    @classmethod
    def of(cls, readout: ReadOut, refined: Float[Tensor, "b hs ws ht wt"]) -> "TwoWayFlow":
        """Both flows by one read-out, such as ``model.readout``."""
        return cls(refined, partial(readout, refined), partial(_read_back, readout, refined))

    @cached_property
    def forward(self) -> Flow:
        """Where every cell of a grid over the source lies on the target."""
        return self._forward()

    @cached_property
    def backward(self) -> Flow:
        """Where every cell of a grid over the target lies on the source."""
        return self._backward()

    @property
    def grid(self) -> Size:
        """(hs, ws), the source grid of the refined map."""
        return self.refined.shape[1], self.refined.shape[2]

    def rows(self, rows: slice | list[int]) -> "TwoWayFlow":
        """Some pairs of the batch. Their flows are taken from the batch, which is read out once for all of them."""
        parts = (partial(_flow_rows, self, name, rows) for name in ("forward", "backward"))
        return TwoWayFlow(self.refined[rows], *parts)

    def swapped(self) -> "TwoWayFlow":
        """The same flows with source and target exchanged; nothing is computed again."""
        swapped = swap_source_target(self.refined)
        return TwoWayFlow(swapped, partial(getattr, self, "backward"), partial(getattr, self, "forward"))


# Functions of the module, not of a method, so that flows can be pickled.


def _read_back(readout: ReadOut, refined: Float[Tensor, "b hs ws ht wt"]) -> Flow:
    return readout(swap_source_target(refined))


def _flow_rows(flows: TwoWayFlow, name: str, rows: slice | list[int]) -> Flow:
    flow: Flow = getattr(flows, name)
    return Flow(trg_norm=flow.trg_norm[rows], peak=flow.peak[rows])


@dataclass(frozen=True)
class PointMatches:
    """Matches of n points in each pair of a batch. Peak, cycle error and confidence are computed when first used."""

    flows: TwoWayFlow
    src_norm: Float[Tensor, "b n 2"]
    trg_norm: Float[Tensor, "b n 2"]
    calibration: Calibration | None = None
    precision: torch.dtype = torch.float64  # in which the confidence is computed

    @cached_property
    def peak(self) -> Float[Tensor, "b n"]:
        """The probability of the best target cell, interpolated between source cells: how sharp a match is."""
        return bilinear_sample(self.flows.forward.peak[..., None], self.src_norm)[..., 0]

    @cached_property
    def cycle_error(self) -> Float[Tensor, "b n"]:
        """The distance in [-1, 1]² between a source point and its match taken back to the source."""
        return cycle_error(self.flows.backward, self.src_norm, self.trg_norm)

    @cached_property
    def cycle_consistent(self) -> Bool[Tensor, "b n"]:
        """Whether the cycle error is less than one cell of the refined map's source grid."""
        return self.cycle_error < 2 / (max(self.flows.grid) - 1)

    @cached_property
    def confidence(self) -> Float[Tensor, "b n"]:
        """With a calibration, the probability of each match to be right; without, its peak."""
        peak = self.peak.to(self.precision)
        return peak if self.calibration is None else self.calibration(peak, self.cycle_error.to(self.precision))


def interpolate(flow: Flow, src_norm: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n 2"]:
    """Source points → target points, by bilinear interpolation of the flow."""
    return bilinear_sample(flow.trg_norm, src_norm)


def read_points(
    flows: TwoWayFlow,
    src_norm: Float[Tensor, "b n 2"],
    calibration: Calibration | None = None,
    *,
    transfer: Transfer = interpolate,
    precision: torch.dtype = torch.float64,
) -> PointMatches:
    """Find points of the source on the target.

    Args:
        flows: of a batch of pairs.
        src_norm: points (x, y) in [-1, 1]². Where pairs have different numbers of points, fill up with any values and
            ignore those rows of the result.
        calibration: of the model's confidence; without one, confidence is the peak.
        transfer: flow and source points → target points; ``model.transfer`` uses the model's own sampler.
        precision: in which the confidence is computed.

    Example:
        >>> flows = TwoWayFlow.of(model.readout, model.refine(*model.encode_pair(src, trg)))
        >>> matches = read_points(flows, torch.zeros(1, 1, 2), transfer=model.transfer)  # the centre of the source
        >>> matches.trg_norm, matches.confidence  # (1, 1, 2), (1, 1)
    """
    return PointMatches(flows, src_norm, transfer(flows.forward, src_norm), calibration, precision)


def read_grid(flows: TwoWayFlow, calibration: Calibration | None = None) -> PointMatches:
    """Match every cell of the refined map's source grid, row by row; ``cycle_consistent`` says which to trust."""
    cells = grid_norm(flows.grid, like=flows.forward.trg_norm).flatten(0, 1)
    return read_points(flows, cells.expand(len(flows.refined), -1, -1), calibration)


def read_flow(
    flows: TwoWayFlow, calibration: Calibration | None = None, *, precision: torch.dtype = torch.float64
) -> PointMatches:
    """Match every cell of the flow itself, which is finer than the refined map, row by row."""
    flow = flows.forward
    b, h, w = flow.peak.shape
    cells = grid_norm((h, w), like=flow.peak).flatten(0, 1).expand(b, -1, -1)
    return PointMatches(flows, cells, flow.trg_norm.flatten(1, 2), calibration, precision)

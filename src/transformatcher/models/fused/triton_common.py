"""Shared by the kernels of all passes: dot products, LayerNorm, position features, and how work is split.

A Triton program handles one tile of target cells of one pair and loops over source cells. Its sums (softmax-weighted
sums, gradients of weights) stay in registers and are written once. Dot products run in bfloat16 on tensor cores
(``low``) or in full float32.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from transformatcher.models.fused.passes import PositionFeatures

KINDS = {"none": 0, "sign": 1, "rotary": 2}


class Tiling(NamedTuple):
    """How a kernel's work is split into programs, and options of its compiler."""

    matches: int  # in a tile
    warps: int
    programs: int  # how many to aim for
    stages: int = 3  # of software pipelining; 1: loops do not load ahead
    registers: int | None = None  # per thread, at most; with fewer, more programs share a multiprocessor


# Measured on an H200.
TILES = {
    "pool": Tiling(32, 1, 8192, stages=1, registers=168),
    "pool_backward": Tiling(32, 1, 4096),
    "update": Tiling(32, 2, 4096, stages=1, registers=128),
    "update_backward": Tiling(64, 4, 1024),
}


@triton.jit
def narrow(a, LOW: tl.constexpr):
    """Convert an operand of a dot product to bfloat16 if ``LOW``."""
    if LOW:
        a = a.to(tl.bfloat16)
    return a


@triton.jit
def dot(a, b, LOW: tl.constexpr, acc=None):
    """a @ b, added to ``acc`` if given."""
    if LOW:
        out = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    else:
        out = tl.dot(a, b, acc, input_precision="ieee")
    return out


@triton.jit
def normalise(x, EPS: tl.constexpr, D: tl.constexpr, AXIS: tl.constexpr = 0):
    """x, with its channels along ``AXIS`` → x̂ and 1/σ."""
    centred = x - tl.sum(x, axis=AXIS, keep_dims=True) * (1 / D)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=AXIS, keep_dims=True) * (1 / D) + EPS)
    return centred * rstd, rstd


@triton.jit
def normalise_backward(grad, x_hat, rstd, D: tl.constexpr):
    """Gradient of x̂ (D, T) → gradient of x."""
    mean = tl.sum(grad, axis=0, keep_dims=True) * (1 / D)
    along = tl.sum(grad * x_hat, axis=0, keep_dims=True) * (1 / D)
    return rstd * (grad - mean - x_hat * along)


# The channels of x̂ sum to zero, so the last is minus the sum of the others. The forward kernels replace it by the 1 of
# [x̂, 1], so that a matrix on [x̂, 1] is one dot product of D channels, without a column to add; see load_folded.


@triton.jit
def normalise_with_one(x, columns, EPS: tl.constexpr, D: tl.constexpr, AXIS: tl.constexpr):
    """x → x̂ with 1 for its last channel; ``columns`` numbers the channels along ``AXIS``."""
    x_hat, _ = normalise(x, EPS, D, AXIS)
    return tl.where(columns < D - 1, x_hat, 1.0)


@triton.jit
def load_folded(row, one, columns, D: tl.constexpr):
    """A matrix on [x̂, 1] (``row``: D columns, ``one``: the last) → the same map on x̂ with 1 for its last channel."""
    return tl.where(columns < D - 1, tl.load(row + columns) - tl.load(row + D - 1), tl.load(one))


@triton.jit
def load_affine(pointer, rows, columns, D: tl.constexpr):
    """A matrix on [x̂, 1], stored (rows, D + 1) → its matrix (rows, D) and its last column."""
    at = pointer + rows[:, None] * (D + 1)
    return tl.load(at + columns[None, :]), tl.load(pointer + rows * (D + 1) + D)


@triton.jit
def on_target(target_ptr, rows, k, n_trg, KIND: tl.constexpr):
    """The factors of position features ``rows`` that depend on the target cells ``k``."""
    k = tl.minimum(k, n_trg - 1)  # a tile may extend beyond the grid; the table does not
    if KIND == 2:
        out = tl.load(target_ptr + rows * n_trg + k)
    elif KIND == 1:
        out = tl.load(target_ptr + k)
    else:
        out = 1.0
    return out


@triton.jit
def on_source(source_ptr, rows, s, R: tl.constexpr, KIND: tl.constexpr):
    """The factors that depend on the source cell ``s``, to be multiplied with :func:`on_target`."""
    if KIND == 2:
        out = tl.load(source_ptr + s * R + rows)
    elif KIND == 1:
        out = tl.load(source_ptr + s)
    else:
        out = 1.0
    return out


def regroup(rows: Tensor, dim: int, members: int, groups: int) -> Tensor:
    """Groups of ``members`` neighbours → all first members, all second members, …; padded to ``groups`` groups."""
    rows = rows.unflatten(dim, (-1, members)).transpose(dim, dim + 1)  # (…, members, groups, …)
    behind = [0, 0] * (rows.dim() - dim - 2)
    return F.pad(rows, [*behind, 0, groups - rows.shape[dim + 1]]).flatten(dim, dim + 1)


def ungroup(rows: Tensor, dim: int, members: int, groups: int) -> Tensor:
    """The inverse of :func:`regroup`, without the padding: ``groups`` groups remain."""
    rows = rows.unflatten(dim, (members, -1)).narrow(dim + 1, 0, groups)
    return rows.transpose(dim, dim + 1).flatten(dim, dim + 1)


class Layout:
    """Position features for the kernels: feature j of a match is ``source[source cell, j] · target[j, target cell]``.

    An angle of :class:`PositionFeatures` grows along one axis, so one of the two factors is 1.

    Args:
        positions: how positions rotate the matches.
        device: of the matches.
        members, groups: rotary features come in groups of ``members`` neighbours. They are stored as
            :func:`regroup` orders them, so that one thread gets all members of a group, and padded to ``groups``.
    """

    def __init__(self, positions: PositionFeatures, device: torch.device, members: int, groups: int) -> None:
        hs, ws, ht, wt = positions.grid
        source, target = self._side(positions, 0, hs, ws), self._side(positions, 2, ht, wt)
        if positions.kind == "rotary":
            source, target = (regroup(side, 0, members, groups) for side in (source, target))
        self.source, self.target = source.T.contiguous().to(device), target.contiguous().to(device)
        self.numbers = (hs * ws, ht * wt)
        self.kind = KINDS[positions.kind]

    @staticmethod
    def _side(positions: PositionFeatures, axis: int, h: int, w: int) -> Float[Tensor, "j cells"]:
        """The factors of the cells of one image, whose rows are axis ``axis`` and whose columns the next."""
        device = None if positions.axes is None else positions.axes.device
        y, x = torch.cartesian_prod(torch.arange(h, device=device), torch.arange(w, device=device)).T
        if positions.axes is not None:
            table, axes = positions.table(torch.float32), positions.axes.repeat_interleave(2)[:, None]
            return torch.where(axes == axis, table[:, y], torch.where(axes == axis + 1, table[:, x], 1.0))
        return (1.0 - 2 * ((y + x) % 2) if positions.kind == "sign" else torch.ones(h * w))[None]

    @classmethod
    def of(cls, positions: PositionFeatures, device: torch.device, members: int, groups: int) -> "Layout":
        """The layout of these positions, from their cache after the first call."""
        key = (device, members, groups)
        if key not in positions.cache:
            with torch.inference_mode(mode=False):  # cached tensors may be used in training later
                positions.cache[key] = cls(positions, device, members, groups)
        layout: Layout = positions.cache[key]
        return layout

    def launch(self, kernel: str, pairs: int) -> tuple[tuple[int, int, int], int, dict[str, int]]:
        """(programs along targets, sources and pairs), source cells for each program, and options of the kernel."""
        tiling = TILES[kernel]
        n_src, n_trg = self.numbers
        parts = triton.cdiv(n_trg, tiling.matches)
        cells = triton.cdiv(n_src, max(1, min(n_src, tiling.programs // (max(pairs, 4) * parts))))
        options = {"T": tiling.matches, "num_warps": tiling.warps, "num_stages": tiling.stages}
        if tiling.registers is not None:
            options["maxnreg"] = tiling.registers
        return (parts, triton.cdiv(n_src, cells), pairs), cells, options


def fits(d: int, rows: int, hidden: int) -> bool:
    """Whether the kernels can tile these widths: powers of two, 16 at least, small enough for registers."""
    return all(n >= 16 and n & (n - 1) == 0 for n in (d, hidden)) and d <= 64 and hidden <= 256 and rows <= 64

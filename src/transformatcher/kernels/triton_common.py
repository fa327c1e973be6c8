"""What the kernels of all passes share: dot products, LayerNorm, position features, and how work is cut into programs.

A program keeps to one tile of target cells and walks over source cells of one pair; what it sums up (softmax-weighted
sums, gradients of weights) it keeps in registers and writes once. Dot products run in bfloat16 on tensor cores
(``low``) or in full float32.
"""

import torch
import triton
import triton.language as tl

from transformatcher.kernels.passes import Placement

KINDS = {"none": 0, "sign": 1, "rotary": 2}
# For each kernel (matches in a tile, warps, programs to aim for): measured on an H200.
TILES = {
    "pool": (64, 1, 8192),
    "pool_backward": (32, 1, 4096),
    "update": (64, 2, 4096),
    "update_backward": (64, 4, 1024),
}


@triton.jit
def dot(a, b, LOW: tl.constexpr):
    if LOW:
        out = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    else:
        out = tl.dot(a, b, input_precision="ieee")
    return out


@triton.jit
def normalise(x, EPS: tl.constexpr, D: tl.constexpr):
    """x (D, T) → x̂ and 1/σ (T,)."""
    mean = tl.sum(x, axis=0) / D
    centred = x - mean[None, :]
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / D + EPS)
    return centred * rstd[None, :], rstd


@triton.jit
def normalise_backward(grad, x_hat, rstd, D: tl.constexpr):
    """Gradient of x̂ → gradient of x."""
    mean = tl.sum(grad, axis=0) / D
    along = tl.sum(grad * x_hat, axis=0) / D
    return rstd[None, :] * (grad - mean[None, :] - x_hat * along[None, :])


@triton.jit
def target_features(k, n_trg, rows, table, axes, n_max, wt, KIND: tl.constexpr):
    """What position features owe to the target cells ``k`` (T,): (J, T), or (1, T) if not rotary."""
    k = tl.minimum(k, n_trg - 1)  # a tile may reach beyond the grid; the table does not
    if KIND == 2:
        axis = tl.load(axes + rows)[:, None]
        place = tl.where(axis == 2, k[None, :] // wt, tl.where(axis == 3, k[None, :] % wt, 0))
        out = tl.load(table + rows[:, None] * n_max + place)
    elif KIND == 1:
        out = (1 - 2 * ((k // wt + k % wt) % 2)).to(tl.float32)[None, :]
    else:
        out = tl.full((1, k.shape[0]), 1.0, tl.float32)
    return out


@triton.jit
def features_at(s, on_target, rows, table, axes, n_max, ws, KIND: tl.constexpr):
    """Position features of source cell ``s`` with the target cells behind ``on_target``."""
    if KIND == 2:
        axis = tl.load(axes + rows)
        on_source = tl.load(table + rows * n_max + tl.where(axis == 0, s // ws, s % ws), mask=axis < 2, other=0.0)
        out = tl.where((axis < 2)[:, None], on_source[:, None], on_target)
    elif KIND == 1:
        out = on_target * (1 - 2 * ((s // ws + s % ws) % 2)).to(tl.float32)
    else:
        out = on_target
    return out


@triton.jit
def load_affine(pointer, rows, columns, D: tl.constexpr):
    """A matrix on [x̂, 1], stored (rows, D + 1) → its matrix (rows, D) and its last column."""
    at = pointer + rows[:, None] * (D + 1)
    return tl.load(at + columns[None, :]), tl.load(pointer + rows * (D + 1) + D)


class Layout:
    """Pointers and numbers that describe positions to a kernel.

    Args:
        place: the positions.
        heads: if given, features come in the order that ``pool`` wants: first feature of all heads, second of all, …
        device: of the matches.
    """

    def __init__(self, place: Placement, device: torch.device, heads: int | None = None) -> None:
        hs, ws, ht, wt = place.grid
        if place.kind == "rotary":
            assert place.axes is not None
            table, axes = place.table(torch.float32), place.axes.repeat_interleave(2)
            if heads is not None:
                order = torch.arange(len(axes), device=axes.device).reshape(heads, -1).T.flatten()
                table, axes = table[order], axes[order]
            self.table = table.contiguous().to(device)
            self.axes = axes.to(device=device, dtype=torch.int32)
        else:
            self.table = self.axes = torch.zeros(1, dtype=torch.int32, device=device)
        self.numbers = (hs * ws, ht * wt, max(place.grid), ws, wt)
        self.kind = KINDS[place.kind]

    @classmethod
    def of(cls, place: Placement, device: torch.device, heads: int | None = None) -> "Layout":
        """The layout of a placement, made once."""
        key = (device, heads)
        if key not in place.cache:
            with torch.inference_mode(mode=False):  # what is kept may serve training later
                place.cache[key] = cls(place, device, heads)
        layout: Layout = place.cache[key]
        return layout

    def launch(self, kernel: str, pairs: int) -> tuple[tuple[int, int, int], int, dict[str, int]]:
        """(programs along targets, sources and pairs), source cells for each program, tile and warps."""
        tile, warps, programs = TILES[kernel]
        n_src, n_trg = self.numbers[:2]
        parts = triton.cdiv(n_trg, tile)
        cells = triton.cdiv(n_src, max(1, min(n_src, programs // (max(pairs, 4) * parts))))
        return (parts, triton.cdiv(n_src, cells), pairs), cells, {"T": tile, "num_warps": warps}


def fits(d: int, rows: int, hidden: int) -> bool:
    """Whether the kernels can tile these widths: powers of two, 16 at least, small enough for registers."""
    return all(n >= 16 and n & (n - 1) == 0 for n in (d, hidden)) and d <= 64 and hidden <= 256 and rows <= 64

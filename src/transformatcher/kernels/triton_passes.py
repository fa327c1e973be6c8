"""``pool`` and ``update`` as Triton kernels: each reads the matches once, and its backward recomputes what it needs.

A program keeps to one tile of target cells and walks over source cells of one pair; what it sums up (softmax-weighted
sums, gradients of weights) it keeps in registers and writes once. Dot products run in bfloat16 on tensor cores
(``low``) or in full float32.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from transformatcher.kernels.passes import EPS, Ffn, Placement, Tokens, Turned, perpendicular

KINDS = {"none": 0, "sign": 1, "rotary": 2}
# For each kernel (matches in a tile, warps, programs to aim for): measured on an H200.
TILES = {
    "pool": (64, 1, 8192),
    "pool_backward": (32, 1, 4096),
    "update": (64, 2, 4096),
    "update_backward": (64, 4, 1024),
}


# ---------------------------------------------------------------- inside the kernels


@triton.jit
def _dot(a, b, LOW: tl.constexpr):
    if LOW:
        out = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    else:
        out = tl.dot(a, b, input_precision="ieee")
    return out


@triton.jit
def _normalise(x, EPS: tl.constexpr, D: tl.constexpr):
    """x (D, T) → x̂ and 1/σ (T,)."""
    mean = tl.sum(x, axis=0) / D
    centred = x - mean[None, :]
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / D + EPS)
    return centred * rstd[None, :], rstd


@triton.jit
def _normalise_backward(grad, x_hat, rstd, D: tl.constexpr):
    """Gradient of x̂ → gradient of x."""
    mean = tl.sum(grad, axis=0) / D
    along = tl.sum(grad * x_hat, axis=0) / D
    return rstd[None, :] * (grad - mean[None, :] - x_hat * along[None, :])


@triton.jit
def _target_features(k, n_trg, rows, table, axes, n_max, wt, KIND: tl.constexpr):
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
def _features(s, on_target, rows, table, axes, n_max, ws, KIND: tl.constexpr):
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
def _sum_groups(a, J: tl.constexpr, G: tl.constexpr, T: tl.constexpr):
    """a (J, T): every row becomes the sum of its head's G rows, which lie J / G apart, so one thread holds them."""
    if G > 1:
        total = tl.sum(tl.reshape(a, (G, J // G, T)), axis=0)
        a = tl.reshape(tl.broadcast_to(total[None, :, :], (G, J // G, T)), (J, T))
    return a


@triton.jit
def _load_affine(pointer, rows, columns, D: tl.constexpr):
    """A matrix on [x̂, 1], stored (rows, D + 1) → its matrix (rows, D) and its last column."""
    at = pointer + rows[:, None] * (D + 1)
    return tl.load(at + columns[None, :]), tl.load(pointer + rows * (D + 1) + D)


@triton.jit
def _gelu(x):
    return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _gelu_slope(x):
    return 0.5 * (1 + tl.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)


# ---------------------------------------------------------------- pool


@triton.jit
def _pool_kernel(
    x_ptr, score_ptr, table, axes, top_ptr, total_ptr, sums_ptr, n_src, n_trg, n_max, ws, wt, cells,
    D: tl.constexpr, J: tl.constexpr, G: tl.constexpr, T: tl.constexpr, KIND: tl.constexpr, TURN: tl.constexpr,
    LOW: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """One chunk of one pair: running softmax, as in flash attention, with J fixed queries."""
    part, chunk, pair = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    k = part * T + tl.arange(0, T)
    inside = k < n_trg
    t_all = n_src * n_trg
    rows, columns = tl.arange(0, J), tl.arange(0, D)
    score, bias = _load_affine(score_ptr + pair * J * (D + 1), rows, columns, D)
    top = tl.full((J,), -float("inf"), tl.float32)
    total = tl.zeros((J,), tl.float32)
    sums = tl.zeros((J, D), tl.float32)
    ones = tl.zeros((J,), tl.float32)
    on_target = _target_features(k, n_trg, rows, table, axes, n_max, wt, KIND)
    for s in range(chunk * cells, tl.minimum(chunk * cells + cells, n_src)):
        at = x_ptr + pair.to(tl.int64) * D * t_all + columns[:, None].to(tl.int64) * t_all + s * n_trg + k[None, :]
        x_hat, _ = _normalise(tl.load(at, mask=inside[None, :], other=0.0), EPS, D)
        features = _features(s, on_target, rows, table, axes, n_max, ws, KIND)
        logit = _dot(score, x_hat, LOW) + bias[:, None]
        if TURN:
            logit = logit * features
        logit = tl.where(inside[None, :], _sum_groups(logit, J, G, T), -float("inf"))
        new_top = tl.maximum(top, tl.max(logit, axis=1))
        fade = tl.where(new_top == -float("inf"), 1.0, tl.exp(top - new_top))
        p = tl.where(inside[None, :], tl.exp(logit - new_top[:, None]), 0.0)
        total = total * fade + tl.sum(p, axis=1)
        weighted = p * features
        ones = ones * fade + tl.sum(weighted, axis=1)
        sums = sums * fade[:, None] + _dot(weighted, tl.trans(x_hat), LOW)
        top = new_top
    chunks = tl.num_programs(1) * tl.num_programs(0)
    out = (pair * J + rows) * chunks + chunk * tl.num_programs(0) + part
    tl.store(top_ptr + out, top)
    tl.store(total_ptr + out, total)
    tl.store(sums_ptr + out[:, None] * (D + 1) + columns[None, :], sums)
    tl.store(sums_ptr + out * (D + 1) + D, ones)


@triton.jit
def _combine_kernel(
    top_ptr, total_ptr, sums_ptr, out_ptr, lse_ptr, chunks, J: tl.constexpr, D1: tl.constexpr, C: tl.constexpr,
    W: tl.constexpr,
):  # fmt: skip
    """The chunks of one row of one pair → its weighted sums, and the logarithm of its softmax's denominator."""
    row, pair = tl.program_id(0), tl.program_id(1)
    w = tl.arange(0, W)
    highest = -float("inf")
    total = 0.0
    sums = tl.zeros((W,), tl.float32)
    for start in range(0, chunks, C):
        c = start + tl.arange(0, C)
        at = (pair * J + row) * chunks + c
        top = tl.load(top_ptr + at, mask=c < chunks, other=-float("inf"))
        new_highest = tl.maximum(highest, tl.max(top, axis=0))  # finite: every chunk holds a match
        fade = tl.exp(highest - new_highest)
        scale = tl.exp(top - new_highest)
        total = total * fade + tl.sum(scale * tl.load(total_ptr + at, mask=c < chunks, other=0.0), axis=0)
        mask = (c < chunks)[:, None] & (w < D1)[None, :]
        part = tl.load(sums_ptr + at[:, None] * D1 + w[None, :], mask=mask, other=0.0)
        sums = sums * fade + tl.sum(part * scale[:, None], axis=0)
        highest = new_highest
    tl.store(out_ptr + (pair * J + row) * D1 + w, sums / total, mask=w < D1)
    tl.store(lse_ptr + pair * J + row, highest + tl.log(total))


@triton.jit
def _pool_backward_kernel(
    x_ptr, score_ptr, table, axes, lse_ptr, grad_ptr, delta_ptr, dx_ptr, dscore_ptr, n_src, n_trg, n_max, ws, wt, cells,
    D: tl.constexpr, J: tl.constexpr, G: tl.constexpr, T: tl.constexpr, KIND: tl.constexpr, TURN: tl.constexpr,
    LOW: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    part, chunk, pair = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    k = part * T + tl.arange(0, T)
    inside = k < n_trg
    t_all = n_src * n_trg
    rows, columns = tl.arange(0, J), tl.arange(0, D)
    score, bias = _load_affine(score_ptr + pair * J * (D + 1), rows, columns, D)
    grad, grad_one = _load_affine(grad_ptr + pair * J * (D + 1), rows, columns, D)
    lse, delta = tl.load(lse_ptr + pair * J + rows), tl.load(delta_ptr + pair * J + rows)
    dscore = tl.zeros((J, D), tl.float32)
    dbias = tl.zeros((J,), tl.float32)
    on_target = _target_features(k, n_trg, rows, table, axes, n_max, wt, KIND)
    for s in range(chunk * cells, tl.minimum(chunk * cells + cells, n_src)):
        offset = pair.to(tl.int64) * D * t_all + columns[:, None].to(tl.int64) * t_all + s * n_trg + k[None, :]
        x_hat, rstd = _normalise(tl.load(x_ptr + offset, mask=inside[None, :], other=0.0), EPS, D)
        features = _features(s, on_target, rows, table, axes, n_max, ws, KIND)
        logit = _dot(score, x_hat, LOW) + bias[:, None]
        if TURN:
            logit = logit * features
        logit = _sum_groups(logit, J, G, T)
        p = tl.where(inside[None, :], tl.exp(logit - lse[:, None]), 0.0)
        dp = _sum_groups((_dot(grad, x_hat, LOW) + grad_one[:, None]) * features, J, G, T)
        ds = p * (dp - delta[:, None])
        if TURN:
            ds = ds * features
        dscore += _dot(ds, tl.trans(x_hat), LOW)
        dbias += tl.sum(ds, axis=1)
        dx_hat = _dot(tl.trans(score), ds, LOW) + _dot(tl.trans(grad), p * features, LOW)
        tl.store(dx_ptr + offset, _normalise_backward(dx_hat, x_hat, rstd, D), mask=inside[None, :])
    out = ((pair * tl.num_programs(1) + chunk) * tl.num_programs(0) + part) * J + rows
    tl.store(dscore_ptr + out[:, None] * (D + 1) + columns[None, :], dscore)
    tl.store(dscore_ptr + out * (D + 1) + D, dbias)


# ---------------------------------------------------------------- update


@triton.jit
def _turned_forward(
    x_hat, s, cos_target, sin_target, inner, inner_one, perp, perp_one, out, table, axes, n_max, ws, rows,
    KIND: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """What positions turn: (its value (D, T), the turned vectors (E, T), cosines, sines); or signs for cosines."""
    value = _dot(inner, x_hat, LOW) + inner_one[:, None]
    cos = _features(s, cos_target, rows // 2 * 2, table, axes, n_max, ws, KIND)
    if KIND == 2:
        sin = _features(s, sin_target, rows // 2 * 2 + 1, table, axes, n_max, ws, KIND)
        value = cos * value + sin * (_dot(perp, x_hat, LOW) + perp_one[:, None])
        result = _dot(out, value, LOW)
    else:
        sin = cos
        value = value * cos
        result = value
    return result, value, cos, sin


@triton.jit
def _update_kernel(
    x_ptr, linear_ptr, inner_ptr, perp_ptr, out_ptr, w1_ptr, b1_ptr, w2_ptr, b2_ptr, table, axes, y_ptr,
    n_src, n_trg, n_max, ws, wt, cells,
    D: tl.constexpr, E: tl.constexpr, H: tl.constexpr, T: tl.constexpr, KIND: tl.constexpr, TURNED: tl.constexpr,
    LOW: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    part, chunk, pair = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    k = part * T + tl.arange(0, T)
    inside = k < n_trg
    t_all = n_src * n_trg
    columns, rows, hidden = tl.arange(0, D), tl.arange(0, E), tl.arange(0, H)
    linear, linear_one = _load_affine(linear_ptr + pair * D * (D + 1), columns, columns, D)
    w1 = tl.load(w1_ptr + hidden[:, None] * D + columns[None, :])
    w2 = tl.load(w2_ptr + columns[:, None] * H + hidden[None, :])
    b1, b2 = tl.load(b1_ptr + hidden), tl.load(b2_ptr + columns)
    if TURNED:
        inner, inner_one = _load_affine(inner_ptr, rows, columns, D)
        perp, perp_one = _load_affine(perp_ptr, rows, columns, D)
        out = tl.load(out_ptr + columns[:, None] * E + rows[None, :])
        cos_target = _target_features(k, n_trg, rows // 2 * 2, table, axes, n_max, wt, KIND)
        sin_target = _target_features(k, n_trg, rows // 2 * 2 + 1, table, axes, n_max, wt, KIND)
    for s in range(chunk * cells, tl.minimum(chunk * cells + cells, n_src)):
        offset = pair.to(tl.int64) * D * t_all + columns[:, None].to(tl.int64) * t_all + s * n_trg + k[None, :]
        x = tl.load(x_ptr + offset, mask=inside[None, :], other=0.0)
        x_hat, _ = _normalise(x, EPS, D)
        x += _dot(linear, x_hat, LOW) + linear_one[:, None]
        if TURNED:
            value, _, _, _ = _turned_forward(
                x_hat,
                s,
                cos_target,
                sin_target,
                inner,
                inner_one,
                perp,
                perp_one,
                out,
                table,
                axes,
                n_max,
                ws,
                rows,
                KIND,
                LOW,
            )
            x += value
        x_hat, _ = _normalise(x, EPS, D)
        active = _gelu(_dot(w1, x_hat, LOW) + b1[:, None])
        x += _dot(w2, active, LOW) + b2[:, None]
        tl.store(y_ptr + offset, x, mask=inside[None, :])


@triton.jit
def _update_backward_kernel(
    x_ptr, linear_ptr, inner_ptr, perp_ptr, out_ptr, w1_ptr, b1_ptr, w2_ptr, table, axes, dy_ptr,
    dx_ptr, dlinear_ptr, dinner_ptr, dperp_ptr, dout_ptr, dw1_ptr, dw2_ptr, db2_ptr,
    n_src, n_trg, n_max, ws, wt, cells,
    D: tl.constexpr, E: tl.constexpr, H: tl.constexpr, T: tl.constexpr, KIND: tl.constexpr, TURNED: tl.constexpr,
    LOW: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    part, chunk, pair = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    k = part * T + tl.arange(0, T)
    inside = k < n_trg
    t_all = n_src * n_trg
    columns, rows, hidden = tl.arange(0, D), tl.arange(0, E), tl.arange(0, H)
    linear, linear_one = _load_affine(linear_ptr + pair * D * (D + 1), columns, columns, D)
    w1 = tl.load(w1_ptr + hidden[:, None] * D + columns[None, :])
    w2 = tl.load(w2_ptr + columns[:, None] * H + hidden[None, :])
    b1 = tl.load(b1_ptr + hidden)
    dlinear = tl.zeros((D, D), tl.float32)
    dlinear_one = tl.zeros((D,), tl.float32)
    dw1 = tl.zeros((H, D), tl.float32)
    db1 = tl.zeros((H,), tl.float32)
    dw2 = tl.zeros((D, H), tl.float32)
    db2 = tl.zeros((D,), tl.float32)
    if TURNED:
        inner, inner_one = _load_affine(inner_ptr, rows, columns, D)
        perp, perp_one = _load_affine(perp_ptr, rows, columns, D)
        out = tl.load(out_ptr + columns[:, None] * E + rows[None, :])
        cos_target = _target_features(k, n_trg, rows // 2 * 2, table, axes, n_max, wt, KIND)
        sin_target = _target_features(k, n_trg, rows // 2 * 2 + 1, table, axes, n_max, wt, KIND)
        dinner = tl.zeros((E, D), tl.float32)
        dinner_one = tl.zeros((E,), tl.float32)
        dperp = tl.zeros((E, D), tl.float32)
        dperp_one = tl.zeros((E,), tl.float32)
        dout = tl.zeros((D, E), tl.float32)
    for s in range(chunk * cells, tl.minimum(chunk * cells + cells, n_src)):
        offset = pair.to(tl.int64) * D * t_all + columns[:, None].to(tl.int64) * t_all + s * n_trg + k[None, :]
        x = tl.load(x_ptr + offset, mask=inside[None, :], other=0.0)
        dx = tl.load(dy_ptr + offset, mask=inside[None, :], other=0.0)
        x_hat, rstd = _normalise(x, EPS, D)
        x += _dot(linear, x_hat, LOW) + linear_one[:, None]
        if TURNED:
            value, turned, cos, sin = _turned_forward(
                x_hat,
                s,
                cos_target,
                sin_target,
                inner,
                inner_one,
                perp,
                perp_one,
                out,
                table,
                axes,
                n_max,
                ws,
                rows,
                KIND,
                LOW,
            )
            x += value
        # the MLP
        x_hat1, rstd1 = _normalise(x, EPS, D)
        before = _dot(w1, x_hat1, LOW) + b1[:, None]
        dw2 += _dot(dx, tl.trans(_gelu(before)), LOW)
        db2 += tl.sum(dx, axis=1)
        dbefore = _dot(tl.trans(w2), dx, LOW) * _gelu_slope(before)
        dw1 += _dot(dbefore, tl.trans(x_hat1), LOW)
        db1 += tl.sum(dbefore, axis=1)
        dx += _normalise_backward(_dot(tl.trans(w1), dbefore, LOW), x_hat1, rstd1, D)
        # the attention's output
        dlinear += _dot(dx, tl.trans(x_hat), LOW)
        dlinear_one += tl.sum(dx, axis=1)
        dx_hat = _dot(tl.trans(linear), dx, LOW)
        if TURNED:
            if KIND == 2:
                dout += _dot(dx, tl.trans(turned), LOW)
                dturned = _dot(tl.trans(out), dx, LOW)
                dsin = sin * dturned
                dperp += _dot(dsin, tl.trans(x_hat), LOW)
                dperp_one += tl.sum(dsin, axis=1)
                dx_hat += _dot(tl.trans(perp), dsin, LOW)
                dcos = cos * dturned
            else:
                dcos = cos * dx
            dinner += _dot(dcos, tl.trans(x_hat), LOW)
            dinner_one += tl.sum(dcos, axis=1)
            dx_hat += _dot(tl.trans(inner), dcos, LOW)
        dx += _normalise_backward(dx_hat, x_hat, rstd, D)
        tl.store(dx_ptr + offset, dx, mask=inside[None, :])
    program = (pair * tl.num_programs(1) + chunk) * tl.num_programs(0) + part
    at = dlinear_ptr + (program * D + columns) * (D + 1)
    tl.store(at[:, None] + columns[None, :], dlinear)
    tl.store(at + D, dlinear_one)
    at = dw1_ptr + (program * H + hidden) * (D + 1)
    tl.store(at[:, None] + columns[None, :], dw1)
    tl.store(at + D, db1)
    tl.store(dw2_ptr + (program * D + columns)[:, None] * H + hidden[None, :], dw2)
    tl.store(db2_ptr + program * D + columns, db2)
    if TURNED:
        at = dinner_ptr + (program * E + rows) * (D + 1)
        tl.store(at[:, None] + columns[None, :], dinner)
        tl.store(at + D, dinner_one)
        if KIND == 2:
            at = dperp_ptr + (program * E + rows) * (D + 1)
            tl.store(at[:, None] + columns[None, :], dperp)
            tl.store(at + D, dperp_one)
            tl.store(dout_ptr + (program * D + columns)[:, None] * E + rows[None, :], dout)


# ---------------------------------------------------------------- around the kernels


class _Layout:
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
    def of(cls, place: Placement, device: torch.device, heads: int | None = None) -> "_Layout":
        """The layout of a placement, made once."""
        key = (device, heads)
        if key not in place.cache:
            place.cache[key] = cls(place, device, heads)
        layout: _Layout = place.cache[key]
        return layout

    def launch(self, kernel: str, pairs: int) -> tuple[tuple[int, int, int], int, dict[str, int]]:
        """(programs along targets, sources and pairs), source cells for each program, tile and warps."""
        tile, warps, programs = TILES[kernel]
        n_src, n_trg = self.numbers[:2]
        parts = triton.cdiv(n_trg, tile)
        cells = triton.cdiv(n_src, max(1, min(n_src, programs // (max(pairs, 4) * parts))))
        return (parts, triton.cdiv(n_src, cells), pairs), cells, {"T": tile, "num_warps": warps}


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scores: Tensor, layout: _Layout, group: int, turn: bool, low: bool) -> Tensor:
        b, d, _ = x.shape
        j = scores.shape[1]
        grid, cells, tiling = layout.launch("pool", b)
        chunks = grid[0] * grid[1]
        top, total = (torch.empty(b, j, chunks, device=x.device) for _ in range(2))
        sums = torch.empty(b, j, chunks, d + 1, device=x.device)
        out, lse = torch.empty_like(scores), torch.empty(b, j, device=x.device)
        constants = {"D": d, "J": j, "G": group, "KIND": layout.kind, "TURN": turn, "LOW": low, "EPS": EPS}
        _pool_kernel[grid](
            x, scores, layout.table, layout.axes, top, total, sums, *layout.numbers, cells, **constants, **tiling
        )
        _combine_kernel[(j, b)](
            top, total, sums, out, lse, chunks, J=j, D1=d + 1, C=128, W=triton.next_power_of_2(d + 1),
        )  # fmt: skip
        ctx.save_for_backward(x, scores, out, lse)
        ctx.layout, ctx.constants = layout, constants
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, scores, out, lse = ctx.saved_tensors
        (b, d, _), j, layout, group = x.shape, scores.shape[1], ctx.layout, ctx.constants["G"]
        grad = grad.contiguous()
        # Σ_t p · dp of a head, known beforehand from its sums, as in flash attention.
        delta = (grad * out).sum(dim=-1).unflatten(1, (group, -1)).sum(dim=1).repeat(1, group)
        grid, cells, tiling = layout.launch("pool_backward", b)
        dx = torch.empty_like(x)
        dscores = torch.empty(b, grid[0] * grid[1], j, d + 1, device=x.device)
        _pool_backward_kernel[grid](
            x, scores, layout.table, layout.axes, lse, grad, delta, dx, dscores, *layout.numbers, cells,
            **ctx.constants, **tiling,
        )  # fmt: skip
        return dx, dscores.sum(dim=1), None, None, None, None


class _Update(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, linear: Tensor, inner: Tensor, perp: Tensor, out: Tensor,
        w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, layout: _Layout, turned: bool, low: bool,
    ) -> Tensor:  # fmt: skip
        b, d, _ = x.shape
        grid, cells, tiling = layout.launch("update", b)
        y = torch.empty_like(x)
        widths = {"D": d, "E": len(inner), "H": len(w1)}
        constants = {**widths, "KIND": layout.kind, "TURNED": turned, "LOW": low, "EPS": EPS}
        weights = (linear, inner, perp, out, w1, b1, w2, b2)
        _update_kernel[grid](x, *weights, layout.table, layout.axes, y, *layout.numbers, cells, **constants, **tiling)
        ctx.save_for_backward(x, *weights)
        ctx.layout, ctx.constants = layout, constants
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        (b, d, _), layout, e, hidden = x.shape, ctx.layout, ctx.constants["E"], ctx.constants["H"]
        grid, cells, tiling = layout.launch("update_backward", b)

        def partial(*shape: int) -> Tensor:
            return torch.zeros(b, grid[0] * grid[1], *shape, device=x.device)

        dx, dlinear, dinner, dperp = torch.empty_like(x), partial(d, d + 1), partial(e, d + 1), partial(e, d + 1)
        dout, dw1, dw2, db2 = partial(d, e), partial(hidden, d + 1), partial(d, hidden), partial(d)
        _update_backward_kernel[grid](
            x, *weights[:-1], layout.table, layout.axes, dy.contiguous(),
            dx, dlinear, dinner, dperp, dout, dw1, dw2, db2, *layout.numbers, cells, **ctx.constants, **tiling,
        )  # fmt: skip
        dw1 = dw1.sum(dim=(0, 1))
        return (
            dx, dlinear.sum(dim=1), dinner.sum(dim=(0, 1)), dperp.sum(dim=(0, 1)), dout.sum(dim=(0, 1)),
            dw1[:, :-1], dw1[:, -1], dw2.sum(dim=(0, 1)), db2.sum(dim=(0, 1)), None, None, None,
        )  # fmt: skip


def pool(
    x: Tokens, scores: Float[Tensor, "b j d1"], place: Placement, *, heads: int, turn_scores: bool, low: bool
) -> Float[Tensor, "b j d1"]:
    """:func:`transformatcher.kernels.passes.pool`, fused."""
    j = scores.shape[1]
    group = j // heads
    if group > 1:  # rows of one head apart rather than together: see _sum_groups
        scores = scores.unflatten(1, (heads, group)).transpose(1, 2).flatten(1, 2)
    padded = max(16, triton.next_power_of_2(j))  # dot products want 16 rows at least
    scores = torch.nn.functional.pad(scores, (0, 0, 0, padded - j)).contiguous()
    sums = _Pool.apply(x.contiguous(), scores, _Layout.of(place, x.device, heads), group, turn_scores, low)[:, :j]
    return sums.unflatten(1, (group, heads)).transpose(1, 2).flatten(1, 2) if group > 1 else sums


def update(
    x: Tokens, linear: Float[Tensor, "b d d1"], place: Placement, turned: Turned | None, ffn: Ffn, *, low: bool
) -> Tokens:
    """:func:`transformatcher.kernels.passes.update`, fused."""
    nothing = x.new_zeros(16, 1)
    inner, perp, out = (nothing, nothing, nothing)
    if turned is not None:
        inner, perp, out = turned.inner.contiguous(), perpendicular(turned.inner).contiguous(), turned.out.contiguous()
    weights = (ffn.weight1.contiguous(), ffn.bias1.contiguous(), ffn.weight2.contiguous(), ffn.bias2.contiguous())
    layout = _Layout.of(place, x.device)
    return _Update.apply(
        x.contiguous(), linear.contiguous(), inner, perp, out, *weights, layout, turned is not None, low
    )


def fits(d: int, rows: int, hidden: int) -> bool:
    """Whether the kernels can tile these widths: powers of two, 16 at least, small enough for registers."""
    return all(n >= 16 and n & (n - 1) == 0 for n in (d, hidden)) and d <= 64 and hidden <= 256 and rows <= 64

"""The two ends of the matcher as Triton kernels: correlation → matches, and refined map → flow."""

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from transformatcher.models.fused.triton_common import dot

GAUSSIAN = {"logits": 0, "probabilities": 1, "none": 2}


# ---------------------------------------------------------------- embedding: every match from its layers' scores


@triton.jit
def _embed_kernel(
    corr_ptr, w_ptr, b_ptr, x_ptr, t_all, layers, tiles, D: tl.constexpr, L: tl.constexpr, T: tl.constexpr,
    LOW: tl.constexpr,
):  # fmt: skip
    chunk, pair = tl.program_id(0), tl.program_id(1)
    columns, layer = tl.arange(0, D), tl.arange(0, L)
    known = layer < layers
    w = tl.load(w_ptr + columns[:, None] * layers + layer[None, :], mask=known[None, :], other=0.0)
    bias = tl.load(b_ptr + columns)
    for tile in range(tiles):
        t = (chunk * tiles + tile) * T + tl.arange(0, T)
        inside = t < t_all
        at = corr_ptr + (pair.to(tl.int64) * layers + layer[:, None]) * t_all + t[None, :]
        corr = tl.load(at, mask=known[:, None] & inside[None, :], other=0.0)
        x = dot(w, corr.to(tl.float32), LOW) + bias[:, None]
        out = x_ptr + (pair.to(tl.int64) * D + columns[:, None]) * t_all + t[None, :]
        tl.store(out, x, mask=inside[None, :])


@triton.jit
def _embed_backward_kernel(
    corr_ptr, w_ptr, dx_ptr, dcorr_ptr, dw_ptr, db_ptr, t_all, layers, tiles,
    D: tl.constexpr, L: tl.constexpr, T: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    chunk, pair = tl.program_id(0), tl.program_id(1)
    columns, layer = tl.arange(0, D), tl.arange(0, L)
    known = layer < layers
    w = tl.load(w_ptr + columns[:, None] * layers + layer[None, :], mask=known[None, :], other=0.0)
    dw = tl.zeros((D, L), tl.float32)
    db = tl.zeros((D,), tl.float32)
    for tile in range(tiles):
        t = (chunk * tiles + tile) * T + tl.arange(0, T)
        inside = t < t_all
        mask = known[:, None] & inside[None, :]
        offset = (pair.to(tl.int64) * layers + layer[:, None]) * t_all + t[None, :]
        corr = tl.load(corr_ptr + offset, mask=mask, other=0.0).to(tl.float32)
        at = dx_ptr + (pair.to(tl.int64) * D + columns[:, None]) * t_all + t[None, :]
        dx = tl.load(at, mask=inside[None, :], other=0.0)
        dw += dot(dx, tl.trans(corr), LOW)
        db += tl.sum(dx, axis=1)
        tl.store(dcorr_ptr + offset, dot(tl.trans(w), dx, LOW).to(dcorr_ptr.dtype.element_ty), mask=mask)
    program = pair * tl.num_programs(0) + chunk
    tl.store(dw_ptr + (program * D + columns)[:, None] * L + layer[None, :], dw)
    tl.store(db_ptr + program * D + columns, db)


def _chunks(t: int, pairs: int, tile: int) -> tuple[int, int]:
    """(programs for each pair, tiles for each program)."""
    tiles = triton.cdiv(t, tile)
    each = triton.cdiv(tiles, max(1, min(tiles, 2048 // pairs)))
    return triton.cdiv(tiles, each), each


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, corr: Tensor, weight: Tensor, bias: Tensor, low: bool) -> Tensor:
        b, layers, t = corr.shape
        chunks, tiles = _chunks(t, b, 256)
        x = torch.empty(b, len(weight), t, device=corr.device)
        constants = {"D": len(weight), "L": max(16, triton.next_power_of_2(layers)), "LOW": low}
        _embed_kernel[(chunks, b)](corr, weight, bias, x, t, layers, tiles, T=256, **constants)
        ctx.save_for_backward(corr, weight)
        ctx.constants = constants
        return x

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
        corr, weight = ctx.saved_tensors
        (b, layers, t), (d, padded) = corr.shape, (ctx.constants["D"], ctx.constants["L"])
        chunks, tiles = _chunks(t, b, 128)
        dcorr = torch.empty_like(corr)
        dw, db = torch.empty(b, chunks, d, padded, device=dx.device), torch.empty(b, chunks, d, device=dx.device)
        _embed_backward_kernel[(chunks, b)](
            corr, weight, dx.contiguous(), dcorr, dw, db, t, layers, tiles, T=128, **ctx.constants
        )
        return dcorr, dw.sum(dim=(0, 1))[:, :layers], db.sum(dim=(0, 1)), None


def embed(
    corr: Float[Tensor, "b l t"], weight: Float[Tensor, "d l"], bias: Float[Tensor, " d"], *, low: bool
) -> Float[Tensor, "b d t"]:
    """``weight @ corr + bias`` in float32, from a correlation of any precision."""
    return _Embed.apply(corr.contiguous(), weight.contiguous(), bias.contiguous(), low)


# ---------------------------------------------------------------- read-out: upsample, Gaussian, softmax, expectation


@triton.jit
def _row_distribution(
    row_ptr, up_y_ptr, up_x_ptr, ht, wt, h2, w2, inverse_temperature, inverse_two_sigma2,
    A: tl.constexpr, B: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, GAUSSIAN: tl.constexpr,
):  # fmt: skip
    """The probabilities (P, Q) of one source cell, and the kernel that multiplied its logits."""
    a, b, p, q = tl.arange(0, A), tl.arange(0, B), tl.arange(0, P), tl.arange(0, Q)
    scores = tl.load(row_ptr + a[:, None] * wt + b[None, :], mask=(a < ht)[:, None] & (b < wt)[None, :], other=0.0)
    up_y = tl.load(up_y_ptr + p[:, None] * ht + a[None, :], mask=(p < h2)[:, None] & (a < ht)[None, :], other=0.0)
    up_x = tl.load(up_x_ptr + q[None, :] * wt + b[:, None], mask=(q < w2)[None, :] & (b < wt)[:, None], other=0.0)
    fine = tl.dot(tl.dot(up_y, scores, input_precision="tf32x3"), up_x, input_precision="tf32x3")
    inside = (p < h2)[:, None] & (q < w2)[None, :]
    fine = tl.where(inside, fine, -float("inf"))
    number = p[:, None] * Q + q[None, :]
    best = tl.min(tl.where(fine == tl.max(fine), number, P * Q))  # the first of equals, as torch.argmax
    off_y, off_x = (p - best // Q).to(tl.float32), (q - best % Q).to(tl.float32)
    gaussian = tl.exp(-(off_y * off_y)[:, None] * inverse_two_sigma2) * tl.exp(
        -(off_x * off_x)[None, :] * inverse_two_sigma2
    )
    logits = tl.where(inside, fine, 0.0) * inverse_temperature
    if GAUSSIAN == 0:
        logits = logits * gaussian
    logits = tl.where(inside, logits, -float("inf"))
    weights = tl.exp(logits - tl.max(logits))
    if GAUSSIAN == 1:
        weights = weights * gaussian
    return weights / tl.sum(weights), gaussian, up_y, up_x


@triton.jit
def _readout_kernel(
    rows_ptr, up_y_ptr, up_x_ptr, ys_ptr, xs_ptr, flow_ptr, peak_ptr, ht, wt, h2, w2, inv_t, inv_s,
    A: tl.constexpr, B: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, GAUSSIAN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    p, _, _, _ = _row_distribution(
        rows_ptr + row * ht * wt, up_y_ptr, up_x_ptr, ht, wt, h2, w2, inv_t, inv_s, A, B, P, Q, GAUSSIAN
    )
    ys = tl.load(ys_ptr + tl.arange(0, P), mask=tl.arange(0, P) < h2, other=0.0)
    xs = tl.load(xs_ptr + tl.arange(0, Q), mask=tl.arange(0, Q) < w2, other=0.0)
    tl.store(flow_ptr + row * 2, tl.sum(p * xs[None, :]))
    tl.store(flow_ptr + row * 2 + 1, tl.sum(p * ys[:, None]))
    tl.store(peak_ptr + row, tl.max(p))


@triton.jit
def _readout_backward_kernel(
    rows_ptr, up_y_ptr, up_x_ptr, ys_ptr, xs_ptr, flow_ptr, grad_ptr, drows_ptr, ht, wt, h2, w2, inv_t, inv_s,
    A: tl.constexpr, B: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, GAUSSIAN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    p, gaussian, up_y, up_x = _row_distribution(
        rows_ptr + row * ht * wt, up_y_ptr, up_x_ptr, ht, wt, h2, w2, inv_t, inv_s, A, B, P, Q, GAUSSIAN
    )
    ys = tl.load(ys_ptr + tl.arange(0, P), mask=tl.arange(0, P) < h2, other=0.0)
    xs = tl.load(xs_ptr + tl.arange(0, Q), mask=tl.arange(0, Q) < w2, other=0.0)
    gx, gy = tl.load(grad_ptr + row * 2), tl.load(grad_ptr + row * 2 + 1)
    mean = gx * tl.load(flow_ptr + row * 2) + gy * tl.load(flow_ptr + row * 2 + 1)
    dfine = p * (gx * xs[None, :] + gy * ys[:, None] - mean) * inv_t
    if GAUSSIAN == 0:
        dfine = dfine * gaussian
    half = tl.dot(tl.trans(up_y), dfine, input_precision="tf32x3")  # (A, Q)
    drow = tl.dot(half, tl.trans(up_x), input_precision="tf32x3")  # (A, B)
    a, b = tl.arange(0, A), tl.arange(0, B)
    mask = (a < ht)[:, None] & (b < wt)[None, :]
    tl.store(drows_ptr + row * ht * wt + a[:, None] * wt + b[None, :], drow, mask=mask)


class _Readout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        up_y: Tensor,
        up_x: Tensor,
        ys: Tensor,
        xs: Tensor,
        inv_t: float,
        inv_s: float,
        gaussian: int,
    ) -> tuple[Tensor, Tensor]:
        n, ht, wt = rows.shape
        h2, w2 = len(up_y), len(up_x)
        flow, peak = torch.empty(n, 2, device=rows.device), torch.empty(n, device=rows.device)
        sizes = {key: max(16, triton.next_power_of_2(size)) for key, size in zip("ABPQ", (ht, wt, h2, w2), strict=True)}
        ctx.arguments = (ht, wt, h2, w2, inv_t, inv_s)
        ctx.constants = {**sizes, "GAUSSIAN": gaussian, "num_warps": 4 if sizes["P"] * sizes["Q"] <= 4096 else 8}
        _readout_kernel[(n,)](rows, up_y, up_x, ys, xs, flow, peak, *ctx.arguments, **ctx.constants)
        ctx.save_for_backward(rows, up_y, up_x, ys, xs, flow)
        ctx.mark_non_differentiable(peak)
        return flow, peak

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _peak: Tensor) -> tuple[Tensor | None, ...]:
        *saved, flow = ctx.saved_tensors
        drows = torch.empty_like(saved[0])
        _readout_backward_kernel[(len(flow),)](*saved, flow, grad.contiguous(), drows, *ctx.arguments, **ctx.constants)
        return drows, None, None, None, None, None, None, None


def read_out(
    rows: Float[Tensor, "b r ht wt"],
    up_y: Float[Tensor, "h2 ht"],
    up_x: Float[Tensor, "w2 wt"],
    positions: tuple[Float[Tensor, " h2"], Float[Tensor, " w2"]],
    *,
    sigma: float,
    temperature: float,
    gaussian: Literal["logits", "probabilities", "none"],
) -> tuple[Float[Tensor, "b r 2"], Float[Tensor, "b r"]]:
    """Scores of every source cell over the coarse target grid → expected target position and peak probability.

    ``up_y`` and ``up_x`` interpolate the target axes; the fine grid exists in registers only.
    """
    b, r, ht, wt = rows.shape
    flow, peak = _Readout.apply(
        rows.reshape(b * r, ht, wt).contiguous(), up_y.contiguous(), up_x.contiguous(), *positions,
        1 / temperature, 1 / (2 * sigma**2), GAUSSIAN[gaussian],
    )  # fmt: skip
    return flow.reshape(b, r, 2), peak.reshape(b, r)

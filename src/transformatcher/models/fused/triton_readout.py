"""Refined map → flow as one Triton kernel: upsampling, Gaussian at the peak, softmax and expectation."""

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

GAUSSIAN = {"logits": 0, "probabilities": 1, "none": 2}


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
    kernel_sigma: float,
    temperature: float,
    kernel_on: Literal["logits", "probabilities", "none"],
) -> tuple[Float[Tensor, "b r 2"], Float[Tensor, "b r"]]:
    """Scores of every source cell over the coarse target grid → expected target position and peak probability.

    ``up_y`` and ``up_x`` interpolate the target axes; the fine grid exists in registers only.
    """
    b, r, ht, wt = rows.shape
    flow, peak = _Readout.apply(
        rows.reshape(b * r, ht, wt).contiguous(), up_y.contiguous(), up_x.contiguous(), *positions,
        1 / temperature, 1 / (2 * kernel_sigma**2), GAUSSIAN[kernel_on],
    )  # fmt: skip
    return flow.reshape(b, r, 2), peak.reshape(b, r)

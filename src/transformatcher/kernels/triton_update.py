"""``update`` as Triton kernels: the matches are read and written once; the backward recomputes the block's inside."""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from transformatcher.kernels.passes import EPS, Ffn, Placement, Tokens, Turned, perpendicular
from transformatcher.kernels.triton_common import (
    Layout,
    dot,
    features_at,
    load_affine,
    normalise,
    normalise_backward,
    target_features,
)


@triton.jit
def _gelu(x):
    return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _gelu_slope(x):
    return 0.5 * (1 + tl.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit
def _turned_forward(
    x_hat, s, cos_target, sin_target, inner, inner_one, perp, perp_one, out, table, axes, n_max, ws, rows,
    KIND: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """What positions turn: (its value (D, T), the turned vectors (E, T), cosines, sines); or signs for cosines."""
    value = dot(inner, x_hat, LOW) + inner_one[:, None]
    cos = features_at(s, cos_target, rows // 2 * 2, table, axes, n_max, ws, KIND)
    if KIND == 2:
        sin = features_at(s, sin_target, rows // 2 * 2 + 1, table, axes, n_max, ws, KIND)
        value = cos * value + sin * (dot(perp, x_hat, LOW) + perp_one[:, None])
        result = dot(out, value, LOW)
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
    linear, linear_one = load_affine(linear_ptr + pair * D * (D + 1), columns, columns, D)
    w1 = tl.load(w1_ptr + hidden[:, None] * D + columns[None, :])
    w2 = tl.load(w2_ptr + columns[:, None] * H + hidden[None, :])
    b1, b2 = tl.load(b1_ptr + hidden), tl.load(b2_ptr + columns)
    if TURNED:
        inner, inner_one = load_affine(inner_ptr, rows, columns, D)
        perp, perp_one = load_affine(perp_ptr, rows, columns, D)
        out = tl.load(out_ptr + columns[:, None] * E + rows[None, :])
        cos_target = target_features(k, n_trg, rows // 2 * 2, table, axes, n_max, wt, KIND)
        sin_target = target_features(k, n_trg, rows // 2 * 2 + 1, table, axes, n_max, wt, KIND)
    for s in range(chunk * cells, tl.minimum(chunk * cells + cells, n_src)):
        offset = pair.to(tl.int64) * D * t_all + columns[:, None].to(tl.int64) * t_all + s * n_trg + k[None, :]
        x = tl.load(x_ptr + offset, mask=inside[None, :], other=0.0)
        x_hat, _ = normalise(x, EPS, D)
        x += dot(linear, x_hat, LOW) + linear_one[:, None]
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
        x_hat, _ = normalise(x, EPS, D)
        active = _gelu(dot(w1, x_hat, LOW) + b1[:, None])
        x += dot(w2, active, LOW) + b2[:, None]
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
    linear, linear_one = load_affine(linear_ptr + pair * D * (D + 1), columns, columns, D)
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
        inner, inner_one = load_affine(inner_ptr, rows, columns, D)
        perp, perp_one = load_affine(perp_ptr, rows, columns, D)
        out = tl.load(out_ptr + columns[:, None] * E + rows[None, :])
        cos_target = target_features(k, n_trg, rows // 2 * 2, table, axes, n_max, wt, KIND)
        sin_target = target_features(k, n_trg, rows // 2 * 2 + 1, table, axes, n_max, wt, KIND)
        dinner = tl.zeros((E, D), tl.float32)
        dinner_one = tl.zeros((E,), tl.float32)
        dperp = tl.zeros((E, D), tl.float32)
        dperp_one = tl.zeros((E,), tl.float32)
        dout = tl.zeros((D, E), tl.float32)
    for s in range(chunk * cells, tl.minimum(chunk * cells + cells, n_src)):
        offset = pair.to(tl.int64) * D * t_all + columns[:, None].to(tl.int64) * t_all + s * n_trg + k[None, :]
        x = tl.load(x_ptr + offset, mask=inside[None, :], other=0.0)
        dx = tl.load(dy_ptr + offset, mask=inside[None, :], other=0.0)
        x_hat, rstd = normalise(x, EPS, D)
        x += dot(linear, x_hat, LOW) + linear_one[:, None]
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
        x_hat1, rstd1 = normalise(x, EPS, D)
        before = dot(w1, x_hat1, LOW) + b1[:, None]
        dw2 += dot(dx, tl.trans(_gelu(before)), LOW)
        db2 += tl.sum(dx, axis=1)
        dbefore = dot(tl.trans(w2), dx, LOW) * _gelu_slope(before)
        dw1 += dot(dbefore, tl.trans(x_hat1), LOW)
        db1 += tl.sum(dbefore, axis=1)
        dx += normalise_backward(dot(tl.trans(w1), dbefore, LOW), x_hat1, rstd1, D)
        # the attention's output
        dlinear += dot(dx, tl.trans(x_hat), LOW)
        dlinear_one += tl.sum(dx, axis=1)
        dx_hat = dot(tl.trans(linear), dx, LOW)
        if TURNED:
            if KIND == 2:
                dout += dot(dx, tl.trans(turned), LOW)
                dturned = dot(tl.trans(out), dx, LOW)
                dsin = sin * dturned
                dperp += dot(dsin, tl.trans(x_hat), LOW)
                dperp_one += tl.sum(dsin, axis=1)
                dx_hat += dot(tl.trans(perp), dsin, LOW)
                dcos = cos * dturned
            else:
                dcos = cos * dx
            dinner += dot(dcos, tl.trans(x_hat), LOW)
            dinner_one += tl.sum(dcos, axis=1)
            dx_hat += dot(tl.trans(inner), dcos, LOW)
        dx += normalise_backward(dx_hat, x_hat, rstd, D)
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


class _Update(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, linear: Tensor, inner: Tensor, perp: Tensor, out: Tensor,
        w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, layout: Layout, turned: bool, low: bool,
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


def update(
    x: Tokens, linear: Float[Tensor, "b d d1"], place: Placement, turned: Turned | None, ffn: Ffn, *, low: bool
) -> Tokens:
    """:func:`transformatcher.kernels.passes.update`, fused."""
    nothing = x.new_zeros(16, 1)
    inner, perp, out = (nothing, nothing, nothing)
    if turned is not None:
        inner, perp, out = turned.inner.contiguous(), perpendicular(turned.inner).contiguous(), turned.out.contiguous()
    weights = (ffn.weight1.contiguous(), ffn.bias1.contiguous(), ffn.weight2.contiguous(), ffn.bias2.contiguous())
    layout = Layout.of(place, x.device)
    return _Update.apply(
        x.contiguous(), linear.contiguous(), inner, perp, out, *weights, layout, turned is not None, low
    )

"""Matches → matches (``update``) as Triton kernels.

Forward reads and writes the matches once. Backward recomputes everything in between.
"""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from transformatcher.models.fused.passes import EPS, Ffn, PositionFeatures, RotatedTerm, Tokens, perpendicular
from transformatcher.models.fused.triton_common import (
    Layout,
    dot,
    load_affine,
    load_folded,
    narrow,
    normalise,
    normalise_backward,
    normalise_with_one,
    on_source,
    on_target,
)


@triton.jit
def _gelu(x, LOW: tl.constexpr):
    """x Φ(x). If low, Φ = 1/2 + x · polynomial(x²), clipped: off by at most 1.7e-4, less than bfloat16 resolves."""
    if LOW:
        u = x * x
        p = 2.45030588e-8 * u - 1.6844667e-6
        p = p * u + 4.96152118e-5
        p = p * u - 8.29627247e-4
        p = p * u + 8.84564388e-3
        p = p * u - 6.47284691e-2
        p = p * u + 0.397990623
        phi = tl.minimum(tl.maximum(0.5 + x * p, 0.0), 1.0)  # fused with the sum into one instruction
    else:
        phi = 0.5 * (1 + tl.erf(x * 0.7071067811865476))
    return x * phi


@triton.jit
def _gelu_slope(x):
    return 0.5 * (1 + tl.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit
def _update_kernel(
    x_ptr, linear_ptr, inner_ptr, out_ptr, w1_ptr, b1_ptr, w2_ptr, b2_ptr, source_ptr, target_ptr, y_ptr,
    n_src, n_trg, cells,
    D: tl.constexpr, E: tl.constexpr, H: tl.constexpr, T: tl.constexpr, KIND: tl.constexpr, ROTATED: tl.constexpr,
    LOW: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Matches are the rows of all tiles, so that the result of a dot product is the left operand of the next one."""
    part, chunk, pair = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    k = part * T + tl.arange(0, T)[:, None]
    inside = k < n_trg
    t_all = n_src * n_trg
    columns, row, hidden, planes = tl.arange(0, D), tl.arange(0, D)[:, None], tl.arange(0, H), tl.arange(0, E // 2)
    at = linear_ptr + (pair * D + columns[None, :]) * (D + 1)
    linear = narrow(load_folded(at, at + D, row, D), LOW)
    w1 = narrow(load_folded(w1_ptr + hidden[None, :] * D, b1_ptr + hidden[None, :], row, D), LOW)
    w2 = narrow(tl.load(w2_ptr + columns[None, :] * H + hidden[:, None]), LOW)
    b2 = tl.load(b2_ptr + columns[None, :])
    if ROTATED:
        if KIND == 2:  # rotate each plane; one matrix holds the first row of all planes, another the second
            at = inner_ptr + 2 * planes[None, :] * (D + 1)
            inner = narrow(load_folded(at, at + D, row, D), LOW)
            inner1 = narrow(load_folded(at + D + 1, at + 2 * D + 1, row, D), LOW)
            at = out_ptr + columns[None, :] * E + 2 * planes[:, None]
            out = narrow(tl.load(at), LOW)
            out1 = narrow(tl.load(at + 1), LOW)
            cos_target = on_target(target_ptr, planes[None, :], k, n_trg, KIND)
            sin_target = on_target(target_ptr, planes[None, :] + E // 2, k, n_trg, KIND)
        else:
            at = inner_ptr + columns[None, :] * (D + 1)
            inner = narrow(load_folded(at, at + D, row, D), LOW)
            sign_target = on_target(target_ptr, 0, k, n_trg, KIND)
    offset = pair.to(tl.int64) * D * t_all + columns[None, :].to(tl.int64) * t_all + k
    for s in range(chunk * cells, tl.minimum(chunk * cells + cells, n_src)):
        x = tl.load(x_ptr + offset + s * n_trg, mask=inside, other=0.0)
        x_hat = narrow(normalise_with_one(x, columns[None, :], EPS, D, 1), LOW)
        x = dot(x_hat, linear, LOW, x)
        if ROTATED:
            value = dot(x_hat, inner, LOW)
            if KIND == 2:
                value1 = dot(x_hat, inner1, LOW)
                cos = on_source(source_ptr, planes[None, :], s, E, KIND) * cos_target
                sin = on_source(source_ptr, planes[None, :] + E // 2, s, E, KIND) * sin_target
                x = dot(cos * value - sin * value1, out, LOW, x)
                x = dot(cos * value1 + sin * value, out1, LOW, x)
            else:
                x += value * (on_source(source_ptr, 0, s, E, KIND) * sign_target)
        x_hat = normalise_with_one(x, columns[None, :], EPS, D, 1)
        x = dot(_gelu(dot(x_hat, w1, LOW), LOW), w2, LOW, x + b2)
        tl.store(y_ptr + offset + s * n_trg, x, mask=inside)


@triton.jit
def _update_backward_kernel(
    x_ptr, linear_ptr, inner_ptr, perp_ptr, out_ptr, w1_ptr, b1_ptr, w2_ptr, source_ptr, target_ptr,
    dy_ptr, dx_ptr, dlinear_ptr, dinner_ptr, dperp_ptr, dout_ptr, dw1_ptr, dw2_ptr, db2_ptr, n_src, n_trg, cells,
    D: tl.constexpr, E: tl.constexpr, H: tl.constexpr, T: tl.constexpr, KIND: tl.constexpr, ROTATED: tl.constexpr,
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
    if ROTATED:
        inner, inner_one = load_affine(inner_ptr, rows, columns, D)
        perp, perp_one = load_affine(perp_ptr, rows, columns, D)
        out = tl.load(out_ptr + columns[:, None] * E + rows[None, :])
        plane = rows[:, None] // 2
        cos_target = on_target(target_ptr, plane, k[None, :], n_trg, KIND)
        sin_target = on_target(target_ptr, plane + E // 2, k[None, :], n_trg, KIND)
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
        if ROTATED:
            rotated = dot(inner, x_hat, LOW) + inner_one[:, None]
            cos = on_source(source_ptr, plane, s, E, KIND) * cos_target  # or signs
            if KIND == 2:
                sin = on_source(source_ptr, plane + E // 2, s, E, KIND) * sin_target
                rotated = cos * rotated + sin * (dot(perp, x_hat, LOW) + perp_one[:, None])
                x += dot(out, rotated, LOW)
            else:
                x += cos * rotated
        # the MLP
        x_hat1, rstd1 = normalise(x, EPS, D)
        before = dot(w1, x_hat1, LOW) + b1[:, None]
        dw2 += dot(dx, tl.trans(_gelu(before, LOW)), LOW)
        db2 += tl.sum(dx, axis=1)
        dbefore = dot(tl.trans(w2), dx, LOW) * _gelu_slope(before)
        dw1 += dot(dbefore, tl.trans(x_hat1), LOW)
        db1 += tl.sum(dbefore, axis=1)
        dx += normalise_backward(dot(tl.trans(w1), dbefore, LOW), x_hat1, rstd1, D)
        # the attention's output
        dlinear += dot(dx, tl.trans(x_hat), LOW)
        dlinear_one += tl.sum(dx, axis=1)
        dx_hat = dot(tl.trans(linear), dx, LOW)
        if ROTATED:
            if KIND == 2:
                dout += dot(dx, tl.trans(rotated), LOW)
                drotated = dot(tl.trans(out), dx, LOW)
                dsin = sin * drotated
                dperp += dot(dsin, tl.trans(x_hat), LOW)
                dperp_one += tl.sum(dsin, axis=1)
                dx_hat += dot(tl.trans(perp), dsin, LOW)
                dcos = cos * drotated
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
    if ROTATED:
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
        ctx: Any, x: Tensor, linear: Tensor, inner: Tensor, out: Tensor,
        w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, layout: Layout, rotated: bool, low: bool,
    ) -> Tensor:  # fmt: skip
        b, d, _ = x.shape
        grid, cells, options = layout.launch("update", b)
        y = torch.empty_like(x)
        widths = {"D": d, "E": len(inner), "H": len(w1)}
        constants = {**widths, "KIND": layout.kind, "ROTATED": rotated, "LOW": low, "EPS": EPS}
        weights = (linear, inner, out, w1, b1, w2, b2)
        _update_kernel[grid](
            x, *weights, layout.source, layout.target, y, *layout.numbers, cells, **constants, **options
        )
        ctx.save_for_backward(x, *weights)
        ctx.layout, ctx.constants = layout, constants
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, linear, inner, out, w1, b1, w2, _ = ctx.saved_tensors
        (b, d, _), layout, e, hidden = x.shape, ctx.layout, ctx.constants["E"], ctx.constants["H"]
        grid, cells, options = layout.launch("update_backward", b)

        def partial(*shape: int) -> Tensor:
            return torch.zeros(b, grid[0] * grid[1], *shape, device=x.device)

        dx, dlinear, dinner, dperp = torch.empty_like(x), partial(d, d + 1), partial(e, d + 1), partial(e, d + 1)
        dout, dw1, dw2, db2 = partial(d, e), partial(hidden, d + 1), partial(d, hidden), partial(d)
        _update_backward_kernel[grid](
            x, linear, inner, perpendicular(inner), out, w1, b1, w2, layout.source, layout.target, dy.contiguous(),
            dx, dlinear, dinner, dperp, dout, dw1, dw2, db2, *layout.numbers, cells, **ctx.constants, **options,
        )  # fmt: skip
        dw1 = dw1.sum(dim=(0, 1))
        # The gradient of a rotation by 90° is a rotation by -90°, which is minus a rotation by 90°.
        dinner = dinner.sum(dim=(0, 1)) - perpendicular(dperp.sum(dim=(0, 1)))
        return (
            dx, dlinear.sum(dim=1), dinner, dout.sum(dim=(0, 1)),
            dw1[:, :-1], dw1[:, -1], dw2.sum(dim=(0, 1)), db2.sum(dim=(0, 1)), None, None, None,
        )  # fmt: skip


def update(
    x: Tokens,
    linear: Float[Tensor, "b d d1"],
    positions: PositionFeatures,
    rotated: RotatedTerm | None,
    ffn: Ffn,
    *,
    low: bool,
) -> Tokens:
    """:func:`transformatcher.models.fused.passes.update` as Triton kernels; with ``low``, products are in bfloat16."""
    inner, out = (x.new_zeros(32, 1),) * 2 if rotated is None else (rotated.inner, rotated.out)
    slots = max(16, triton.next_power_of_2(len(inner) // 2))  # slots for planes: dot products need at least 16 rows
    if rotated is not None and positions.kind == "rotary" and len(inner) < 2 * slots:
        inner, out = F.pad(inner, (0, 0, 0, 2 * slots - len(inner))), F.pad(out, (0, 2 * slots - len(inner)))
    weights = (inner, out, ffn.weight1, ffn.bias1, ffn.weight2, ffn.bias2)
    return _Update.apply(
        x.contiguous(), linear.contiguous(), *(w.contiguous() for w in weights),
        Layout.of(positions, x.device, 2, slots), rotated is not None, low,
    )  # fmt: skip

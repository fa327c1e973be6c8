"""Matches → weighted sums of matches (``pool``) as Triton kernels.

Forward reads the matches once. Backward reads them once more and recomputes the softmax weights.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from transformatcher.models.fused.passes import EPS, PositionFeatures, Tokens
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
    regroup,
    ungroup,
)


@triton.jit
def _sum_groups(a, J: tl.constexpr, G: tl.constexpr, T: tl.constexpr):
    """a (J, T): every row becomes the sum of its head's G rows, which lie J / G apart, so one thread holds them."""
    if G > 1:
        total = tl.sum(tl.reshape(a, (G, J // G, T)), axis=0)
        a = tl.reshape(tl.broadcast_to(total[None, :, :], (G, J // G, T)), (J, T))
    return a


@triton.jit
def _pool_kernel(
    x_ptr, score_ptr, source_ptr, target_ptr, top_ptr, total_ptr, sums_ptr, n_src, n_trg, cells,
    D: tl.constexpr, J: tl.constexpr, G: tl.constexpr, T: tl.constexpr, KIND: tl.constexpr, ROTATE: tl.constexpr,
    LOW: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """One chunk of one pair: running softmax, as in flash attention, with J fixed queries.

    Scores are a tile (J, T), so that their weights are the left side of the second dot product as they leave the
    first. Exponents are of base 2, which the hardware computes directly.
    """
    part, chunk, pair = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    k = part * T + tl.arange(0, T)[None, :]
    inside = k < n_trg
    t_all = n_src * n_trg
    rows, columns, heads = tl.arange(0, J)[:, None], tl.arange(0, D), tl.arange(0, J // G)
    at = score_ptr + (pair * J + rows) * (D + 1)
    score = narrow(load_folded(at, at + D, columns[None, :], D) * 1.4426950408889634, LOW)  # log2(e)
    top = tl.full((J // G,), -float("inf"), tl.float32)
    total = tl.zeros((J // G,), tl.float32)
    sums = tl.zeros((J, D), tl.float32)
    by_target = on_target(target_ptr, rows, k, n_trg, KIND)
    if KIND == 2:
        by_target = tl.reshape(by_target, (G, J // G, T))
    elif KIND == 1:
        by_target = by_target[None]
    x_at = x_ptr + pair.to(tl.int64) * D * t_all + columns[:, None].to(tl.int64) * t_all + k
    for s in range(chunk * cells, tl.minimum(chunk * cells + cells, n_src)):
        x = tl.load(x_at + s * n_trg, mask=inside, other=0.0)
        x = narrow(normalise_with_one(x, columns[:, None], EPS, D, 0), LOW)
        by_source = on_source(source_ptr, rows, s, J, KIND)
        logit = dot(score, x, LOW)
        if ROTATE:
            logit = tl.reshape(logit * by_source, (G, J // G, T)) * by_target
        logit = tl.sum(tl.reshape(logit, (G, J // G, T)), axis=0)  # a head's rows lie J / G apart: in one thread
        logit = tl.where(inside, logit, -float("inf"))
        new_top = tl.maximum(top, tl.max(logit, axis=1))  # finite: every tile holds a match
        fade = tl.exp2(top - new_top)
        p = tl.exp2(logit - new_top[:, None])
        total = total * fade + tl.sum(p, axis=1)
        weighted = narrow(tl.broadcast_to(p[None], (G, J // G, T)) * by_target, LOW)
        fade = tl.reshape(tl.broadcast_to(fade[None], (G, J // G)), (J,))
        sums = sums * fade[:, None] + by_source * dot(tl.reshape(weighted, (J, T)), tl.trans(x), LOW)
        top = new_top
    chunks = tl.num_programs(1) * tl.num_programs(0)
    chunk = chunk * tl.num_programs(0) + part
    out = (pair * (J // G) + heads) * chunks + chunk
    tl.store(top_ptr + out, top)
    tl.store(total_ptr + out, total)
    tl.store(sums_ptr + ((pair * J + rows) * chunks + chunk) * D + columns[None, :], sums)


@triton.jit
def _combine_kernel(
    top_ptr, total_ptr, sums_ptr, out_ptr, lse_ptr, chunks, J: tl.constexpr, G: tl.constexpr, D: tl.constexpr,
    C: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """The chunks of one row of one pair → its weighted sums, and the logarithm of its softmax's denominator."""
    row, pair = tl.program_id(0), tl.program_id(1)
    w = tl.arange(0, W)
    from_column = tl.where(w < D, w, D - 1)  # the sum of ones is stored as the last channel
    highest = -float("inf")
    total = 0.0
    sums = tl.zeros((W,), tl.float32)
    for start in range(0, chunks, C):
        c = start + tl.arange(0, C)
        at = (pair * (J // G) + row % (J // G)) * chunks + c
        top = tl.load(top_ptr + at, mask=c < chunks, other=-float("inf"))
        new_highest = tl.maximum(highest, tl.max(top, axis=0))  # finite: every chunk holds a match
        fade = tl.exp2(highest - new_highest)
        scale = tl.exp2(top - new_highest)
        total = total * fade + tl.sum(scale * tl.load(total_ptr + at, mask=c < chunks, other=0.0), axis=0)
        mask = (c < chunks)[:, None] & (w <= D)[None, :]
        at = (pair * J + row) * chunks + c
        part = tl.load(sums_ptr + at[:, None] * D + from_column[None, :], mask=mask, other=0.0)
        sums = sums * fade + tl.sum(part * scale[:, None], axis=0)
        highest = new_highest
    last = -tl.sum(tl.where(w < D - 1, sums, 0.0), axis=0)  # channels of x̂ sum to zero
    sums = tl.where(w == D - 1, last, sums)
    tl.store(out_ptr + (pair * J + row) * (D + 1) + w, sums / total, mask=w <= D)
    tl.store(lse_ptr + pair * J + row, (highest + tl.log2(total)) * 0.6931471805599453)  # ln(2)


@triton.jit
def _pool_backward_kernel(
    x_ptr, score_ptr, source_ptr, target_ptr, lse_ptr, grad_ptr, delta_ptr, dx_ptr, dscore_ptr, n_src, n_trg, cells,
    D: tl.constexpr, J: tl.constexpr, G: tl.constexpr, T: tl.constexpr, KIND: tl.constexpr, ROTATE: tl.constexpr,
    LOW: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    part, chunk, pair = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    k = part * T + tl.arange(0, T)
    inside = k < n_trg
    t_all = n_src * n_trg
    rows, columns = tl.arange(0, J), tl.arange(0, D)
    score, bias = load_affine(score_ptr + pair * J * (D + 1), rows, columns, D)
    grad, grad_one = load_affine(grad_ptr + pair * J * (D + 1), rows, columns, D)
    lse, delta = tl.load(lse_ptr + pair * J + rows), tl.load(delta_ptr + pair * J + rows)
    dscore = tl.zeros((J, D), tl.float32)
    dbias = tl.zeros((J,), tl.float32)
    by_target = on_target(target_ptr, rows[:, None], k[None, :], n_trg, KIND)
    for s in range(chunk * cells, tl.minimum(chunk * cells + cells, n_src)):
        offset = pair.to(tl.int64) * D * t_all + columns[:, None].to(tl.int64) * t_all + s * n_trg + k[None, :]
        x_hat, rstd = normalise(tl.load(x_ptr + offset, mask=inside[None, :], other=0.0), EPS, D)
        features = on_source(source_ptr, rows[:, None], s, J, KIND) * by_target
        logit = dot(score, x_hat, LOW) + bias[:, None]
        if ROTATE:
            logit = logit * features
        logit = _sum_groups(logit, J, G, T)
        p = tl.where(inside[None, :], tl.exp(logit - lse[:, None]), 0.0)
        dp = _sum_groups((dot(grad, x_hat, LOW) + grad_one[:, None]) * features, J, G, T)
        ds = p * (dp - delta[:, None])
        if ROTATE:
            ds = ds * features
        dscore += dot(ds, tl.trans(x_hat), LOW)
        dbias += tl.sum(ds, axis=1)
        dx_hat = dot(tl.trans(score), ds, LOW) + dot(tl.trans(grad), p * features, LOW)
        tl.store(dx_ptr + offset, normalise_backward(dx_hat, x_hat, rstd, D), mask=inside[None, :])
    out = ((pair * tl.num_programs(1) + chunk) * tl.num_programs(0) + part) * J + rows
    tl.store(dscore_ptr + out[:, None] * (D + 1) + columns[None, :], dscore)
    tl.store(dscore_ptr + out * (D + 1) + D, dbias)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scores: Tensor, layout: Layout, group: int, rotate: bool, low: bool) -> Tensor:
        b, d, _ = x.shape
        j = scores.shape[1]
        grid, cells, options = layout.launch("pool", b)
        chunks = grid[0] * grid[1]
        top, total = (torch.empty(b, j // group, chunks, device=x.device) for _ in range(2))
        sums = torch.empty(b, j, chunks, d, device=x.device)
        out, lse = torch.empty_like(scores), torch.empty(b, j, device=x.device)
        constants = {"D": d, "J": j, "G": group, "KIND": layout.kind, "ROTATE": rotate, "LOW": low, "EPS": EPS}
        _pool_kernel[grid](
            x, scores, layout.source, layout.target, top, total, sums, *layout.numbers, cells, **constants, **options
        )
        _combine_kernel[(j, b)](
            top, total, sums, out, lse, chunks, J=j, G=group, D=d, C=128, W=triton.next_power_of_2(d + 1),
        )  # fmt: skip
        ctx.save_for_backward(x, scores, out, lse)
        ctx.layout, ctx.constants = layout, constants
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, scores, out, lse = ctx.saved_tensors
        (b, d, _), j, layout, group = x.shape, scores.shape[1], ctx.layout, ctx.constants["G"]
        grad = grad.contiguous()
        # Σ_t p · dp of a head follows from its sums, as in flash attention.
        delta = (grad * out).sum(dim=-1).unflatten(1, (group, -1)).sum(dim=1).repeat(1, group)
        grid, cells, options = layout.launch("pool_backward", b)
        dx = torch.empty_like(x)
        dscores = torch.empty(b, grid[0] * grid[1], j, d + 1, device=x.device)
        _pool_backward_kernel[grid](
            x, scores, layout.source, layout.target, lse, grad, delta, dx, dscores, *layout.numbers, cells,
            **ctx.constants, **options,
        )  # fmt: skip
        return dx, dscores.sum(dim=1), None, None, None, None


def pool(
    x: Tokens,
    scores: Float[Tensor, "b j d1"],
    positions: PositionFeatures,
    *,
    heads: int,
    rotate_scores: bool,
    low: bool,
) -> Float[Tensor, "b j d1"]:
    """:func:`transformatcher.models.fused.passes.pool` as Triton kernels; with ``low``, products are in bfloat16."""
    group = scores.shape[1] // heads
    slots = max(16 // group, triton.next_power_of_2(heads))  # slots for heads: dot products need at least 16 rows
    layout = Layout.of(positions, x.device, group, slots)
    rows = regroup(scores, 1, group, slots).contiguous()
    return ungroup(_Pool.apply(x.contiguous(), rows, layout, group, rotate_scores, low), 1, group, heads)

"""Correlation → matches as Triton kernels: every match is a linear map of its similarities at all layers."""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from transformatcher.models.fused.triton_common import dot


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

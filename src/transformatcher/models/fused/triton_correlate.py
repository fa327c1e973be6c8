"""Features of one layer → cosine map as one Triton kernel: products on tensor cores, then division by the norms."""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor


@triton.jit
def _cosine_kernel(
    src_ptr, trg_ptr, src_norm_ptr, trg_norm_ptr, out_ptr, n_src, n_trg, channels, src_stride, trg_stride, out_stride,
    RELU: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(2).to(tl.int64)
    i = tl.program_id(0) * M + tl.arange(0, M)
    j = tl.program_id(1) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    src = src_ptr + pair * src_stride + i[:, None] * channels + k[None, :]
    trg = trg_ptr + pair * trg_stride + j[None, :] * channels + k[:, None]
    products = tl.zeros((M, N), tl.float32)
    for start in range(0, channels, K):
        inside = k + start < channels
        a = tl.load(src + start, mask=(i < n_src)[:, None] & inside[None, :], other=0.0)
        b = tl.load(trg + start, mask=(j < n_trg)[None, :] & inside[:, None], other=0.0)
        products = tl.dot(a, b, products, input_precision="tf32x3")
    src_norm = tl.load(src_norm_ptr + pair * n_src + i, mask=i < n_src, other=1.0)
    trg_norm = tl.load(trg_norm_ptr + pair * n_trg + j, mask=j < n_trg, other=1.0)
    cosine = products / (tl.maximum(src_norm, 1e-12)[:, None] * tl.maximum(trg_norm, 1e-12)[None, :])
    if RELU:
        cosine = tl.maximum(cosine, 0.0)
    out = out_ptr + pair * out_stride + i[:, None] * n_trg + j[None, :]
    tl.store(out, cosine.to(out_ptr.dtype.element_ty), mask=(i < n_src)[:, None] & (j < n_trg)[None, :])


@triton.jit
def _cosine_backward_kernel(
    grad_ptr, own_ptr, other_ptr, own_norm_ptr, other_norm_ptr, along_ptr, out_ptr, n_own, n_other, channels,
    own_stride, other_stride, grad_stride, grad_row, grad_column, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Gradient of one side's features: (Σ_j grad_ij f_j / |f_j| - along_i f_i / |f_i|) / |f_i|."""
    pair = tl.program_id(2).to(tl.int64)
    i = tl.program_id(0) * M + tl.arange(0, M)
    c = tl.program_id(1) * N + tl.arange(0, N)
    j = tl.arange(0, K)
    here = (i < n_own)[:, None] & (c < channels)[None, :]
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, n_other, K):
        there = j + start < n_other
        at = grad_ptr + pair * grad_stride + i[:, None] * grad_row + (j + start)[None, :] * grad_column
        grad = tl.load(at, mask=(i < n_own)[:, None] & there[None, :], other=0.0)
        norm = tl.load(other_norm_ptr + pair * n_other + j + start, mask=there, other=1.0)
        grad = (grad / tl.maximum(norm, 1e-12)[None, :]).to(other_ptr.dtype.element_ty)
        at = other_ptr + pair * other_stride + (j + start)[:, None] * channels + c[None, :]
        other = tl.load(at, mask=there[:, None] & (c < channels)[None, :], other=0.0)
        total = tl.dot(grad, other, total, input_precision="tf32x3")
    norm = tl.maximum(tl.load(own_norm_ptr + pair * n_own + i, mask=i < n_own, other=1.0), 1e-12)
    along = tl.load(along_ptr + pair * n_own + i, mask=i < n_own, other=0.0)
    offset = pair * own_stride + i[:, None] * channels + c[None, :]
    own = tl.load(own_ptr + offset, mask=here, other=0.0).to(tl.float32)
    out = (total - own * (along / norm)[:, None]) / norm[:, None]
    out_at = out_ptr + pair * n_own * channels + i[:, None] * channels + c[None, :]
    tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=here)


class _Cosine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, src: Tensor, trg: Tensor, relu: bool, dtype: torch.dtype) -> Tensor:
        norms = [torch.linalg.vector_norm(f, dim=2, dtype=torch.float32) for f in (src, trg)]
        (b, n_src, channels), n_trg = src.shape, trg.shape[1]
        out = torch.empty(b, n_src, n_trg, dtype=dtype, device=src.device)
        m = 128 if min(n_src, n_trg) > 64 and b >= 8 else 64
        _cosine_kernel[(triton.cdiv(n_src, m), triton.cdiv(n_trg, m), b)](
            src, trg, *norms, out, n_src, n_trg, channels, src.stride(0), trg.stride(0), out.stride(0),
            RELU=relu, M=m, N=m, K=64, num_warps=8 if m == 128 else 4, num_stages=3,
        )  # fmt: skip
        ctx.save_for_backward(src, trg, *norms, out)
        ctx.relu = relu
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        src, trg, src_norm, trg_norm, out = ctx.saved_tensors
        grad = grad * (out > 0) if ctx.relu else grad.contiguous()
        along = grad.float() * out
        sides = ((src, trg, src_norm, trg_norm, 2), (trg, src, trg_norm, src_norm, 1))
        grads = []
        for own, other, own_norm, other_norm, dim in sides:
            (b, n_own, channels), n_other = own.shape, other.shape[1]
            result = torch.empty_like(own, memory_format=torch.contiguous_format)
            row, column = (grad.stride(1), grad.stride(2)) if own is src else (grad.stride(2), grad.stride(1))
            _cosine_backward_kernel[(triton.cdiv(n_own, 64), triton.cdiv(channels, 128), b)](
                grad, own, other, own_norm, other_norm, along.sum(dim=dim), result, n_own, n_other, channels,
                own.stride(0), other.stride(0), grad.stride(0), row, column, M=64, N=128, K=64, num_warps=4,
            )  # fmt: skip
            grads.append(result)
        return grads[0], grads[1], None, None


def cosine_map(
    src: Float[Tensor, "b c hs ws"], trg: Float[Tensor, "b c ht wt"], *, relu: bool, dtype: torch.dtype
) -> Float[Tensor, "b s t"]:
    """Cosine similarity of every source cell with every target cell, clipped at zero if ``relu``, in ``dtype``."""
    # (b, cells, c): no copy where channels are last already
    src, trg = (_rows(f.permute(0, 2, 3, 1).flatten(1, 2)) for f in (src, trg))
    return _Cosine.apply(src, trg, relu, dtype)


def _rows(features: Float[Tensor, "b n c"]) -> Float[Tensor, "b n c"]:
    """The features with the channels of a cell, and the cells of an image, next to each other in memory."""
    _, n, c = features.shape
    return features if features.stride()[1:] == (c, 1) or n == 1 else features.contiguous()

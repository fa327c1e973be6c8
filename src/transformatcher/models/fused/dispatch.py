"""Stage, backend and tensor → which implementation runs: Triton, the passes in C or in PyTorch, or the eager code."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.models.attention import PaperAttention, ReleasedAttention
from transformatcher.models.backend import Backend
from transformatcher.models.block import Block
from transformatcher.models.fused import native, passes
from transformatcher.models.fused.fold import additive_attention
from transformatcher.models.rotary import AxialRotary, Checkerboard, NoPosition


def can_fuse(attention: nn.Module) -> bool:
    """Whether the passes can compute this attention: the paper's or the released one, with a position they know."""
    return type(attention) in (PaperAttention, ReleasedAttention) and type(attention.position) in (
        AxialRotary,
        Checkerboard,
        NoPosition,
    )


def triton_runs_on(tensor: Tensor) -> bool:
    """Whether Triton kernels can take this tensor: on CUDA if Triton is installed, or under Triton's interpreter."""
    if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16) or find_spec("triton") is None:
        return False
    return tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"


def use_triton(backend: Backend, tensor: Tensor) -> bool:
    """Whether correlation or read-out run their Triton kernel: with ``auto`` on CUDA only, with ``fused`` anywhere.

    Without Triton both run the eager code, whatever the backend.
    """
    return backend != "eager" and triton_runs_on(tensor) and (tensor.is_cuda or backend == "fused")


@dataclass(frozen=True)
class Passes:
    """The passes over the matches, on one device."""

    embed: Callable[..., Tensor]
    pool: Callable[..., Tensor]
    update: Callable[..., Tensor]


def choose_passes(corr: Float[Tensor, "b l t"], blocks: Sequence[Block]) -> Passes:
    """Triton kernels or the library in C if they run on ``corr`` and take the widths of all blocks, else PyTorch.

    For a correlation in bfloat16 or float16 the Triton kernels multiply matrices in bfloat16.
    """
    if triton_runs_on(corr):
        from transformatcher.models.fused import triton_common, triton_embed, triton_pool, triton_update

        if all(triton_common.fits(*_widths(block)) for block in blocks):
            low = corr.dtype != torch.float32
            return Passes(
                partial(triton_embed.embed, low=low),
                partial(triton_pool.pool, low=low),
                partial(triton_update.update, low=low),
            )
    if native.runs_on(corr) and all(native.fits(*_widths(block)) for block in blocks):
        return Passes(passes.embed, native.pool, native.update)
    return Passes(passes.embed, passes.pool, passes.update)


def native_input(corr: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"] | None:
    """The correlation in float32 if the library in C can take it, else None.

    In lower precision it would not be faster on a CPU.
    """
    if corr.dtype in (torch.bfloat16, torch.float16):
        return corr.float() if native.runs_on(corr.new_empty(0, dtype=torch.float32)) else None
    return corr if native.runs_on(corr) else None


def _widths(block: Block) -> tuple[int, int, int]:
    """Channels of a match, of all heads together, and of the MLP's hidden layer."""
    first = cast(nn.Linear, block.ffn[0])
    return first.in_features, additive_attention(block).to_out.in_features, first.out_features

"""For the tests of ``models/fused/``: stages with random weights, both backends side by side, kernels compiled."""

import importlib
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.tensors import randomise
from torch import Tensor, nn

from transformatcher.models.attention import PaperAttention, ReleasedAttention
from transformatcher.models.fused import native
from transformatcher.models.match2match import MatchToMatch
from transformatcher.models.rotary import AxialRotary, Checkerboard, NoPosition

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Axes of odd and even length, nothing square, source unlike target; then source like target. Triton's interpreter takes
# the time of a Python loop over source cells, so it gets fewer.
GRIDS = [(2, 3, 3, 2), (3, 2, 3, 2)] if INTERPRETED else [(3, 4, 2, 5), (5, 3, 5, 3), (1, 2, 9, 8)]
KINDS = [PaperAttention, ReleasedAttention]
needs_library = pytest.mark.skipif(native.instruction_set() is None, reason="the library in C was not built")
POSITIONS = [NoPosition, Checkerboard, lambda: AxialRotary(8, 4), lambda: AxialRotary(8, 4, frequencies=2)]


def make_refiner(kind: Callable[..., nn.Module], position: Callable[[], Any], depth: int = 2) -> MatchToMatch:
    """A refiner for three layers with random weights."""
    refiner = MatchToMatch(3, depth=depth, make_attention=lambda d: kind(d, position=position()))
    randomise(refiner)
    return refiner


def outcome(module: Any, backend: str, *inputs: Tensor) -> list[Tensor]:
    """Output of a stage, and the gradients of its inputs and parameters."""
    module.set_backend(backend)
    leaves = tuple(x.detach().clone().requires_grad_() for x in inputs)
    out = module(*leaves)
    out = getattr(out, "trg_norm", out)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype, device=out.device).reshape(out.shape)
    grads = torch.autograd.grad((out * weights).sum(), (*leaves, *module.parameters()))
    return [out.detach(), *grads]


def worst(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest error, relative to the largest value of each tensor."""
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in zip(ours, theirs, strict=True))


def compile_kernel(module: str, kernel: str, constants: dict[str, Any], warps: int) -> None:
    """Compile a kernel for a GPU that need not be there.

    The interpreter forgives what the compiler does not: types that change, shapes that do not fit.
    """
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(importlib.import_module(f"transformatcher.models.fused.{module}"), kernel)
    constants = {"D": 16, "KIND": 2, "LOW": True, "EPS": 1e-5} | constants
    numbers = {"inv_t": "fp32", "inv_s": "fp32"}
    kinds = {name: numbers.get(name, "*fp32" if name.endswith("_ptr") else "i32") for name in function.arg_names}
    kinds |= {name: "constexpr" for name in function.arg_names if name in constants}
    values = {
        (function.arg_names.index(name),): value for name, value in constants.items() if name in function.arg_names
    }
    source = ASTSource(function, kinds, values)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    assert "ptx" in compiled.asm


def isas() -> list[str]:
    """The instruction sets of the library in C that this CPU has."""
    library = native._library()
    return [
        isa for isa in native.ISAS if library and hasattr(library, f"supported_{isa}") and library[f"supported_{isa}"]()
    ]

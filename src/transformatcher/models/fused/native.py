"""The passes of ``passes.py`` in C, for inference on a CPU. Where the library was not built, torch computes them."""

import ctypes
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformatcher.models.fused.passes import Ffn, PositionFeatures, RotatedTerm, Tokens, perpendicular

FILES = {"linux": "libpasses.so", "darwin": "libpasses.dylib", "win32": "libpasses.dll"}
ISAS = ("avx512", "avx2", "generic")  # fastest first
SWITCH = "TRANSFORMATCHER_NATIVE"  # in the environment; 0 turns the library off
CHUNKS = 32  # of the source cells of a pair; a fixed number, so that results do not depend on the number of threads
MAX_CHANNELS, MAX_ROWS = 64, 128  # see native.c

_Pointer, _Number = ctypes.c_void_p, ctypes.c_int64


class _Update(ctypes.Structure):
    _fields_ = [
        ("x", _Pointer), ("y", _Pointer), ("d", _Number), ("sources", _Number), ("targets", _Number),
        ("linear", _Pointer), ("linear_by_source", _Number), ("rows", _Number), ("inner", _Pointer),
        ("inner_by_source", _Number), ("out", _Pointer), ("cosine", _Pointer), ("sine", _Pointer),
        ("hidden", _Number), ("weight1", _Pointer), ("bias1", _Pointer), ("weight2", _Pointer), ("bias2", _Pointer),
    ]  # fmt: skip


class _Pool(ctypes.Structure):
    _fields_ = [
        ("x", _Pointer), ("d", _Number), ("sources", _Number), ("targets", _Number), ("heads", _Number),
        ("scores", _Pointer), ("scores_by_source", _Number), ("rows", _Number), ("head", _Pointer),
        ("feature", _Pointer), ("factor", _Pointer), ("row_scores", _Pointer), ("want_source_sums", _Number),
        ("chunks", _Number), ("source_sums", _Pointer), ("source_top", _Pointer), ("target_sums", _Pointer),
        ("target_top", _Pointer),
    ]  # fmt: skip


# ---------------------------------------------------------------- the library


@cache
def _library() -> ctypes.CDLL | None:
    path = Path(__file__).with_name(FILES.get(sys.platform, ""))
    try:
        return ctypes.CDLL(str(path)) if path.is_file() else None
    except OSError:  # of another system
        return None


@cache
def instruction_set() -> str | None:
    """The fastest instruction set of the library that this CPU has; None where there is no library."""
    library = _library()
    if library is None:
        return None
    return next((isa for isa in ISAS if hasattr(library, f"supported_{isa}") and library[f"supported_{isa}"]()), None)


@cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="transformatcher-native")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_executor.cache_clear)  # threads do not survive a fork


def run(name: str, isa: str, arguments: ctypes.Structure, items: int) -> None:
    """Call a function for all items, divided among as many threads as torch uses."""
    library = _library()
    assert library is not None
    function = library[f"{name}_{isa}"]
    threads = max(1, min(torch.get_num_threads(), items))
    bounds = [_Number(items * n // threads) for n in range(threads + 1)]
    pointer = ctypes.byref(arguments)
    others = [_executor().submit(function, pointer, *bounds[n : n + 2]) for n in range(1, threads)]
    function(pointer, *bounds[:2])
    for other in others:
        other.result()


def describe() -> str:
    """Which implementation of the passes runs on this CPU, in words."""
    if os.environ.get(SWITCH) == "0":
        return f"torch, because {SWITCH}=0"
    isa = instruction_set()
    return "torch, because the library in C was not built" if isa is None else f"library in C, {isa}"


def runs_on(tensor: Tensor) -> bool:
    """Whether the library can take this tensor: in inference, in float32 on a CPU.

    ``TRANSFORMATCHER_NATIVE=0`` in the environment turns it off.
    """
    if tensor.device.type != "cpu" or tensor.dtype != torch.float32 or os.environ.get(SWITCH) == "0":
        return False
    return not torch.is_grad_enabled() and not torch.compiler.is_compiling() and instruction_set() is not None


def fits(d: int, rows: int, hidden: int) -> bool:
    """Whether blocks of ``d`` channels, ``rows`` channels of all heads and ``hidden`` channels of the MLP fit."""
    return 1 <= d <= MAX_CHANNELS and rows <= MAX_ROWS and hidden >= 1 and d % 2 == 0


# ---------------------------------------------------------------- positions


@dataclass(frozen=True)
class _Factors:
    """The position features of rows, each the product of a factor at the source cell and one at the target cell.

    A row is in ``on_source`` if its feature is the same at all target cells, else in ``on_target``.
    """

    on_source: Int[Tensor, " js"]
    on_target: Int[Tensor, " jt"]
    source: Float[Tensor, "j sources"]  # of all rows
    target: Float[Tensor, "jt targets"]  # of the rows on_target


def _factors(positions: PositionFeatures, rows: int) -> _Factors:
    key = ("native", rows)
    if key not in positions.cache:
        with torch.inference_mode(mode=False):
            positions.cache[key] = _make_factors(positions, rows)
    factors: _Factors = positions.cache[key]
    return factors


def _make_factors(positions: PositionFeatures, rows: int) -> _Factors:
    hs, ws, ht, wt = positions.grid
    source_cells, target_cells = (
        torch.cartesian_prod(torch.arange(h), torch.arange(w)).reshape(-1, 2) for h, w in ((hs, ws), (ht, wt))
    )
    every, none = torch.arange(rows), torch.arange(0)
    if positions.kind == "none":
        return _Factors(every, none, torch.ones(rows, hs * ws), torch.ones(0, ht * wt))
    if positions.kind == "sign":
        source, target = (
            (1.0 - 2 * (cells.sum(dim=1) % 2)).expand(rows, -1).contiguous() for cells in (source_cells, target_cells)
        )
        return _Factors(none, every, source, target)
    assert positions.axes is not None
    axes, table = positions.axes.repeat_interleave(2), positions.table(torch.float32)
    on_source, on_target = (axes < 2).nonzero()[:, 0], (axes >= 2).nonzero()[:, 0]
    source = torch.ones(rows, hs * ws)
    source[on_source] = table[on_source].gather(1, source_cells.T[axes[on_source]])
    target = table[on_target].gather(1, target_cells.T[axes[on_target] - 2])
    return _Factors(on_source, on_target, source, target)


# ---------------------------------------------------------------- the passes


def pool(
    x: Tokens,
    scores: Float[Tensor, "b j d1"],
    positions: PositionFeatures,
    *,
    heads: int,
    rotate_scores: bool,
    isa: str | None = None,
) -> Float[Tensor, "b j d1"]:
    """As :func:`transformatcher.models.fused.passes.pool`."""
    isa = isa or instruction_set()
    assert isa is not None
    b, d, _ = x.shape
    j, d1 = scores.shape[1:]
    factors = _factors(positions, j)
    sources, targets = positions.grid[0] * positions.grid[1], positions.grid[2] * positions.grid[3]
    head = torch.arange(j) // (j // heads)
    on_source, on_target = factors.on_source, factors.on_target
    rows, row_scores = len(on_target), None
    if rotate_scores:  # what target cells do not change is summed for each head and source cell
        parts = scores[:, None, on_source] * factors.source[on_source].T[:, :, None]  # (b, sources, js, d1)
        base = scores.new_zeros(b, sources, heads, d1).index_add_(2, head[on_source], parts)
        row_scores = scores[:, on_target].contiguous()
    else:
        base = scores.reshape(b, 1, heads, j // heads, d1).sum(dim=3)
    signed = positions.kind == "sign"
    chunks = min(CHUNKS, sources)
    source_sums, target_sums = x.new_zeros(b, sources, heads, d1), x.new_zeros(b, chunks, rows, d1)
    source_top, target_top = (x.new_full((b, n, heads), -torch.inf) for n in (sources, chunks))
    kept = (
        x.contiguous(), base.contiguous(), head[on_target].int(), factors.target,
        factors.source.T.contiguous() if signed else None, row_scores,
    )  # fmt: skip
    at = [None if tensor is None else tensor.data_ptr() for tensor in kept]
    arguments = _Pool(
        at[0], d, sources, targets, heads, at[1], base.shape[1] > 1, rows, at[2], at[3], at[4], at[5],
        len(on_source) > 0, chunks, source_sums.data_ptr(), source_top.data_ptr(), target_sums.data_ptr(),
        target_top.data_ptr(),
    )  # fmt: skip
    run("pool", isa, arguments, b * chunks)
    top = source_top.amax(dim=1)  # (b, heads)
    source_sums = source_sums * (source_top - top[:, None]).exp()[..., None]
    total = source_sums[..., -1].sum(dim=1)  # (b, heads)
    result = torch.empty_like(scores)
    result[:, on_source] = torch.einsum("js,bsjc->bjc", factors.source[on_source], source_sums[:, :, head[on_source]])
    scale = (target_top - top[:, None]).exp()[:, :, head[on_target]]
    result[:, on_target] = (target_sums * scale[..., None]).sum(dim=1)
    return result / total[:, head, None]


def update(
    x: Tokens,
    linear: Float[Tensor, "b d d1"],
    positions: PositionFeatures,
    rotated: RotatedTerm | None,
    ffn: Ffn,
    *,
    isa: str | None = None,
) -> Tokens:
    """As :func:`transformatcher.models.fused.passes.update`."""
    isa = isa or instruction_set()
    assert isa is not None
    b, d, _ = x.shape
    sources, targets = positions.grid[0] * positions.grid[1], positions.grid[2] * positions.grid[3]
    base, inner, out = linear[:, None], linear.new_zeros(1, 0, d + 1), linear.new_zeros(0, d)
    cosine = sine = linear.new_zeros(0, targets)
    if rotated is not None:
        factors = _factors(positions, len(rotated.inner))
        on_target = factors.on_target
        if positions.kind == "sign":  # a rotation by 0 or 180 degrees
            inner = factors.source.T[:, :, None] * rotated.inner
            cosine, sine = factors.target[0::2], torch.zeros_like(factors.target[0::2])
        elif positions.kind == "rotary":
            inner, cosine, sine = rotated.inner[None, on_target], factors.target[0::2], factors.target[1::2]
        out = rotated.out[:, on_target].T
        base = base + _source_part(rotated, factors, rotary=positions.kind == "rotary")
    kept = [
        tensor.contiguous()
        for tensor in (x, base, inner, out, cosine, sine, ffn.weight1, ffn.bias1, ffn.weight2.T, ffn.bias2)
    ]
    y = torch.empty_like(kept[0])
    at = [tensor.data_ptr() for tensor in kept]
    arguments = _Update(
        at[0], y.data_ptr(), d, sources, targets, at[1], base.shape[1] > 1, inner.shape[1], at[2], len(inner) > 1,
        at[3], at[4], at[5], len(ffn.bias1), *at[6:],
    )  # fmt: skip
    run("update", isa, arguments, b * sources)
    return y


def _source_part(rotated: RotatedTerm, factors: _Factors, *, rotary: bool) -> Float[Tensor, "s d d1"]:
    """The rows of the rotated term that target cells do not change, as one matrix for each source cell."""
    rows = rotated.inner[factors.on_source]
    features = factors.source[factors.on_source].T[..., None]  # (sources, js, 1)
    if rotary:
        cosine, sine = (features[:, part::2].repeat_interleave(2, dim=1) for part in (0, 1))
        turned = cosine * rows + sine * perpendicular(rows)
    else:
        turned = features * rows
    return rotated.out[:, factors.on_source] @ turned

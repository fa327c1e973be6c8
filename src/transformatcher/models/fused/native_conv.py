"""Correlation → refined map: the 4-D convolutions in C, for inference on a CPU."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from transformatcher.models.fused import native

ConvWeights = tuple[Float[Tensor, "_ _ _ _ _ _"], Float[Tensor, " _"]]  # of one convolution, and its bias
# As in native_conv.c:
MAX_KERNEL = 15
WIDE = 8  # outputs whose weights lie side by side
LANES = 16  # the longest vector; planes are whole vectors

_Pointer, _Number = ctypes.c_void_p, ctypes.c_int64


class _Convolution(ctypes.Structure):
    _fields_ = [
        ("x", _Pointer), ("y", _Pointer), ("rows", _Number), ("columns", _Number), ("inputs", _Number),
        ("outputs", _Number), ("kernel", _Number), ("plane", _Number), ("width", _Number), ("length", _Number),
        ("inside", _Pointer), ("weight", _Pointer), ("kinds", _Number), ("bias", _Pointer), ("relu", _Number),
        ("zeros", _Pointer), ("scratch", _Pointer), ("scratch_size", _Number), ("next", _Pointer),
    ]  # fmt: skip


@dataclass(frozen=True)
class _Plane:
    """How the target cells of a source cell lie in memory: with ``reach`` zeros around them."""

    height: int
    width: int
    reach: int

    @property
    def row(self) -> int:
        """From one row to the next; the zeros after a row are also those before the next one."""
        return self.width + self.reach

    @property
    def start(self) -> int:
        """The position of the first cell."""
        return self.reach * (self.row + 1)

    @property
    def length(self) -> int:
        """Positions from the first cell to the last one."""
        return (self.height - 1) * self.row + self.width

    @property
    def size(self) -> int:
        """Positions in all: from the first cell on, whole vectors, then as many zeros as before it."""
        return _round_up(2 * self.start + _round_up(self.length))

    def cells(self, planes: Float[Tensor, " n"], sources: int, channels: int) -> Float[Tensor, "s c ht wt"]:
        """The target cells of all planes, as a view."""
        size, shape = self.size, (sources, channels, self.height, self.width)
        return planes.as_strided(shape, (channels * size, size, self.row, 1), self.start)

    def inside(self) -> Int[Tensor, " n"]:
        """For the positions from the first cell on: -1 at cells, 0 between the rows and after the last one."""
        position = torch.arange(_round_up(self.length), dtype=torch.int32)
        return -((position % self.row < self.width) & (position < self.length)).int()


def _round_up(n: int) -> int:
    return -(-n // LANES) * LANES


def fits(weight: Float[Tensor, "e c i j m n"]) -> bool:
    """Whether the library takes a convolution: in float32, with a kernel that is not huge."""
    return weight.dtype == torch.float32 and weight.shape[-1] <= MAX_KERNEL


def convolve_both_ways(
    corr: Float[Tensor, "b l hs ws ht wt"], convs: Sequence[ConvWeights], *, isa: str | None = None
) -> Float[Tensor, "b hs ws ht wt"]:
    """N(c) + N(cᵀ)ᵀ, where N is ``convs`` with ReLU between them. All have one kernel size; the last has one output.

    Pairs are computed one after another in the same memory, about twice that of the widest map.
    """
    isa = isa or native.instruction_set()
    assert isa is not None
    b, layers, hs, ws, ht, wt = corr.shape
    sources, plane = hs * ws, _Plane(ht, wt, convs[0][0].shape[-1] // 2)
    both = [[_arrange(weight, swapped) for weight, _ in convs] for swapped in (False, True)]
    biases = [bias.contiguous() for _, bias in convs]
    widths = [len(bias) for bias in biases]
    first = corr.new_zeros(sources * layers * plane.size)
    maps = [corr.new_empty(sources * max(some, default=0) * plane.size) for some in (widths[0::2], widths[1::2])]
    zeros = corr.new_zeros(max(layers, *widths) * plane.size)
    scratch = corr.new_empty(torch.get_num_threads(), 16 * len(zeros))
    inside, tile = plane.inside(), torch.zeros(1, dtype=torch.int64)
    refined = corr.new_zeros(b, sources, ht, wt)
    for pair in range(b):
        plane.cells(first, sources, layers).copy_(rearrange(corr[pair], "l hs ws ht wt -> (hs ws) l ht wt"))
        for weights in both:
            x, inputs = first, layers
            for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                y, outputs = maps[number % 2], len(bias)
                arguments = _Convolution(
                    x.data_ptr(), y.data_ptr(), hs, ws, inputs, outputs, 2 * plane.reach + 1, plane.size, plane.row,
                    plane.length, inside.data_ptr(), weight.data_ptr(), len(weight), bias.data_ptr(),
                    number + 1 < len(biases), zeros.data_ptr(), scratch.data_ptr(), scratch.shape[1],
                    tile.zero_().data_ptr(),
                )  # fmt: skip
                native.run("convolve", isa, arguments, len(scratch))
                x, inputs = y, outputs
            refined[pair] += plane.cells(x, sources, 1)[:, 0]
    return refined.reshape(b, hs, ws, ht, wt)


def _arrange(weight: Float[Tensor, "e c i j m n"], swapped: bool) -> Float[Tensor, "kinds kinds size"]:
    """The weights of all products on the two source axes, in the order in which the library reads them.

    Args:
        weight: of the convolution.
        swapped: exchange its source and target axes.
    """
    order = "m n i j" if swapped else "i j m n"
    kinds = torch.eye(weight.shape[-1])
    if len(kinds) == 3:  # Winograd's four, and the tap in the middle
        kinds = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1], [0, 1, 0]])
    wide = len(weight) // WIDE * WIDE
    taps = torch.cat(
        [
            rearrange(weight[:wide], f"(many wide) c {order} -> (i j) (many c m n wide)", wide=WIDE),
            rearrange(weight[wide:], f"e c {order} -> (i j) (e c m n)"),
        ],
        dim=1,
    )
    return (torch.kron(kinds, kinds) @ taps).reshape(len(kinds), len(kinds), -1)

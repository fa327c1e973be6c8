"""Position of a match on the 4-D grid → a rotation of its queries and keys (section 4.2, "4D rotary …").

Two neighbouring channels of a head form a plane, and the position of a match rotates each plane by an angle. The dot
product of two rotated vectors then depends only on the offset between the two positions.
"""

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.errors import InputError
from transformatcher.models.memo import Memo

Grid4 = tuple[int, int, int, int]  # hs, ws, ht, wt


class Position(nn.Module):
    """How an attention layer rotates queries and keys by the positions of their matches."""

    def __init__(self) -> None:
        super().__init__()
        self.feature_cache: Memo[Any] = Memo()  # the position features of fused/fold.py for the last grid

    @abstractmethod
    def forward(self, x: Float[Tensor, "b heads t d"], grid: Grid4) -> Float[Tensor, "b heads t d"]:
        """Vectors of the matches of ``grid``, flattened in the order hs, ws, ht, wt → the rotated vectors."""


class NoPosition(Position):
    """Positions have no effect."""

    def forward(self, x: Float[Tensor, "b heads t d"], grid: Grid4) -> Float[Tensor, "b heads t d"]:  # noqa: ARG002
        """The vectors, unchanged."""
        return x


class AxialRotary(Position):
    """A true 4-D rotary embedding: each of the axes ys, xs, yt, xt rotates its own planes.

    The planes of all heads are assigned to the axes in turn, and the planes of an axis to its frequencies, from high to
    low: 8 heads × 2 planes = 4 axes × 4 frequencies.

    Args:
        heads, head_dim: of the attention layer.
        base: frequency f of F rotates by base^(-f/F) radians per cell. 100 suits grids of tens of cells (Heo et al.
            2024, "Rotary Position Embedding for Vision Transformer"); language models use 10,000.
        frequencies: F, at most one for each plane of an axis, which is the default; with fewer, planes share them.
    """

    angle_of_plane: Tensor  # (4, heads, planes): radians per cell along each axis; three of the four axes are zero

    def __init__(self, heads: int, head_dim: int, base: float = 100.0, frequencies: int | None = None) -> None:
        super().__init__()
        if head_dim % 2 or heads * head_dim % 8:
            raise InputError(
                f"axial rotary embedding: {heads} heads of {head_dim} channels give {heads * head_dim / 2:g} planes; "
                "four axes need an even head_dim and a multiple of 4 planes"
            )
        self.settings = (heads, head_dim, base, frequencies)
        n_planes = heads * head_dim // 2
        frequencies = n_planes // 4 if frequencies is None else frequencies
        if not 1 <= frequencies <= n_planes // 4:
            raise InputError(f"axial rotary embedding: {frequencies} frequencies, expected 1 to {n_planes // 4}")
        self.planes = tuple((p % 4, base ** (-(p // 4 % frequencies) / frequencies)) for p in range(n_planes))
        angles = torch.zeros(4, n_planes, dtype=torch.float64)
        for plane, (axis, rate) in enumerate(self.planes):
            angles[axis, plane] = rate
        self.register_buffer("angle_of_plane", angles.reshape(4, heads, head_dim // 2), persistent=False)

    def forward(self, x: Float[Tensor, "b heads t d"], grid: Grid4) -> Float[Tensor, "b heads t d"]:
        """Rotate plane p of head h of match m by Σ_axis position[m, axis] · angle_of_plane[axis, h, p]."""
        cos, sin = self._cos_sin(grid, x.dtype)  # (heads, t, planes)
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)

    def _cos_sin(self, grid: Grid4, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(heads, t, planes) each. One axis rotates a plane, the other angles are 0: cosines multiply, sines add up."""
        heads, planes = self.angle_of_plane.shape[1:]
        cos, sin = [], []
        for axis, n in enumerate(grid):
            steps = torch.arange(n, dtype=torch.float64, device=self.angle_of_plane.device)
            angles = self.angle_of_plane[axis].double()[:, None] * steps[:, None]  # (heads, n, planes)
            shape = [heads, 1, 1, 1, 1, planes]
            shape[1 + axis] = n
            cos.append(angles.cos().to(dtype).reshape(shape))
            sin.append(angles.sin().to(dtype).reshape(shape))
        return (cos[0] * cos[1] * cos[2] * cos[3]).flatten(1, 4), (sin[0] + sin[1] + sin[2] + sin[3]).flatten(1, 4)


class Checkerboard(Position):
    """The effect of the released code's rotary embedding: the sign (-1)^(ys + xs + yt + xt).

    It rotates every plane by π or 5π times the flattened index of a match, and a rotation by a multiple of π is a sign.
    On its axes of 15 cells, an odd number, the parity of that index is the parity of the sum of the coordinates.
    """

    # DEVIATION: on axes of even length the flattened index would alternate along xt only; here it is a checkerboard.
    def forward(self, x: Float[Tensor, "b heads t d"], grid: Grid4) -> Float[Tensor, "b heads t d"]:
        """Flip the sign of every second match along each axis."""
        hs, ws, ht, wt = (1 - 2 * (torch.arange(n, device=x.device) % 2).to(x.dtype) for n in grid)
        signs = torch.einsum("i,j,k,l->ijkl", hs, ws, ht, wt).flatten()  # (t,)
        return x * signs[:, None]

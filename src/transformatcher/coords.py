"""Pixel ↔ normalised ↔ cell coordinates. All conversions between them are here.

An image of size (h, w) spans [0, w] × [0, h] in pixels and [-1, 1]² normalised. A grid's first and last cell centres
lie on the borders (cell j of 30 is pixel 240·j/29 of 240), which is torch's ``align_corners=True``.
"""

from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from transformatcher.schema import Size

Points = TypeVar("Points", Float[Tensor, "*n 2"], Float[np.ndarray, "*n 2"])
Array = TypeVar("Array", Tensor, np.ndarray)


def _wh(size: Size, like: Array) -> Array:
    """(h, w) → [w, h], a tensor or an array as ``like`` is."""
    h, w = size
    if isinstance(like, Tensor):  # made on the device: a CUDA graph cannot contain a copy from the host
        return torch.stack([like.new_full((), w), like.new_full((), h)])
    return np.array([w, h], dtype=like.dtype)


def px_to_norm(points_px: Points, size: Size) -> Points:
    """Pixels of an image of ``size`` (h, w) → [-1, 1]².

    Example:
        >>> px_to_norm(np.array([[100.0, 60.0]]), (120, 200))  # the centre
        array([[0., 0.]])
    """
    return points_px * 2 / _wh(size, points_px) - 1


def norm_to_px(points_norm: Points, size: Size) -> Points:
    """[-1, 1]² → pixels of an image of ``size`` (h, w).

    Example:
        >>> norm_to_px(np.array([[1.0, -1.0]]), (120, 200))  # the upper right corner
        array([[200.,   0.]])
    """
    return (points_norm + 1) / 2 * _wh(size, points_norm)


def norm_to_cell(points_norm: Points, grid: Size) -> Points:
    """[-1, 1]² → fractional (column, row) of a grid of ``grid`` (h, w) cells."""
    h, w = grid
    return (points_norm + 1) / 2 * _wh((h - 1, w - 1), points_norm)


def cell_to_norm(points_cell: Points, grid: Size) -> Points:
    """Fractional (column, row) of a grid of ``grid`` (h, w) cells → [-1, 1]²."""
    h, w = grid
    return points_cell * 2 / _wh((max(h - 1, 1), max(w - 1, 1)), points_cell) - 1


def rescale_px(points_px: Points, old: Size, new: Size) -> Points:
    """Pixels of an image → pixels of the same image resized from ``old`` to ``new`` (h, w)."""
    return points_px * (_wh(new, points_px) / _wh(old, points_px))


def mirror_px(points_px: Points, size: Size) -> Points:
    """Pixels of an image of ``size`` (h, w) → pixels of the same image mirrored left to right."""
    mirrored = points_px.clone() if isinstance(points_px, Tensor) else points_px.copy()
    mirrored[..., 0] = size[1] - points_px[..., 0]
    return mirrored


def mirror_box_px(box_px: Float[np.ndarray, "4"], size: Size) -> Float[np.ndarray, "4"]:
    """A box (x0, y0, x1, y1) → the same box after the image is mirrored left to right."""
    (x0, y0), (x1, y1) = mirror_px(box_px.reshape(2, 2), size)
    return np.array([x1, y0, x0, y1], dtype=box_px.dtype)


def grid_norm(grid: Size, like: Tensor) -> Float[Tensor, "h w 2"]:
    """Normalised (x, y) of every cell centre of a grid (h, w), in the dtype and on the device of ``like``.

    Positions are rounded to float32 in float64 work, too, as in the released code, whose numbers are met exactly.
    """
    ys, xs = (torch.linspace(-1, 1, n, dtype=torch.float32, device=like.device).to(like.dtype) for n in grid)
    return torch.stack(torch.meshgrid(xs, ys, indexing="xy"), dim=-1)


def cells_around(
    points_norm: Float[Tensor, "b n 2"], grid: Size
) -> tuple[Float[Tensor, "b n 4 2"], Float[Tensor, "b n 4"]]:
    """The four cells of a grid (h, w) around each point, in [-1, 1]², and their weights in bilinear interpolation.

    Points outside the image are moved to its border.
    """
    last = _wh((grid[0] - 1, grid[1] - 1), points_norm)
    position = norm_to_cell(points_norm, grid).clamp(min=0).minimum(last)  # (b, n, 2)
    lower = position.floor().minimum((last - 1).clamp(min=0))
    part = position - lower
    (x0, y0), (u, v) = lower.unbind(-1), part.unbind(-1)
    x1, y1 = torch.stack([x0, y0], dim=-1).add(1).minimum(last).unbind(-1)
    cells = torch.stack([torch.stack(xy, dim=-1) for xy in ((x0, y0), (x1, y0), (x0, y1), (x1, y1))], dim=-2)
    weights = torch.stack([(1 - u) * (1 - v), u * (1 - v), (1 - u) * v, u * v], dim=-1)
    return cell_to_norm(cells, grid), weights

"""Points or features of a photo → the box around the object, and coordinates inside that box."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from transformatcher.coords import grid_norm
from transformatcher.models.transformatcher import Features
from transformatcher.schema import Size

Box = tuple[int, int, int, int]  # x0, y0, x1, y1 in pixels of a photo

OBJECT_SPREAD = 0.05  # of the object cells, this share lies beyond each side of their box: single cells do not count


def box_around(points_norm: Float[np.ndarray, "n 2"], size: Size, *, margin: float, min_side: float) -> Box:
    """The box of points of a photo, widened and cut to the photo.

    Args:
        points_norm: (x, y) in [-1, 1]²; with no point at all, the box is the whole photo.
        size: (h, w) of the photo in pixels.
        margin: added on each side, as a part of the longer side of the box.
        min_side: each side of the result has at least this part of the photo's side, before it is cut.

    Example:
        >>> box_around(np.array([[0.0, 0.0]]), (100, 200), margin=0.5, min_side=0.25)
        (75, 37, 125, 63)
    """
    h, w = size
    if not len(points_norm):
        return 0, 0, w, h
    side = np.array([w, h])
    points_px = (points_norm + 1) / 2 * side
    lower, upper = points_px.min(axis=0), points_px.max(axis=0)
    half = (upper - lower) / 2 + margin * (upper - lower).max()
    half = np.maximum(half, min_side * side / 2)
    centre = (lower + upper) / 2
    x0, y0 = np.clip(np.floor(centre - half), 0, side - 1).astype(int).tolist()
    x1, y1 = np.clip(np.ceil(centre + half), np.array([x0, y0]) + 1, side).astype(int).tolist()
    return x0, y0, x1, y1


def object_cells(features: Features, grid: Size) -> Bool[Tensor, "b h w"]:
    """The cells of a grid (h, w) over each photo that probably show its object.

    They are those where the features of the deepest layer are longer than the photo's mean: a network trained to name
    objects responds to objects more than to background. This needs one photo alone, and no training.
    """
    length = features[-1].float().norm(dim=1, keepdim=True)  # (b, 1, h', w')
    length = F.interpolate(length, grid, mode="bilinear", align_corners=True)[:, 0]
    mean, longest = length.mean(dim=(1, 2), keepdim=True), length.amax(dim=(1, 2), keepdim=True)
    return length >= torch.minimum(mean, longest)  # where all are equal, their mean may be rounded up


def object_extent(cells: Bool[Tensor, "b h w"]) -> Float[np.ndarray, "b 2 2"]:
    """Two opposite corners (x, y), in [-1, 1]², of the box that most of the object cells of each photo lie in."""
    positions = grid_norm((cells.shape[1], cells.shape[2]), like=torch.zeros((), device=cells.device))
    quantiles = torch.tensor([OBJECT_SPREAD, 1 - OBJECT_SPREAD], device=cells.device)
    corners = [torch.quantile(positions[mask], quantiles, dim=0) for mask in cells]  # (2, 2) each
    return torch.stack(corners).double().cpu().numpy()


@dataclass(frozen=True)
class CropFrame:
    """One crop in each photo of a batch, as centre and half side in [-1, 1]² of the whole photo."""

    centre: Float[Tensor, "b 2"]
    half: Float[Tensor, "b 2"]

    @classmethod
    def of(cls, boxes: Sequence[Box], sizes: Sequence[Size], like: Tensor) -> "CropFrame":
        """Boxes in photos of ``sizes`` (h, w) → their frame, in the dtype and on the device of ``like``."""
        corners = torch.tensor(boxes, dtype=torch.float64).reshape(-1, 2, 2)  # (b, corner, xy)
        whole = torch.tensor([(w, h) for h, w in sizes], dtype=torch.float64)[:, None]
        lower, upper = (corners * 2 / whole - 1).unbind(1)
        return cls(((lower + upper) / 2).to(like), ((upper - lower) / 2).to(like))

    @classmethod
    def whole(cls, n: int, like: Tensor) -> "CropFrame":
        """The frame of n photos that are not cropped."""
        return cls(like.new_zeros(n, 2), like.new_ones(n, 2))

    def to_crop(self, whole_norm: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n 2"]:
        """[-1, 1]² of the whole photo → [-1, 1]² of the crop."""
        return (whole_norm - self.centre[:, None]) / self.half[:, None]

    def to_whole(self, crop_norm: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n 2"]:
        """[-1, 1]² of the crop → [-1, 1]² of the whole photo."""
        return crop_norm * self.half[:, None] + self.centre[:, None]

    def inside(self, other: "CropFrame") -> "CropFrame":
        """This crop, seen from the frame of another crop of the same photos."""
        return CropFrame((self.centre - other.centre) / other.half, self.half / other.half)

    def differs_from(self, other: "CropFrame") -> Bool[Tensor, " b"]:
        """Which photos have another crop in the other frame."""
        return ((self.centre != other.centre) | (self.half != other.half)).any(dim=1)

    def rows(self, rows: slice | list[int]) -> "CropFrame":
        """The crops of some photos of the batch."""
        return CropFrame(self.centre[rows], self.half[rows])


def enlargement(src: CropFrame, trg: CropFrame) -> Float[Tensor, " b"]:
    """How many times larger a crop shows things than the whole photo: geometric mean over both sides of both crops."""
    return (src.half.prod(dim=1) * trg.half.prod(dim=1)) ** -0.25

"""Matches → the source photo warped onto the target by a thin-plate spline (figure 5), blends, an animation."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from PIL import Image
from scipy.interpolate import RBFInterpolator
from scipy.spatial import ConvexHull

from transformatcher.coords import px_to_norm
from transformatcher.errors import InputError
from transformatcher.files import atomic_write
from transformatcher.schema import Size

NODES = 160  # along each side: a spline is smooth, so bilinear interpolation between its values is enough
MAX_POINTS = 2000  # the matrix of the spline is dense
MAX_COORDINATE = 1e7  # pixels
COLLINEAR = 1e-3  # points whose spread across their main axis is less than this share of it lie on one line


def thin_plate_warp(
    src: UInt8[np.ndarray, "h w 3"],
    points0_px: Float[np.ndarray, "n 2"],
    points1_px: Float[np.ndarray, "n 2"],
    trg_size: Size,
    *,
    smoothing: float = 0.01,
    margin: float = 0.5,
) -> tuple[UInt8[np.ndarray, "h2 w2 3"], Bool[np.ndarray, "h2 w2"]]:
    """The source, warped onto the target's frame by a thin-plate spline through the matches.

    Args:
        src: the source image.
        points0_px, points1_px: the matches, in pixels of the source and of the target.
        trg_size: (h, w) of the target, and of what is returned.
        smoothing: 0 goes through every match; more bends less (see :func:`thin_plate_spline`).
        margin: how far the spline is extrapolated beyond the convex hull of the matches, relative to their extent.

    Returns:
        The warped pixels, and the mask of the valid ones: those that come from inside the source and lie within the
        margin. All others are black.
    """
    spline = thin_plate_spline(points1_px, points0_px, smoothing=smoothing)
    h, w = trg_size
    xs, ys = (np.linspace(0.5, n - 0.5, min(n, NODES)) for n in (w, h))  # first and last pixel centres included
    nodes_px = np.stack(np.meshgrid(xs, ys), axis=-1).reshape(-1, 2)
    src_norm = px_to_norm(spline(nodes_px), (src.shape[0], src.shape[1]))
    beyond = _distance_from_hull(nodes_px, points1_px) / np.ptp(points1_px, axis=0).max()
    coarse = np.concatenate([src_norm, beyond[:, None]], axis=1).reshape(len(ys), len(xs), 3)
    field = torch.from_numpy(coarse).float().permute(2, 0, 1)[None]  # (1, 3, nodes, nodes)
    field = F.interpolate(field, size=trg_size, mode="bilinear", align_corners=True)
    grid = field[:, :2].permute(0, 2, 3, 1)  # (1, h2, w2, 2)
    pixels = (
        torch.from_numpy(_downscaled(src, _rms_radius(points0_px) / _rms_radius(points1_px)))
        .permute(2, 0, 1)[None]
        .float()
    )
    # An image spans [-1, 1] from its outer edges, not from its first pixel centres: align_corners=False.
    sampled = F.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
    mask = ((grid.abs() <= 1).all(dim=3) & (field[:, 2] <= margin))[0].numpy()
    warped = sampled[0].round().byte().permute(1, 2, 0).numpy()
    return np.where(mask[..., None], warped, np.uint8(0)), mask


def thin_plate_spline(
    from_px: Float[np.ndarray, "n 2"], to_px: Float[np.ndarray, "n 2"], *, smoothing: float = 0.0
) -> Callable[[Float[np.ndarray, "m 2"]], Float[np.ndarray, "m 2"]]:
    """The smoothest map of the plane that maps each of some points to another.

    Points that coincide are merged to their mean, and so are their images; more than 2000 are subsampled evenly.

    Args:
        from_px, to_px: the points and where they are mapped to.
        smoothing: 0 is exact; larger values trade exactness for a stiffer map, in the end an affine one. Points are
            scaled to unit size first, so that a value means the same at any resolution.
    """
    if not smoothing >= 0:
        raise InputError(f"thin-plate spline: smoothing is {smoothing}; it must be 0 or more")
    merged_from, merged_to = _merge_duplicates(from_px, to_px)
    n = len(merged_from)
    if n < 3:
        raise InputError(
            f"thin-plate spline: {n} distinct matches; it takes 3 or more, not on one line (give more keypoints)"
        )
    for points in (merged_from, merged_to):
        spread = np.linalg.svd(points - points.mean(axis=0), compute_uv=False)
        if spread[1] <= COLLINEAR * spread[0]:
            raise InputError(f"thin-plate spline: all {n} matches lie on one line; give a keypoint off it")
    if n > MAX_POINTS:
        chosen = np.linspace(0, n - 1, MAX_POINTS).round().astype(int)
        merged_from, merged_to = merged_from[chosen], merged_to[chosen]
    from_centre, from_unit = merged_from.mean(axis=0), _rms_radius(merged_from)
    to_centre, to_unit = merged_to.mean(axis=0), _rms_radius(merged_to)
    try:
        spline = RBFInterpolator(
            (merged_from - from_centre) / from_unit,
            (merged_to - to_centre) / to_unit,
            kernel="thin_plate_spline",
            smoothing=smoothing * len(merged_from),  # so that the number of points does not matter
        )
    except np.linalg.LinAlgError as error:
        raise InputError(f"thin-plate spline: {n} matches too close to each other; smoothing > 0 helps") from error
    return lambda points_px: spline((points_px - from_centre) / from_unit) * to_unit + to_centre


def blend(
    warped: UInt8[np.ndarray, "h w 3"], mask: Bool[np.ndarray, "h w"], trg: UInt8[np.ndarray, "h w 3"], opacity: float
) -> UInt8[np.ndarray, "h w 3"]:
    """The target with the warped source laid over it, with an ``opacity`` in [0, 1], where the mask is true."""
    weight = np.float32(opacity) * mask[..., None]
    return (trg + weight * (warped.astype(np.float32) - trg)).round().clip(0, 255).astype(np.uint8)


def morph(
    warped: UInt8[np.ndarray, "h w 3"], mask: Bool[np.ndarray, "h w"], trg: UInt8[np.ndarray, "h w 3"], steps: int = 12
) -> list[UInt8[np.ndarray, "h w 3"]]:
    """Frames from the target to the warped source, slower at both ends, for :func:`save_animation`."""
    return [blend(warped, mask, trg, (1 - np.cos(angle)) / 2) for angle in np.linspace(0, np.pi, steps)]


def save_warped(path: Path, warped: UInt8[np.ndarray, "h w 3"], mask: Bool[np.ndarray, "h w"]) -> None:
    """Write the warped image alone, transparent where the mask is false."""
    if path.suffix.lower() not in (".png", ".webp"):
        raise InputError(f"{path}: a picture with transparency ends in .png or .webp")
    pixels = np.dstack([warped, np.where(mask, np.uint8(255), np.uint8(0))])
    atomic_write(path, lambda new: Image.fromarray(pixels).save(new, format=path.suffix[1:].upper()))


def save_animation(
    path: Path,
    frames: Sequence[UInt8[np.ndarray, "h w 3"]],
    *,
    milliseconds: int = 60,
    hold: int = 900,
    side: int = 640,
) -> None:
    """Write a GIF that plays the frames forwards and backwards in an endless loop.

    Args:
        path: ends in .gif.
        frames: of one size; n of them make 2n - 2 in the file (two identical ones in a row become one).
        milliseconds: how long a frame is shown, except for the first and the last.
        hold: milliseconds that these two are shown.
        side: larger frames are scaled down to this many pixels.
    """
    if path.suffix.lower() != ".gif":
        raise InputError(f"{path}: an animation's name ends in .gif")
    if not frames:
        raise InputError(f"{path}: no frames to write")
    small = [Image.fromarray(frame) for frame in frames]
    for frame in small:
        frame.thumbnail((side, side))
    # One palette for all: with one each, still areas would flicker.
    step = 1 + max(small[0].size) // 160
    palette = Image.fromarray(np.concatenate([np.asarray(frame)[::step, ::step] for frame in small])).quantize(256)
    indexed = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in small]
    durations = [hold, *[milliseconds] * (len(indexed) - 2), hold][: len(indexed)]
    rest, times = indexed[1:] + indexed[-2:0:-1], durations + durations[-2:0:-1]
    options: dict[str, Any] = {"save_all": True, "append_images": rest, "duration": times, "loop": 0}
    atomic_write(path, lambda new: indexed[0].save(new, format="GIF", **options))


def _merge_duplicates(
    from_px: Float[np.ndarray, "n 2"], to_px: Float[np.ndarray, "n 2"]
) -> tuple[Float[np.ndarray, "m 2"], Float[np.ndarray, "m 2"]]:
    """Points nearer than a ten-thousandth of their extent → one, at their mean; the result is sorted by x."""
    near = (np.abs(from_px) <= MAX_COORDINATE) & (np.abs(to_px) <= MAX_COORDINATE)  # false where one is NaN
    if not near.all():
        bad = int((~near).any(axis=1).argmax())
        problem = "too far out" if np.isfinite([from_px[bad], to_px[bad]]).all() else "not finite"
        raise InputError(f"thin-plate spline: match number {bad} is {problem}: {from_px[bad]} and {to_px[bad]}")
    if len(from_px) == 0:
        return from_px, to_px
    unit = max(float(np.ptp(from_px, axis=0).max()), 1e-9)
    rounded = np.round((from_px - from_px.min(axis=0)) / unit, 4)
    _, group = np.unique(rounded, axis=0, return_inverse=True)
    group = group.reshape(-1)
    counts = np.bincount(group)[:, None]
    merged = [np.stack([np.bincount(group, column) for column in points.T], axis=1) for points in (from_px, to_px)]
    return merged[0] / counts, merged[1] / counts


def _rms_radius(points: Float[np.ndarray, "n 2"]) -> float:
    """Root mean square distance from the mean."""
    return float(np.sqrt(points.var(axis=0).sum()))


def _distance_from_hull(
    points_px: Float[np.ndarray, "m 2"], cloud_px: Float[np.ndarray, "n 2"]
) -> Float[np.ndarray, " m"]:
    """Distance of each point from the convex hull of others: 0 on it, negative inside.

    It is measured from the line of the nearest edge, so it is too small beyond a corner.
    """
    edges = ConvexHull(cloud_px).equations  # (edges, 3): outward normal, offset
    return (points_px @ edges[:, :2].T + edges[:, 2]).max(axis=1)


def _downscaled(image: UInt8[np.ndarray, "h w 3"], step: float) -> UInt8[np.ndarray, "h2 w2 3"]:
    """Scale an image down by the distance between samples, where that is so large that pixels would be skipped."""
    if step < 1.5:
        return image.copy()  # torch takes no mirrored views
    h, w = image.shape[:2]
    size = max(round(w / step), 1), max(round(h / step), 1)
    return np.array(Image.fromarray(image).resize(size, Image.Resampling.BOX))

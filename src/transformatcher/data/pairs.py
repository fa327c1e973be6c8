"""Annotated pairs of images → decoded pairs → batches; checks that all loaders share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from transformatcher.coords import mirror_box_px, mirror_px, px_to_norm
from transformatcher.errors import InputError
from transformatcher.images import limit_detail, read_image, to_tensor
from transformatcher.schema import ImagePair, PairBatch, Size

# Called with the description of a problem: raises (the default), or collects it, and the loader leaves the pair out.
OnProblem = Callable[[str], None]


def raise_problem(problem: str) -> None:
    """Raise an InputError at the first problem; the default of all loaders."""
    raise InputError(problem)


@dataclass(frozen=True)
class PairAnnotation:
    """What is known of one pair, in pixels of the original images; mirrored where the pair says so."""

    src_kps_px: Float[np.ndarray, "n 2"]
    trg_kps_px: Float[np.ndarray, "n 2"]
    absent_px: Float[np.ndarray, "m 2"]  # keypoints of the source that the target does not show
    trg_bbox_px: Float[np.ndarray, "4"] | None
    src_size: Size  # (h, w) of the original image
    trg_size: Size
    pair: ImagePair


@dataclass(frozen=True)
class LoadedPair(PairAnnotation):
    """One decoded pair: its annotation, and images as the network takes them, mirrored where the pair says so."""

    src: Float[Tensor, "3 h w"]
    trg: Float[Tensor, "3 h w"]
    src_pixels: UInt8[np.ndarray, "_ _ 3"] | None = None  # for crops, if they were asked for
    trg_pixels: UInt8[np.ndarray, "_ _ 3"] | None = None


def file_names(pair: ImagePair) -> tuple[str, str]:
    """Names of both images of a pair for pictures: those of their files, where they are files."""
    src, trg = (image.name if isinstance(image, Path) else "" for image in (pair.src_image, pair.trg_image))
    return src or "source", trg or "target"


def image_stems(pair: ImagePair) -> frozenset[str]:
    """The names of a pair's files without suffixes, which benchmarks made from PASCAL VOC keep."""
    return frozenset(image.stem for image in (pair.src_image, pair.trg_image) if isinstance(image, Path))


def read_pair(pair: ImagePair) -> tuple[UInt8[np.ndarray, "h w 3"], UInt8[np.ndarray, "h2 w2 3"]]:
    """Decode both images, and mirror them where the pair says so."""
    src, trg = (read_image(image, orient=pair.orient) for image in (pair.src_image, pair.trg_image))
    return src[:, ::-1] if pair.src_flip else src, trg[:, ::-1] if pair.trg_flip else trg


def annotate_pair(pair: ImagePair, src_size: Size, trg_size: Size) -> PairAnnotation:
    """The annotation of a pair whose images have these sizes (h, w), mirrored where the pair says so."""
    src_kps, trg_kps, absent, trg_bbox = pair.src_kps_px, pair.trg_kps_px, pair.absent_px, pair.trg_bbox_px
    if pair.src_flip:
        src_kps, absent = mirror_px(src_kps, src_size), mirror_px(absent, src_size)
    if pair.trg_flip:
        trg_kps = mirror_px(trg_kps, trg_size)
        trg_bbox = None if trg_bbox is None else mirror_box_px(trg_bbox, trg_size)
    return PairAnnotation(src_kps, trg_kps, absent, trg_bbox, src_size, trg_size, pair)


def load_pair(pair: ImagePair, size: Size, *, detail: float = 0.0) -> LoadedPair:
    """Decode both images and resize them to ``size`` (h, w); mirror images and annotations where the pair says so.

    With ``detail``, their pixels are kept, too, see :func:`limit_detail`.
    """
    src, trg = read_pair(pair)
    known = annotate_pair(pair, src.shape[:2], trg.shape[:2])
    return LoadedPair(
        **{item.name: getattr(known, item.name) for item in fields(known)},
        src=to_tensor(src, size),
        trg=to_tensor(trg, size),
        src_pixels=limit_detail(src, size, detail) if detail else None,
        trg_pixels=limit_detail(trg, size, detail) if detail else None,
    )


def collate(loaded: Sequence[LoadedPair]) -> PairBatch:
    """Decoded pairs → one batch; shorter lists of keypoints are padded and masked."""
    src_kps_norm = stack_points([item.src_kps_px for item in loaded], [item.src_size for item in loaded])
    visible = torch.zeros(src_kps_norm.shape[:2], dtype=torch.bool)
    for row, item in zip(visible, loaded, strict=True):
        row[: len(item.pair.visible)] = torch.from_numpy(item.pair.visible)
    return PairBatch(
        src=torch.stack([item.src for item in loaded]),
        trg=torch.stack([item.trg for item in loaded]),
        src_kps_norm=src_kps_norm,
        trg_kps_norm=stack_points([item.trg_kps_px for item in loaded], [item.trg_size for item in loaded]),
        visible=visible,
    )


def stack_points(points_px: Sequence[Float[np.ndarray, "_ 2"]], sizes: Sequence[Size]) -> Float[Tensor, "b n 2"]:
    """Points of several images of ``sizes`` (h, w) → one tensor in [-1, 1]²; shorter lists are padded with zeros."""
    out = torch.zeros(len(points_px), max(map(len, points_px)), 2)
    for row, points, size in zip(out, points_px, sizes, strict=True):
        row[: len(points)] = torch.from_numpy(px_to_norm(points, size))
    return out


def point_array(value: Any, where: str) -> Float[np.ndarray, "n 2"]:
    """A list of points [x, y] → an array; an error for any other shape, NaN or infinity."""
    try:
        points = np.array(value, dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{where}: expected points [x, y] ({error})") from error
    if points.ndim != 2 or points.shape[1] != 2:
        raise InputError(f"{where}: expected n points [x, y], found numbers of shape {points.shape}")
    if not np.isfinite(points).all():
        raise InputError(f"{where}: a keypoint is NaN or infinite")
    return points


def box_array(value: Any, where: str) -> Float[np.ndarray, "4"]:
    """A box (x0, y0, x1, y1) → an array; an error if it is empty or malformed."""
    try:
        box = np.array(value, dtype=np.float64).reshape(-1)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{where}: malformed box ({error})") from error
    if box.shape != (4,) or not (np.isfinite(box).all() and box[0] < box[2] and box[1] < box[3]):
        raise InputError(f"{where}: box {box.tolist()} is not x0 < x1, y0 < y1")
    return box


def masked_points(points: Float[np.ndarray, "n 2"], visible: np.ndarray) -> Float[np.ndarray, "n 2"]:
    """Points with those that are not visible set to zero, so that NaN does not spread."""
    return np.where(visible[:, None], points, 0.0)


def need_folder(root: Path, what: str) -> Path:
    """``root`` if it is a folder, else an error that says what was expected there."""
    if not root.is_dir():
        raise InputError(f"{root}: no such folder ({what})")
    return root


def need_entries(count: int, where: Path) -> None:
    """Raise an error for an empty list of pairs."""
    if not count:
        raise InputError(f"{where}: holds no pair at all")


def subsample_evenly(pairs: Sequence[Any], count: int | None) -> list[Any]:
    """At most ``count`` of the pairs, evenly spaced.

    Lists of pairs are usually sorted by category, so the first pairs would all be of one.
    """
    if count is None or count >= len(pairs):
        return list(pairs)
    return [pairs[i] for i in np.linspace(0, len(pairs) - 1, count).round().astype(int)]

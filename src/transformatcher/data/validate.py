"""Folder of a benchmark → counts, and every problem in it by name."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from transformatcher.data.benchmarks import SPLITS, Benchmark, find_benchmark, find_split
from transformatcher.errors import InputError
from transformatcher.images import read_image
from transformatcher.schema import ImagePair, Size


@dataclass
class ValidationReport:
    """Numbers of pairs, objects, images and keypoints, and the problems found."""

    counts: dict[str, int] = field(default_factory=dict)
    per_category: dict[str, int] = field(default_factory=dict)  # pairs (or objects) of each
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class AnnotatedView:
    """One image as one annotation describes it."""

    where: str  # the annotation, for messages
    image: Path
    kps_px: np.ndarray  # (n, 2), visible ones only
    claimed_size: Size | None  # (h, w) in the annotation
    orient: bool  # the annotation was made on the image as its EXIF tag turns it


def check_benchmark(
    name: str,
    root: Path,
    split: str | None = None,
    *,
    track: Callable[[Iterable[Path]], Iterable[Path]] = iter,
) -> ValidationReport:
    """Read every annotation and decode every image; all problems are collected.

    Args:
        name: of the benchmark.
        root: its folder.
        split: one split, or None for all that are there.
        track: wraps the images to decode, to show progress.
    """
    report, benchmark = ValidationReport(), find_benchmark(name)
    if benchmark.content == "pairs":
        views = _views_of_pairs(benchmark, root, split, report)
    else:
        views = _views_of_objects(benchmark, root, find_split(split or "trn"), report)
    report.counts["keypoints"] = sum(len(view.kps_px) for view in views)
    by_image: dict[Path, list[AnnotatedView]] = {}
    for view in views:
        by_image.setdefault(view.image, []).append(view)
    report.counts["images"] = len(by_image)
    for image in track(by_image):
        report.problems += _image_problems(image, by_image[image])
    return report


def _views_of_pairs(
    benchmark: Benchmark, root: Path, split: str | None, report: ValidationReport
) -> list[AnnotatedView]:
    pairs: list[ImagePair] = []
    for name in [find_split(split)] if split else _splits_on_disk(benchmark, root):
        loaded = benchmark.load(root, name, on_problem=report.problems.append)
        report.counts[f"{name} pairs"] = len(loaded)
        pairs += loaded
    report.per_category = dict(sorted(Counter(pair.category for pair in pairs).items()))
    return [view for pair in pairs for view in _views_of_pair(pair)]


def _splits_on_disk(benchmark: Benchmark, root: Path) -> list[str]:
    there = [split for split in SPLITS if any(root.glob(benchmark.pair_lists.format(split=split)))]
    if not there and root.is_dir():
        raise InputError(f"{root}: no list of pairs there; is it the folder of the benchmark {benchmark.name!r}?")
    return there or ["test"]  # the loader then names the folder that is missing


def _views_of_pair(pair: ImagePair) -> Iterator[AnnotatedView]:
    for image, kps, side in (
        (pair.src_image, pair.src_kps_px, "source"),
        (pair.trg_image, pair.trg_kps_px, "target"),
    ):
        assert isinstance(image, Path)  # benchmarks name files
        yield AnnotatedView(f"pair {pair.name}, {side}", image, kps[pair.visible], None, pair.orient)


def _views_of_objects(benchmark: Benchmark, root: Path, split: str, report: ValidationReport) -> list[AnnotatedView]:
    objects = benchmark.load(root, split, inside_only=False, on_problem=report.problems.append)
    report.counts["objects"] = len(objects)
    if not objects:
        report.problems.append(f"{root}: no object with a visible keypoint (v = 2)")
    report.per_category = dict(sorted(Counter(item.category for item in objects).items()))
    return [
        AnnotatedView(f"annotation {item.id}", item.image, item.kps_px[item.visible], item.image_size, item.orient)
        for item in objects
    ]


def _image_problems(image: Path, views: list[AnnotatedView]) -> list[str]:
    try:
        h, w = read_image(image, orient=views[0].orient).shape[:2]
    except InputError as error:
        return [f"{error} (used by {len(views)} annotation{'s' * (len(views) > 1)}, first: {views[0].where})"]
    problems = []
    for view in views:
        if view.claimed_size not in (None, (h, w)):
            claimed_h, claimed_w = view.claimed_size
            problems.append(f"{image}: is {w} × {h}, {view.where} says {claimed_w} × {claimed_h}")
        for x, y in view.kps_px:
            if not (0 <= x <= w and 0 <= y <= h):
                problems.append(f"{image}: {view.where}: keypoint ({x:.1f}, {y:.1f}) lies outside {w} × {h}")
    return problems

"""Benchmark folder → counts, and every fault in it by name."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from transformatcher.data.benchmarks import Benchmark
from transformatcher.data.coco_keypoints import find_coco, load_coco_objects
from transformatcher.data.pairs import SPLITS, find_split
from transformatcher.data.pf import load_pfpascal, load_pfwillow
from transformatcher.data.spair import load_spair
from transformatcher.errors import InputError
from transformatcher.images import read_image
from transformatcher.schema import ImagePair, Size


@dataclass
class Report:
    """What was found."""

    counts: dict[str, int] = field(default_factory=dict)
    per_category: dict[str, int] = field(default_factory=dict)  # pairs (or objects) of each
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class View:
    """One annotated image, as one annotation sees it."""

    where: str
    image: Path
    kps_px: np.ndarray  # (n, 2), visible ones only
    claimed_size: Size | None
    orient: bool


def check_benchmark(
    benchmark: Benchmark,
    root: Path,
    split: str | None = None,
    *,
    track: Callable[[Iterable[Path]], Iterable[Path]] = iter,
) -> Report:
    """Read every annotation and decode every image; nothing stops at the first fault.

    Args:
        benchmark, root: as for :func:`transformatcher.data.benchmarks.load_benchmark`.
        split: one split, or None for all that are there.
        track: wraps the images to decode, to show progress.
    """
    report = Report()
    if benchmark == "coco":
        views = _coco_views(root, find_split(split or "trn"), report)
    else:
        views = _pair_views(benchmark, root, split, report)
    report.counts["keypoints"] = sum(len(view.kps_px) for view in views)
    by_image: dict[Path, list[View]] = {}
    for view in views:
        by_image.setdefault(view.image, []).append(view)
    report.counts["images"] = len(by_image)
    for image in track(by_image):
        report.problems += _image_problems(image, by_image[image])
    return report


def _pair_views(benchmark: Benchmark, root: Path, split: str | None, report: Report) -> list[View]:
    load = {"spair": load_spair, "pfpascal": load_pfpascal, "pfwillow": load_pfwillow}[benchmark]
    pairs: list[ImagePair] = []
    for name in [find_split(split)] if split else _splits_on_disk(benchmark, root):
        found = load(root, name, on_problem=report.problems.append)
        report.counts[f"{name} pairs"] = len(found)
        pairs += found
    report.per_category = dict(sorted(Counter(pair.category for pair in pairs).items()))
    return [view for pair in pairs for view in _sides(pair)]


def _splits_on_disk(benchmark: Benchmark, root: Path) -> list[str]:
    patterns = {"spair": "Layout/large/{}.txt", "pfpascal": "{}_pairs.csv", "pfwillow": "{}_pairs*.csv"}
    there = [name for name in SPLITS if any(root.glob(patterns[benchmark].format(name)))]
    if not there and root.is_dir():
        raise InputError(f"{root}: no list of pairs there; is it the folder of the benchmark {benchmark!r}?")
    return there or ["test"]  # the loader then says what is missing


def _sides(pair: ImagePair) -> Iterator[View]:
    for image, kps, side in (
        (pair.src_image, pair.src_kps_px, "source"),
        (pair.trg_image, pair.trg_kps_px, "target"),
    ):
        assert isinstance(image, Path)  # benchmarks name files
        yield View(f"pair {pair.name}, {side}", image, kps[pair.visible], None, pair.orient)


def _coco_views(root: Path, split: str, report: Report) -> list[View]:
    objects = load_coco_objects(*find_coco(root, split), inside_only=False, on_problem=report.problems.append)
    report.counts["objects"] = len(objects)
    if not objects:
        report.problems.append(f"{root}: no object with a visible keypoint (v = 2)")
    report.per_category = dict(sorted(Counter(item.category for item in objects).items()))
    return [
        View(f"annotation {item.id}", item.image, item.kps_px[item.visible], item.image_size, orient=True)
        for item in objects
    ]


def _image_problems(image: Path, views: list[View]) -> list[str]:
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

"""Ways to match → the time of ``Matcher.match``, from decoded photos to matches with their confidence."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image

from transformatcher.coords import rescale_px
from transformatcher.evaluation.speed import PairFunction
from transformatcher.evaluation.timing import Runnable, median_ms
from transformatcher.inference.matcher import Matcher

ONE_PASS = "one pass"
# Name → settings, and whether mirrored sources are tried.
WAYS: Mapping[str, tuple[dict[str, Any], bool]] = {
    ONE_PASS: ({"coarse_to_fine.passes": 1}, False),
    "two passes": ({}, True),
    "two passes, not mirrored": ({}, False),
    "two passes, crops of the object": ({"coarse_to_fine.region": "object"}, False),
    "two passes, averaged with the mirrored pair": ({"coarse_to_fine.mirror_average": True}, False),
    "two passes at 352 × 352": ({"image_size": 352}, False),
    "three passes": ({"coarse_to_fine.passes": 3, "coarse_to_fine.min_enlargement": 1}, False),
}
SECONDS = 2.0  # for each way
EXAMPLES = Path(str(files("transformatcher") / "examples"))
POINTS = np.array([[168.0, 115], [316, 136], [262, 241], [255, 70], [245, 277], [130, 215]])  # of cat_a.jpg
CANVAS, PLAIN = (640, 480), (120, 150, 110)  # (w, h) in pixels, RGB


@dataclass(frozen=True)
class MatchSpeed:
    """The time of one way to match."""

    way: str
    targets: int  # of one source
    ms_per_pair: float
    of_one_pass: float  # this time as a multiple of that of one pass with as many targets


def measure_matching(
    device: str, precision: Any, targets: list[int], *, other: PairFunction | None = None
) -> tuple[list[MatchSpeed], float | None]:
    """Time all ways in turn: a result for each way and number of targets, and the milliseconds of ``other``.

    Args:
        device, precision: as for :class:`Matcher`.
        targets: numbers of targets of one source; they are matched in one batch.
        other: another implementation, which gets the two photos, uint8 arrays (h, w, 3), and takes turns.
    """
    src, points = small_cat("cat_a.jpg", (60, 120))
    trg, _ = small_cat("cat_b.jpg", (300, 120))
    matchers = {
        name: Matcher.from_pretrained(device=device, settings=settings, try_mirrored=mirrored, precision=precision)
        for name, (settings, mirrored) in WAYS.items()
    }
    used = torch.device(matchers[ONE_PASS].device)

    def match(matcher: Matcher, count: int) -> None:
        for matches in matcher.match_many(src, [trg] * count, points, batch=count):
            _ = matches.confidence

    results, others = [], None
    for count in targets:
        runs: dict[str, Runnable] = {name: partial(match, matcher, count) for name, matcher in matchers.items()}
        if other is not None and others is None:
            runs["other"] = lambda: other(src, trg)
        ms = median_ms(runs, used, SECONDS)
        others = ms.pop("other", others)
        results += [
            MatchSpeed(name, count, round(time / count, 3), round(time / ms[ONE_PASS], 3)) for name, time in ms.items()
        ]
    return results, others


def small_cat(name: str, corner: tuple[int, int]) -> tuple[UInt8[np.ndarray, "h w 3"], Float[np.ndarray, "n 2"]]:
    """An example photo, shrunk onto a plain background, so that crops enlarge it; and ``POINTS`` of cat_a.jpg on it."""
    photo = Image.open(EXAMPLES / name).convert("RGB")
    (w, h), canvas = photo.size, Image.new("RGB", CANVAS, PLAIN)
    photo.thumbnail((250, 250))
    canvas.paste(photo, corner)
    return np.asarray(canvas), rescale_px(POINTS, (h, w), (photo.height, photo.width)) + np.array(corner)

"""An exported file and pairs of a benchmark → PCK and time of the file beside those of its model."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from transformatcher.coords import norm_to_px
from transformatcher.data.benchmarks import find_benchmark
from transformatcher.data.pairs import collate, load_pair, read_pair
from transformatcher.evaluation.predict import Prediction, predict_batch
from transformatcher.evaluation.scores import pair_scores
from transformatcher.images import resize
from transformatcher.inference.export import format_of
from transformatcher.inference.export_parity import load_file
from transformatcher.inference.matcher import Matcher
from transformatcher.schema import ImagePair


@dataclass(frozen=True)
class ExportScore:
    """Model and exported file on the same pairs of a benchmark, one pair at a time."""

    name: str
    megabytes: float | None
    ms_per_pair: float  # the median
    pck: dict[str, float]  # α → percent


def compare(
    matcher: Matcher, path: Path, pairs: Sequence[ImagePair], benchmark: str, alphas: Sequence[float]
) -> list[ExportScore]:
    """PCK and time of the model and of its exported file, on the CPU."""
    run, size = load_file(path, format_of(path)), matcher.config.image_size
    own: list[Prediction] = []
    exported: list[Prediction] = []
    seconds = []
    for pair in pairs:
        loaded = load_pair(pair, size)
        src, trg = (resize(image, size)[None] for image in read_pair(pair))
        start = time.perf_counter()
        prediction = next(iter(predict_batch(matcher.model, [loaded], matcher.device)))
        between = time.perf_counter()
        keypoints1 = run(src, trg, collate([loaded]).src_kps_norm.numpy())[0][0].astype(np.float64)  # (n, 2)
        seconds.append((between - start, time.perf_counter() - between))
        pred_kps = norm_to_px(keypoints1[np.flatnonzero(pair.visible)], loaded.trg_size).round(4).tolist()
        own.append(prediction)
        exported.append(replace(prediction, pred_kps=pred_kps))
    pck_threshold = find_benchmark(benchmark).pck_threshold
    times = 1000 * np.median(seconds, axis=0)
    return [
        ExportScore(
            name, megabytes, float(ms), {f"{a:g}": float(pair_scores(found, pck_threshold, a).mean()) for a in alphas}
        )
        for name, megabytes, ms, found in (
            ("model", None, times[0], own),
            (path.name, path.stat().st_size / 1e6, times[1], exported),
        )
    ]

"""Exported file and pairs of a benchmark → PCK and time of the file and of its model."""

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
    """PCK and time of a model or of its exported file, on pairs one at a time."""

    name: str
    megabytes: float | None  # of the file; None for the model
    ms_per_pair: float  # the median
    pck: dict[str, float]  # α → percent


def compare_export(
    matcher: Matcher, path: Path, pairs: Sequence[ImagePair], benchmark: str, alphas: Sequence[float]
) -> list[ExportScore]:
    """Predict the same pairs with the model and with its exported file.

    Args:
        matcher: of the model, on the CPU.
        path: the exported file.
        pairs: of one benchmark.
        benchmark: its name, for the threshold of PCK.
        alphas: tolerances of PCK.

    Returns:
        The scores of the model, then those of the file.
    """
    run, size = load_file(path, format_of(path)), matcher.config.image_size
    own: list[Prediction] = []
    exported: list[Prediction] = []
    seconds = []  # (model, file) of each pair
    for pair in pairs:
        loaded = load_pair(pair, size)
        src, trg = (resize(image, size)[None] for image in read_pair(pair))
        start = time.perf_counter()
        (prediction,) = predict_batch(matcher.network, [loaded], matcher.device)
        between = time.perf_counter()
        trg_norm = run(src, trg, collate([loaded]).src_kps_norm.numpy())[0][0].astype(np.float64)  # (n, 2)
        seconds.append((between - start, time.perf_counter() - between))
        pred_kps = norm_to_px(trg_norm[np.flatnonzero(pair.visible)], loaded.trg_size).round(4).tolist()
        own.append(prediction)
        exported.append(replace(prediction, pred_kps=pred_kps))
    pck_threshold = find_benchmark(benchmark).pck_threshold
    own_ms, exported_ms = (1000 * np.median(seconds, axis=0)).tolist()

    def pck(predictions: Sequence[Prediction]) -> dict[str, float]:
        return {f"{alpha:g}": float(pair_scores(predictions, pck_threshold, alpha).mean()) for alpha in alphas}

    return [
        ExportScore("model", None, own_ms, pck(own)),
        ExportScore(path.name, path.stat().st_size / 1e6, exported_ms, pck(exported)),
    ]

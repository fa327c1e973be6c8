"""A folder of predictions → printed scores, a plot, and pictures of its worst and best pairs."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from transformatcher.cli.tables import print_scores
from transformatcher.data.benchmarks import PckThreshold
from transformatcher.data.pairs import file_names, read_pair
from transformatcher.errors import printable
from transformatcher.evaluation.predict import read_predictions
from transformatcher.evaluation.scores import (
    pair_scores,
    primary_metric,
    rank_by_error,
    score,
    score_warnings,
    tolerance_px,
    write_scores,
)
from transformatcher.schema import ImagePair, Size
from transformatcher.viz.pictures import draw_errors, save_figure
from transformatcher.viz.plots import plot_scores


def score_folder(
    out: Path, frame: Size | None, alphas: list[float], pck_threshold: str, name: str
) -> tuple[PckThreshold, float]:
    """Score, print and plot; returns the threshold and the α of the tables by category."""
    predictions = read_predictions(out)
    scores = score(predictions, frame=frame, alphas=alphas)
    chosen, alpha = primary_metric(scores, out, pck_threshold)
    path = write_scores(out / name, scores)
    picture = path.with_suffix(".png")
    save_figure(plot_scores(scores, chosen, alpha, title=out.name), picture)
    print_scores(scores, chosen)
    for line in (*score_warnings(predictions, out), f"scores: {path}", f"plot: {picture}"):
        print(printable(line))
    return chosen, float(alpha)


def draw_pairs(
    out: Path, pairs: Mapping[str, ImagePair], frame: Size | None, pck_threshold: PckThreshold, alpha: float, count: int
) -> None:
    """Draw the pairs with the lowest and the highest PCK; they replace the pictures of an earlier run."""
    predictions = read_predictions(out)
    scores = pair_scores(predictions, pck_threshold, alpha, frame)
    order = rank_by_error(predictions, pck_threshold, alpha, frame)
    worst, best = order[:count], order[count:][: -count - 1 : -1]
    folder = out / "pictures"
    for old in [*folder.glob("worst-*.png"), *folder.glob("best-*.png")]:
        old.unlink()
    for word, chosen in (("worst", worst), ("best", best)):
        for rank, index in enumerate(chosen, 1):
            prediction = predictions[index]
            src, trg = read_pair(pairs[prediction.name])
            src_kps, guesses, truth = map(np.array, (prediction.src_kps, prediction.pred_kps, prediction.trg_kps))
            title = f"{prediction.name}: PCK {scores[index]:.0f} at {alpha:g} of {pck_threshold}"
            radius_px = tolerance_px(prediction, pck_threshold, alpha, frame)
            names = file_names(pairs[prediction.name])
            figure = draw_errors(src, trg, src_kps, guesses, truth, title, names=names, radius_px=radius_px)
            save_figure(figure, folder / f"{word}-{rank:02d}-{_file_name(prediction.name)}.png")
    print(f"pictures: {printable(folder)}")


def _file_name(name: str) -> str:
    return "".join(char if char.isalnum() or char in "-_. " else "_" for char in name)

"""Predictions of a folder or a file → printed scores, plots, comparisons, and pictures of the worst and best pairs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transformatcher.cli.tables import print_comparison, print_scores
from transformatcher.data.benchmarks import PckThreshold
from transformatcher.data.pairs import file_names, read_pair
from transformatcher.errors import InputError, printable
from transformatcher.evaluation.compare import compare, verdict
from transformatcher.evaluation.points_file import (
    Missing,
    describe_points,
    is_points_file,
    missing_points,
    predictions_from_points,
    read_points,
)
from transformatcher.evaluation.predict import Prediction, read_predictions
from transformatcher.evaluation.scores import (
    pair_scores,
    primary_metric,
    rank_by_error,
    score,
    score_warnings,
    scores_name,
    tolerance_px,
    write_scores,
)
from transformatcher.evaluation.stored import read_eval_arguments
from transformatcher.files import write_text
from transformatcher.schema import ImagePair, Size
from transformatcher.viz.pictures import draw_errors, save_figure
from transformatcher.viz.plots import plot_comparison, plot_groups, plot_scores


@dataclass(frozen=True)
class Protocol:
    """How PCK is measured: the frames, the tolerances, and the threshold of the tables by category."""

    frames: Sequence[Size | None]
    alphas: Sequence[float]
    pck_threshold: str


@dataclass(frozen=True)
class Predicted:
    """Predictions of one method, from a folder that eval wrote or from a file of points."""

    name: str
    predictions: Sequence[Prediction]
    arguments: Mapping[str, Any]  # benchmark, split, …: what is known of the run


def read_predicted(path: Path, pairs: Sequence[ImagePair] | None = None, missing: Missing = "refuse") -> Predicted:
    """Read a folder of eval, or a file of points.

    Args:
        path: of either.
        pairs: what a file of points predicts; None if only folders can be read.
        missing: see :func:`transformatcher.evaluation.points_file.predictions_from_points`.
    """
    if not is_points_file(path):
        return Predicted(path.resolve().name, read_predictions(path), read_eval_arguments(path))
    if pairs is None:
        raise InputError(f"{path}: a file of points needs --benchmark and --root, where its pairs are")
    predictions = predictions_from_points(path, read_points(path), pairs, missing)
    return Predicted(path.stem, predictions, {})


def score_predicted(
    predicted: Predicted, protocol: Protocol, out: Path, prefix: str = "", name: str | None = None
) -> tuple[PckThreshold, float]:
    """Score in every frame, print, and write tables and plots; returns the threshold and α of the tables by category.

    Files in ``out`` begin with ``prefix``; they are called after the protocol, or ``name``.
    """
    warnings = score_warnings(predicted.predictions, predicted.arguments)
    missing = missing_points(predicted.predictions)
    if missing:
        warnings.append(f"counted as wrong, because they are missing: {describe_points(missing)}")
    for frame in protocol.frames:
        scores = score(predicted.predictions, frame=frame, alphas=protocol.alphas)
        chosen, alpha = primary_metric(scores, predicted.arguments, protocol.pck_threshold)
        path = write_scores(out / f"{prefix}{name or scores_name(frame, protocol.alphas)}", scores)
        picture, groups = path.with_suffix(".png"), path.with_name(f"{path.stem}-groups.png")
        save_figure(plot_scores(scores, chosen, alpha, title=predicted.name), picture)
        save_figure(plot_groups(scores, chosen, alpha, title=predicted.name), groups)
        print_scores(scores, chosen)
        lines = [f"scores: {path}", f"plots: {picture}, {groups}"]
        for line in (*warnings, *lines) if frame == protocol.frames[-1] else lines:
            print(printable(line))
    return chosen, float(alpha)


def compare_predicted(ours: Predicted, theirs: Predicted, protocol: Protocol, out: Path, prefix: str = "") -> None:
    """Compare two methods in every frame: the verdict, tables and a scatter plot."""
    names = (ours.name, theirs.name) if ours.name != theirs.name else (ours.name, f"{theirs.name} (against)")
    for frame in protocol.frames:
        comparison = compare(
            ours.predictions, theirs.predictions, frame=frame, alphas=protocol.alphas, names=names,
            benchmark=str(ours.arguments.get("benchmark", "")),
        )  # fmt: skip
        chosen, alpha = primary_metric(comparison, ours.arguments, protocol.pck_threshold)
        stem = scores_name(frame, protocol.alphas).removesuffix(".json").replace("scores", f"against-{theirs.name}", 1)
        path = out / f"{prefix}{stem}.json"
        write_text(path, json.dumps(comparison, indent=2) + "\n")
        save_figure(plot_comparison(comparison, chosen, alpha), path.with_suffix(".png"))
        print_comparison(comparison, chosen, alpha)
        print(f"{verdict(comparison, chosen, alpha)}\ncomparison: {path}\nplot: {path.with_suffix('.png')}")


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

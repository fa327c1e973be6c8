"""``transformatcher calibrate``: predictions of a validation set → calibrated confidence, and how well it holds."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from transformatcher.cli.inputs import check_picture
from transformatcher.cli.model_args import ALPHA
from transformatcher.cli.parser import examples
from transformatcher.errors import InputError

if TYPE_CHECKING:
    from transformatcher.evaluation.calibration_sets import CalibrationResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Fit confidence to the probability that a point is right, on the predictions of a validation set, and test it "
        "on others."
    )
    parser.epilog = examples(
        "calibrate out/pfpascal-val --weights runs/mine/best",
        "calibrate out/pfpascal-val --check out/spair-val out/pfpascal-test --plot confidence.png",
    )
    parser.add_argument("fit", metavar="DIR", help="predictions that eval made of a validation set")
    parser.add_argument("--weights", metavar="DIR", help="the checkpoint folder that the result is written to")
    parser.add_argument("--check", nargs="+", default=[], metavar="DIR", help="predictions of other sets, to test it")
    parser.add_argument(
        "--alpha", type=ALPHA, default=0.1, metavar="A", help="a point within this tolerance is right (%(default)s)"
    )
    parser.add_argument("--plot", metavar="PICTURE", help="draw reliability and ROC curves")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Fit confidence to one set of predictions, test it on others."""
    from transformatcher.cli.tables import print_table
    from transformatcher.evaluation.calibration_sets import evaluate_calibration, fit_set, read_sets
    from transformatcher.inference.calibration import CALIBRATION, save_calibration
    from transformatcher.inference.checkpoint import CONFIG

    check_picture(args.plot)
    if args.weights and not (Path(args.weights) / CONFIG).is_file():
        raise InputError(f"--weights {args.weights}: no checkpoint folder, it has no {CONFIG}")
    sets = read_sets([Path(args.fit), *map(Path, args.check)], args.alpha)
    calibration = fit_set(next(iter(sets.values())), fitted_on=Path(args.fit).name)
    results = {name: evaluate_calibration(calibration, points) for name, points in sets.items()}
    if args.plot:
        _plot(results, Path(args.plot))
    if args.weights:
        save_calibration(Path(args.weights), calibration)
    figures = {name: result.figures for name, result in results.items()}
    if args.json:
        print(json.dumps({"calibration": asdict(calibration), "sets": figures}, indent=2))
        return 0
    rows = []
    for key in next(iter(figures.values())):
        cells = [column[key] for column in figures.values()]
        rows.append((key.replace("_", " "), *("–" if cell is None else str(cell) for cell in cells)))
    print_table(f"confidence, fitted on {calibration.fitted_on}", ("", *figures), rows)
    if args.weights:
        print(f"calibration: {Path(args.weights) / CALIBRATION}")
    return 0


def _plot(results: Mapping[str, CalibrationResult], path: Path) -> None:
    """Draw reliability and ROC curves of all sets."""
    from transformatcher.viz.pictures import save_figure
    from transformatcher.viz.plots import plot_confidence

    curves, with_absent = {}, {}
    for name, result in results.items():
        rates = (result.roc.false_positive_rate.tolist(), result.roc.true_positive_rate.tolist())
        curves[name] = (result.bins.confidence.tolist(), result.bins.accuracy.tolist(), *rates)
        if other := result.roc_with_absent:
            with_absent[name] = (other.false_positive_rate.tolist(), other.true_positive_rate.tolist())
    save_figure(plot_confidence(curves, with_absent), path)

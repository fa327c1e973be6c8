"""``transformatcher calibrate``: predictions of a validation set → calibrated confidence, and how well it holds."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformatcher.cli.inputs import check_picture
from transformatcher.cli.model_args import ALPHA
from transformatcher.cli.parser import examples
from transformatcher.errors import InputError

if TYPE_CHECKING:
    from transformatcher.evaluation.calibration_sets import CalibrationResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Fit confidence to the probability that a point is right, on the predictions of validation sets, and test it "
        "on others. For models that match in several passes, figures are cross-validated by category, and "
        "sets of eval --unrelated teach it what photos of different kinds look like."
    )
    parser.epilog = examples(
        "calibrate out/pfpascal-val --weights runs/mine/best",
        "calibrate out/spair-val out/spair-unrelated --check out/pfpascal-test --plot confidence.png",
    )
    parser.add_argument("fit", nargs="+", metavar="DIR", help="predictions that eval made of validation sets")
    parser.add_argument("--weights", metavar="DIR", help="the checkpoint folder that the result is written to")
    parser.add_argument("--check", nargs="+", default=[], metavar="DIR", help="predictions of other sets, to test it")
    parser.add_argument(
        "--alpha", type=ALPHA, default=0.1, metavar="A", help="a point within this tolerance is right (%(default)s)"
    )
    parser.add_argument(
        "--pck-threshold",
        default="auto",
        choices=("auto", "object", "img", "bbox", "bbox-kp"),
        help="the length that --alpha multiplies; auto: the benchmark's own; object: the longer side of the object's "
        "box, or of its keypoints' where there is no box (%(default)s)",
    )
    parser.add_argument("--plot", metavar="PICTURE", help="draw reliability and ROC curves")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Fit confidence to sets of predictions, test it on others."""
    from transformatcher.evaluation.calibration_sets import (
        cross_validate,
        evaluate_calibration,
        evaluate_same_kind,
        fit_sets,
        read_sets,
        with_fit,
    )
    from transformatcher.inference.calibration import CALIBRATION, load_calibration, save_calibration
    from transformatcher.inference.checkpoint import CONFIG

    check_picture(args.plot)
    if args.weights and not (Path(args.weights) / CONFIG).is_file():
        raise InputError(f"--weights {args.weights}: no checkpoint folder, it has no {CONFIG}")
    sets = read_sets([*map(Path, args.fit), *map(Path, args.check)], args.alpha, args.pck_threshold)
    fitted = dict(list(sets.items())[: len(set(map(Path, args.fit)))])
    thresholds = {points.pck_threshold for points in fitted.values()}
    if args.pck_threshold == "auto" and len(thresholds) > 1:
        raise InputError(
            f"the published thresholds of these sets differ ({', '.join(sorted(thresholds))}), and a calibration "
            "has one; choose it with --pck-threshold, such as object"
        )
    calibration = fit_sets(fitted)
    found = cross_validate(fitted, {name: points for name, points in sets.items() if name not in fitted})
    results = {name: evaluate_calibration(points, found[name]) for name, points in sets.items()}
    same_kind = evaluate_same_kind(fitted, found)
    if args.plot:
        _plot(results, Path(args.plot))
    if args.weights:
        folder = Path(args.weights)
        save_calibration(folder, with_fit(load_calibration(folder), calibration))
    figures = {name: result.figures for name, result in results.items()}
    if args.json:
        print(json.dumps({"calibration": asdict(calibration), "sets": figures, "same_kind": same_kind}, indent=2))
    else:
        _print(figures, same_kind, calibration.fitted_on)
        if args.weights:
            print(f"calibration: {Path(args.weights) / CALIBRATION}")
    return 0


def _print(figures: Mapping[str, Mapping[str, Any]], same_kind: Mapping[str, Any] | None, fitted_on: str) -> None:
    from transformatcher.cli.tables import print_table

    rows = []
    for key in next(iter(figures.values())):
        cells = [column[key] for column in figures.values()]
        rows.append((key.replace("_", " "), *("–" if cell is None else str(cell) for cell in cells)))
    print_table(f"confidence, fitted on {fitted_on}", ("", *figures), rows)
    if same_kind:
        kinds = [(key.replace("_", " "), str(value)) for key, value in same_kind.items()]
        print_table("do both photos show the same kind of thing?", ("", "cross-validated"), kinds)


def _plot(results: Mapping[str, CalibrationResult], path: Path) -> None:
    """Draw reliability and ROC curves of all sets."""
    from transformatcher.viz.pictures import save_figure
    from transformatcher.viz.plots import plot_confidence

    curves, with_absent = {}, {}
    for name, result in results.items():
        if result.roc is None:  # of unrelated pairs, all points are wrong
            continue
        rates = (result.roc.false_positive_rate.tolist(), result.roc.true_positive_rate.tolist())
        curves[name] = (result.bins.confidence.tolist(), result.bins.accuracy.tolist(), *rates)
        if other := result.roc_with_absent:
            with_absent[name] = (other.false_positive_rate.tolist(), other.true_positive_rate.tolist())
    save_figure(plot_confidence(curves, with_absent), path)

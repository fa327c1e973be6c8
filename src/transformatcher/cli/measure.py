"""Sub-commands that measure: eval, score, calibrate, bench, data check."""

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track as rich_track
from rich.table import Table

from transformatcher.cli.model_args import (
    STDERR,
    STDOUT,
    check_picture,
    load_model,
    model_arguments,
    named_folder,
    progress_bar,
    recorded_split,
)
from transformatcher.config import (
    to_plain,
)
from transformatcher.data.benchmarks import load_benchmark
from transformatcher.data.pairs import read_pair
from transformatcher.data.validate import check_benchmark
from transformatcher.errors import InputError
from transformatcher.evaluation.metrics import ALPHAS, Kind
from transformatcher.evaluation.predict import fingerprint, predict_to_disk, read_predictions
from transformatcher.evaluation.scores import (
    PUBLISHED_KIND,
    SCORES,
    absent_points,
    headline,
    judged_points,
    pair_scores,
    parse_alphas,
    parse_frame,
    remarks,
    scores_name,
    tolerance_px,
    worst_first,
    write_scores,
)
from transformatcher.evaluation.scores import score as score_predictions
from transformatcher.evaluation.speed import STAGES, benchmark, device_name, measure_ceilings
from transformatcher.inference.calibration import (
    CALIBRATION,
    fit_calibration,
    reliability,
    roc,
    save_calibration,
)
from transformatcher.inference.checkpoint import CONFIG
from transformatcher.inference.matcher import MATCH_THRESHOLD, pick_device
from transformatcher.models.weights_io import hash_tensors
from transformatcher.run_folder import Run, read_arguments
from transformatcher.schema import ImagePair, Size
from transformatcher.viz.pictures import draw_errors, save_figure
from transformatcher.viz.plots import plot_confidence, plot_costs, plot_scores

WIDE = 115  # columns of a terminal that the table of costs needs; in a narrower one it is turned


def evaluate(args: argparse.Namespace) -> int:
    """Predict every pair of a split, then score."""
    frame, alphas = parse_frame(args.frame), parse_alphas(args.alpha or ALPHAS)
    device = pick_device(args.device)
    out = named_folder(args.out)
    model, config, _ = load_model(args)
    root = Path(args.root)
    pairs = load_benchmark(args.benchmark, root, args.split, n_pairs=args.limit or 1000, seed=args.seed)[: args.limit]
    arguments = {
        "benchmark": args.benchmark,
        "split": recorded_split(args),
        "limit": args.limit,
        "seed": args.seed if args.benchmark == "coco" else None,
        **model_arguments(args),
        "n_pairs": len(pairs),
        "pairs": fingerprint(pairs),
        "model": to_plain(config),
        "weights_hash": hash_tensors(model.state_dict()),
    }
    if args.thres == "bbox" and any(pair.trg_bbox_px is None for pair in pairs):
        raise InputError(f"--thres bbox: not every pair of {args.benchmark} has an object box; choose another")
    with progress_bar("predicting") as track:
        predict_to_disk(
            model.to(device),
            pairs,
            out,
            Run("eval", arguments),
            image_size=config.image_size,
            device=device,
            batch=args.batch,
            threads=args.threads,
            overwrite=args.overwrite,
            track=track,
        )
    kind, alpha = _score(out, frame, alphas, args.thres, SCORES)
    if args.draw:
        _draw_pairs(out, {pair.name: pair for pair in pairs}, frame, kind, alpha, args.draw)
    return 0


def score(args: argparse.Namespace) -> int:
    """Score saved predictions; another protocol than the published one goes into a file of its own."""
    frame, alphas = parse_frame(args.frame), parse_alphas(args.alpha or ALPHAS)
    _score(named_folder(args.out), frame, alphas, args.thres, scores_name(frame, alphas))
    return 0


def calibrate(args: argparse.Namespace) -> int:
    """Fit confidence to one set of predictions, judge it on others."""
    check_picture(args.plot)
    (alpha,) = parse_alphas([args.alpha])
    if args.weights and not (Path(args.weights) / CONFIG).is_file():
        raise InputError(f"--weights {args.weights}: no checkpoint folder, it has no {CONFIG}")
    folders = list(dict.fromkeys(map(Path, [args.fit, *args.check])))
    alike = len({folder.name for folder in folders}) < len(folders)  # then their whole paths tell them apart
    sets = {str(folder) if alike else folder.name: folder for folder in folders}
    judged, absent = {}, {}
    for name, folder in sets.items():
        kind = PUBLISHED_KIND.get(read_arguments(folder).get("benchmark", ""), "img")
        predictions = read_predictions(folder)
        judged[name] = (kind, *judged_points(predictions, kind, alpha))
        absent[name] = absent_points(predictions)
    kind, *first = next(iter(judged.values()))
    calibration = fit_calibration(*first, alpha=alpha, kind=kind, fitted_on=Path(args.fit).name)
    report, curves, curves_with_absent = {}, {}, {}
    for name, (kind, peak, drifts, right) in judged.items():
        confidence = calibration(peak, drifts)
        bins, trade_off = reliability(confidence, right), roc(confidence, right)
        kept = confidence >= MATCH_THRESHOLD
        report[name] = {
            "threshold": kind, "alpha": alpha, "points": len(right), "right": round(100 * right.mean(), 1),
            "calibration_error": round(bins.error, 4), "auc": round(trade_off.area, 4),
            "auc_sharpness_alone": round(roc(peak, right).area, 4),
            "auc_consistency_alone": round(roc(-drifts, right).area, 4),
            "found": round(100 * kept.mean(), 1), "right_of_found": round(100 * right[kept].mean(), 1),
        }  # fmt: skip
        curves[name] = tuple(v.tolist() for v in (bins.promised, bins.kept, trade_off.false_alarms, trade_off.hits))
        lost = calibration(*absent[name])  # whatever is found for a point that is not there is wrong
        report[name] |= {"absent": len(lost), "absent_found": None, "auc_with_absent": None}
        if len(lost):
            both = roc(np.concatenate([confidence, lost]), np.concatenate([right, np.zeros(len(lost), dtype=bool)]))
            report[name] |= {
                "absent_found": round(100 * (lost >= MATCH_THRESHOLD).mean(), 1),
                "auc_with_absent": round(both.area, 4),
            }
            curves_with_absent[name] = both.false_alarms.tolist(), both.hits.tolist()
    if args.plot:
        save_figure(plot_confidence(curves, curves_with_absent), Path(args.plot))
    if args.weights:
        save_calibration(Path(args.weights), calibration)
    if args.json:
        print(json.dumps({"calibration": asdict(calibration), "sets": report}, indent=2))
        return 0
    table = Table(title=f"confidence, fitted on {calibration.fitted_on}")
    table.add_column("")
    for name in report:
        table.add_column(name, justify="right")
    for key in next(iter(report.values())):
        cells = [row[key] for row in report.values()]
        table.add_row(key.replace("_", " "), *("–" if cell is None else str(cell) for cell in cells))
    STDOUT.print(table)
    if args.weights:
        print(f"calibration: {Path(args.weights) / CALIBRATION}")
    return 0


def bench(args: argparse.Namespace) -> int:
    """Time every combination of path, batch and size."""
    check_picture(args.plot)
    device = pick_device(args.device)
    ceilings = measure_ceilings(device)
    rows = []
    for size, batch, path in product(args.size, args.batch, args.path):
        STDERR.print(f"timing {path} path, batch {batch}, {size} × {size}")
        row = benchmark(
            "train" if args.train else "infer", path, batch=batch, size=size, backbone=args.backbone,
            variant=args.variant, device=device, ceilings=ceilings,
        )  # fmt: skip
        rows.append(asdict(row))
    report = {"device": device_name(device), "ceilings": asdict(ceilings), "rows": rows}
    if args.plot:
        save_figure(plot_costs(report), Path(args.plot))
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        _print_costs(report)
    return 0


def check_data(args: argparse.Namespace) -> int:
    """Count what is in a benchmark folder and name its faults."""

    def track(images: Iterable[Path]) -> Iterable[Path]:
        return rich_track(list(images), "decoding images", console=STDERR, transient=True)

    report = check_benchmark(args.benchmark, Path(args.root), args.split, track=track)
    if args.json:
        print(json.dumps(asdict(report), indent=2))
    else:
        table = Table(title=f"{args.benchmark} in {args.root}")
        table.add_column("what")
        table.add_column("number", justify="right")
        for what, number in report.counts.items():
            table.add_row(what, str(number))
        table.add_section()
        for category, number in report.per_category.items():
            table.add_row(category, str(number))
        STDOUT.print(table)
        for problem in report.problems:
            print(problem)
        n = len(report.problems)
        print(f"{n} problem{'s' * (n > 1)} found" if n else "no problem found")
    return 1 if report.problems else 0


def _score(out: Path, frame: Size | None, alphas: list[float], thres: str, name: str) -> tuple[Kind, float]:
    """Score, print and plot; which threshold kind and α stand for the rest."""
    predictions = read_predictions(out)
    scores = score_predictions(predictions, frame=frame, alphas=alphas)
    kind, alpha = headline(scores, out, thres)
    path = write_scores(out / name, scores)
    picture = path.with_suffix(".png")
    save_figure(plot_scores(scores, kind, alpha, title=out.name), picture)
    _print_scores(scores, kind)
    for line in (*remarks(predictions, out), f"scores: {path}", f"plot: {picture}"):
        print(line)
    return kind, float(alpha)


def _draw_pairs(
    out: Path, pairs: Mapping[str, ImagePair], frame: Size | None, kind: Kind, alpha: float, count: int
) -> None:
    """The pairs with the lowest and the highest PCK, as pictures, in place of those of an earlier time."""
    predictions = read_predictions(out)
    scores = pair_scores(predictions, kind, alpha, frame)
    order = worst_first(predictions, kind, alpha, frame)
    worst, best = order[:count], order[count:][: -count - 1 : -1]
    folder = out / "pictures"
    for old in [*folder.glob("worst-*.png"), *folder.glob("best-*.png")]:
        old.unlink()
    for word, chosen in (("worst", worst), ("best", best)):
        for rank, index in enumerate(chosen, 1):
            prediction = predictions[index]
            src, trg = read_pair(pairs[prediction.name])
            src_kps, guesses, truth = map(np.array, (prediction.src_kps, prediction.pred_kps, prediction.trg_kps))
            title = f"{prediction.name}: PCK {scores[index]:.0f} at {alpha:g} of {kind}"
            radius_px = tolerance_px(prediction, kind, alpha, frame)
            figure = draw_errors(src, trg, src_kps, guesses, truth, title, radius_px=radius_px)
            save_figure(figure, folder / f"{word}-{rank:02d}-{_file_name(prediction.name)}.png")
    print(f"pictures: {folder}")


def _file_name(name: str) -> str:
    return "".join(char if char.isalnum() or char in "-_. " else "_" for char in name)


def _print_scores(scores: Mapping[str, Any], kind: str) -> None:
    total = Table(title=f"PCK (%), {scores['n_pairs']} pairs, {scores['n_points']} points, frame {scores['frame']}")
    for name in ("threshold", "α", "per pair", "95 % interval", "per point"):
        total.add_column(name, justify="left" if name == "threshold" else "right")
    for name, cells in scores["pck"].items():
        for alpha, cell in cells.items():
            low, high = cell["ci95"]
            total.add_row(name, alpha, f"{cell['per_pair']:.1f}", f"{low:.1f} – {high:.1f}", f"{cell['per_point']:.1f}")
        total.add_section()
    STDOUT.print(total)
    groups = {**scores["per_category"]}
    for factor, levels in scores["difficulty"].items():
        groups |= {f"{factor}: {level}": table for level, table in levels.items()}
    alphas = list(scores["pck"][kind])
    by_group = Table(title=f"PCK (%) per pair, {kind}, by category and difficulty")
    by_group.add_column("group")
    for alpha in alphas:
        by_group.add_column(f"@ {alpha}", justify="right")
    for name, table in groups.items():
        by_group.add_row(name, *(f"{table[kind][alpha]['per_pair']:.1f}" for alpha in alphas))
    STDOUT.print(by_group)


def _print_costs(report: Mapping[str, Any]) -> None:
    first = report["rows"][0]
    table = Table(title=f"ms/pair, {first['mode']}, {first['backbone']}, {first['variant']}, on {report['device']}")
    lines = [
        {
            "path": row["path"],
            "batch": str(row["batch"]),
            "size": str(row["size"]),
            "matches": str(row["matches"]),
            **{name: f"{row['stages_ms'][name]:.3f}" for name in STAGES},
            "in all": f"{row['ms_per_pair']:.3f}",
            "floor": f"{row['floor_ms']:.3f}",
            "× floor": f"{row['ms_per_pair'] / row['floor_ms']:.1f}",
            "GFLOP": f"{row['gflops']:.1f}",
            "GiB": f"{row['peak_gib']:.2f}",
        }
        for row in report["rows"]
    ]
    wide = STDOUT.width >= WIDE
    for name in lines[0] if wide else ["", *(str(number) for number in range(1, len(lines) + 1))]:
        table.add_column(name, justify="right")
    for cells in (
        [line.values() for line in lines] if wide else [[name, *(line[name] for line in lines)] for name in lines[0]]
    ):
        table.add_row(*cells)
    STDOUT.print(table)
    ceilings = report["ceilings"]
    rate = f"{ceilings['bytes_per_s'] / 1e9:.0f} GB/s copied, {ceilings['flops_per_s'] / 1e12:.2f} TFLOP/s in products"
    print(f"floor: bytes and operations of one pair against what this device does now, {rate}")

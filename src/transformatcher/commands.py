"""What each sub-command does: parsed arguments → calls into the library → tables, files and an exit code."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib.resources import as_file, files
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import track as rich_track
from rich.table import Table

from transformatcher.benchmark import STAGES, benchmark, device_name, measure_ceilings
from transformatcher.checkpoint import SHIPPED, load_checkpoint
from transformatcher.confidence import (
    CALIBRATION,
    fit_calibration,
    load_calibration,
    reliability,
    roc,
    save_calibration,
)
from transformatcher.config import (
    ModelConfig,
    model_config,
    parse_overrides,
    read_model_table,
    read_run_config,
    to_plain,
)
from transformatcher.data.benchmarks import load_benchmark
from transformatcher.data.check import check_benchmark
from transformatcher.distributed import team_of
from transformatcher.errors import InputError
from transformatcher.evaluate import (
    PUBLISHED_KIND,
    SCORES,
    fingerprint,
    headline,
    judged_points,
    parse_alphas,
    parse_frame,
    predict_to_disk,
    read_predictions,
    read_run,
    remarks,
    scores_name,
    write_scores,
)
from transformatcher.evaluate import (
    score as score_predictions,
)
from transformatcher.files import make_folder, read_json
from transformatcher.metrics import ALPHAS
from transformatcher.models.backbone import backbone_of, load_backbone_weights
from transformatcher.models.build import build_matcher
from transformatcher.models.matcher import TransforMatcher
from transformatcher.predictor import NO_MATCH, MatchedPoints, Matcher, pick_device
from transformatcher.propagate import propagate as propagate_keypoints
from transformatcher.tensors import hash_tensors
from transformatcher.train import BEST
from transformatcher.train import train as run_training
from transformatcher.visualize import draw_warp, plot_confidence, plot_costs, plot_scores, save_figure
from transformatcher.warp import morph, save_animation, save_warped, thin_plate_warp

STDOUT = Console(width=None if sys.stdout.isatty() else 160)  # a file or pipe has no width of its own
STDERR = Console(stderr=True)


def match(args: argparse.Namespace) -> int:
    """Match two photos; print a table or JSON, draw a picture."""
    _check_picture(args.out)
    points = _read_points(args.keypoints) if args.keypoints is not None else None
    matcher, description = _load_matcher(args)
    matches = matcher.match(args.src, args.trg, points)
    if args.out:
        matches.draw(args.out, description)
    if args.json:
        numbers = {
            name: getattr(matches, name).round(3).tolist() for name in ("keypoints0", "keypoints1", "confidence")
        }
        print(json.dumps(numbers | {"found": matches.found.tolist(), "calibrated": matches.calibrated}))
    else:
        _print_matches(matches, Path(args.src).name, Path(args.trg).name)
        if args.out:
            print(f"picture: {args.out}")
    return 0


def warp(args: argparse.Namespace) -> int:
    """Bend the source onto the target; write a picture of both, the bare result, and an animation."""
    out = _folder(args.out)
    points = _read_points(args.keypoints) if args.keypoints is not None else None
    matcher, description = _load_matcher(args)
    matches = matcher.match(args.src, args.trg, points)
    used = matches.found if points is not None else matches.sure
    if used.sum() < 3:
        raise InputError(
            f"{used.sum()} of {len(used)} {'keypoints' if points is not None else 'grid cells'} of {args.src} found on "
            f"{args.trg} with confidence; a warp takes 3 or more: choose photos of the same kind of thing from a "
            "similar side, or name points that both show with --keypoints"
        )
    src, trg = matches.pair.src.pixels, matches.pair.trg.pixels
    # Points that a person named are to be met; of the many found by themselves, some are wrong.
    smoothing, reach = (0.01, 0.5) if points is not None else (0.05, 0.2)
    ends = matches.keypoints0[used], matches.keypoints1[used]
    warped, mask = thin_plate_warp(src, *ends, matches.pair.trg.size, smoothing=smoothing, reach=reach)
    pictures = [out / name for name in ("side-by-side.png", "warped.png", "morph.gif")]
    save_figure(draw_warp(src, trg, warped, mask, description), pictures[0])
    save_warped(pictures[1], warped, mask)
    save_animation(pictures[2], morph(warped, mask, trg))
    print(f"{Path(args.src).name} bent onto {Path(args.trg).name} through {used.sum()} matches")
    for picture in pictures:
        print(f"picture: {picture}")
    return 0


def propagate(args: argparse.Namespace) -> int:
    """Carry the keypoints of annotated photos over to others; 1 if some of those could not be read."""
    if Path(_folder(args.out)).suffix.lower() != ".json":
        raise InputError(f"--out {args.out}: the result is a COCO-keypoint file, its name ends in .json")
    if args.threads:
        torch.set_num_threads(args.threads)
    matcher, _ = _load_matcher(args)
    with _progress("predicting", "images") as track:
        result = propagate_keypoints(
            matcher,
            Path(args.annotations),
            [Path(path) for path in args.images],
            Path(args.out),
            images_root=Path(args.images_root) if args.images_root else None,
            category=args.category,
            threshold=args.threshold,
            batch=args.batch,
            threads=args.threads or 2,
            overwrite=args.overwrite,
            track=track,
        )
    if args.json:
        print(json.dumps(asdict(result), indent=2))
    else:
        lost = f", {result.no_match} without a match" if result.no_match else ""
        print(f"{result.keypoints} keypoints on {result.images} images{lost}\nannotations: {result.out}")
    for fault in result.failed.values():
        print(f"left out: {fault}", file=sys.stderr)
    return 1 if result.failed else 0


def demo(args: argparse.Namespace) -> int:
    """Carry named points of one example photo over to two others, and draw them."""
    make_folder(Path(args.out))
    matcher = Matcher.from_pretrained(device=args.device)
    note = json.loads((files("transformatcher") / "examples" / "cat_a.json").read_text(encoding="utf-8"))
    with as_file(files("transformatcher") / "examples") as folder:
        for target in ("cat_b.jpg", "cat_c.jpg"):
            src, trg = folder / "cat_a.jpg", folder / target
            matches = matcher.match(src, trg, list(note.values()))
            picture = Path(args.out) / f"{src.stem}-{trg.stem}.png"
            _print_matches(matches, src.name, trg.name, list(note))
            matches.draw(picture)
            print(f"picture: {picture}\n")
    return 0


def evaluate(args: argparse.Namespace) -> int:
    """Predict every pair of a split, then score."""
    frame, alphas = parse_frame(args.frame), parse_alphas(args.alpha or ALPHAS)
    device = pick_device(args.device)
    out = _folder(args.out)
    model, config, description = _load_model(args)
    root = Path(args.root)
    pairs = load_benchmark(args.benchmark, root, args.split, n_pairs=args.limit or 1000, seed=args.seed)[: args.limit]
    run = {
        "benchmark": args.benchmark,
        "split": None if args.benchmark == "coco" else args.split,
        "n_pairs": len(pairs),
        "pairs": fingerprint(pairs),
        "model": to_plain(config),
        "weights": description,
        "weights_hash": hash_tensors(model.state_dict()),
    }
    if args.thres == "bbox" and any(pair.trg_bbox_px is None for pair in pairs):
        raise InputError(f"--thres bbox: not every pair of {args.benchmark} has an object box; choose another")
    with _progress("predicting") as track:
        predict_to_disk(
            model.to(device),
            pairs,
            out,
            run,
            image_size=config.image_size,
            device=device,
            batch=args.batch,
            threads=args.threads,
            overwrite=args.overwrite,
            track=track,
        )
    return _score(out, frame, alphas, args.thres, SCORES)


def score(args: argparse.Namespace) -> int:
    """Score saved predictions; another protocol than the published one goes into a file of its own."""
    frame, alphas = parse_frame(args.frame), parse_alphas(args.alpha or ALPHAS)
    return _score(_folder(args.out), frame, alphas, args.thres, scores_name(frame, alphas))


def train(args: argparse.Namespace) -> int:
    """Train what a config describes."""
    config = read_run_config(Path(args.config), args.settings)
    out = _folder(args.out) if args.out is not None else Path("runs") / Path(args.config).stem
    with team_of(pick_device(args.device)) as (team, device):
        with _training_progress(quiet=not team.leads) as report:
            progress = run_training(config, out, device, team, resume=args.resume, report=report)
        if team.leads:
            best = f"epoch {progress.best_epoch}: {progress.best:.1f} at α = {config.train.select_alpha:g}"
            print(f"best mean validation PCK, {best}\ncheckpoint: {out / BEST}\ncurves: {out / 'curves.png'}")
    return 0


def calibrate(args: argparse.Namespace) -> int:
    """Fit confidence to one set of predictions, judge it on others."""
    _check_picture(args.plot)
    (alpha,) = parse_alphas([args.alpha])
    sets = {Path(folder).name: Path(folder) for folder in dict.fromkeys([args.fit, *args.check])}
    judged = {}
    for name, folder in sets.items():
        kind = PUBLISHED_KIND.get(read_run(folder).get("benchmark", ""), "img")
        judged[name] = (kind, *judged_points(read_predictions(folder), kind, alpha))
    kind, *first = judged[Path(args.fit).name]
    calibration = fit_calibration(*first, alpha=alpha, kind=kind, fitted_on=Path(args.fit).name)
    report, curves = {}, {}
    for name, (kind, peak, drifts, right) in judged.items():
        confidence = calibration(peak, drifts)
        bins, trade_off = reliability(confidence, right), roc(confidence, right)
        kept = confidence >= NO_MATCH
        report[name] = {
            "threshold": kind, "alpha": alpha, "points": len(right), "right": round(100 * right.mean(), 1),
            "calibration_error": round(bins.error, 4), "auc": round(trade_off.area, 4),
            "auc_sharpness_alone": round(roc(peak, right).area, 4),
            "auc_consistency_alone": round(roc(-drifts, right).area, 4),
            "found": round(100 * kept.mean(), 1), "right_of_found": round(100 * right[kept].mean(), 1),
        }  # fmt: skip
        curves[name] = tuple(v.tolist() for v in (bins.promised, bins.kept, trade_off.false_alarms, trade_off.hits))
    if args.plot:
        save_figure(plot_confidence(curves), Path(args.plot))
    if args.weights:
        save_calibration(Path(args.weights), calibration)
    if args.json:
        print(json.dumps({"calibration": asdict(calibration), "sets": report}, indent=2))
        return 0
    table = Table(title=f"confidence, fitted on {calibration.fitted_on}")
    for name in ("set", *next(iter(report.values()))):
        table.add_column(name.replace("_", " "), justify="left" if name == "set" else "right")
    for name, row in report.items():
        table.add_row(name, *map(str, row.values()))
    STDOUT.print(table)
    if args.weights:
        print(f"calibration: {Path(args.weights) / CALIBRATION}")
    return 0


def bench(args: argparse.Namespace) -> int:
    """Time every combination of path, batch and size."""
    _check_picture(args.plot)
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


def serve(args: argparse.Namespace) -> int:
    """Serve the page until interrupted."""
    try:
        from transformatcher.web.server import serve as serve_page
        from transformatcher.web.session import Limits
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("transformatcher"):
            raise
        raise InputError(
            f"the page needs {error.name}, which is not installed: pip install 'transformatcher[serve]'"
        ) from error
    limits = Limits(upload_bytes=args.max_upload_mb * 1_000_000, pixels=args.max_pixels, sessions=args.max_sessions)
    matcher, description = _load_matcher(args)
    print(f"matching with {description}", flush=True)
    serve_page(matcher, args.host, args.port, limits, browser=not args.no_browser)
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


# ---------------------------------------------------------------- shared by the above


def _load_matcher(args: argparse.Namespace) -> tuple[Matcher, str]:
    """The matcher that the arguments ask for, calibrated if its weights are, and a few words on those."""
    model, config, description = _load_model(args)
    weights = Path(args.weights) if args.weights else SHIPPED
    calibration = None
    if args.matcher != "none":
        calibration = load_calibration(weights if weights.is_dir() else weights.parent)
    return Matcher(model, config, args.device, calibration), description


def _load_model(args: argparse.Namespace) -> tuple[TransforMatcher, ModelConfig, str]:
    """The model that the arguments ask for, its config, and a few words on where its weights come from."""
    if args.weights and (args.matcher or args.backbone or args.backbone_weights):
        raise InputError("--weights brings its own matcher and backbone; leave --matcher and --backbone… out")
    if args.matcher != "none":
        if args.config or args.backbone or args.backbone_weights:
            raise InputError("--config and --backbone… go with --matcher none; a trained model's are fixed")
        folder = Path(args.weights) if args.weights else SHIPPED
        model, config = load_checkpoint(folder, parse_overrides(args.settings))
        changed = f" with {', '.join(args.settings)}" if args.settings else ""
        return model, config, (args.weights or "the model that ships with transformatcher") + changed
    if not args.backbone_weights:
        raise InputError(
            "--matcher none needs --backbone-weights: a .safetensors file, or a torchvision name such as IMAGENET1K_V1 "
            "(with --backbone resnet50 or resnet101)"
        )
    settings: dict[str, Any] = {}
    if args.config:
        model_config(settings := read_model_table(Path(args.config)), source=args.config)
    settings |= parse_overrides(args.settings)
    for key in ("matcher", "variant"):
        if settings.pop(key, "raw") not in ("raw", "none"):
            raise InputError(f"--matcher none is raw correlation: leave {key!r} out of the settings")
    backbone = args.backbone or settings.get("backbone") or backbone_of(args.backbone_weights)
    config = model_config({**settings, "backbone": backbone, "variant": "raw"}, source="--set")
    model = build_matcher(config)
    load_backbone_weights(model.backbone, args.backbone_weights, download=args.download)
    return model, config, f"raw correlation, {Path(args.backbone_weights).name}"


def _score(out: Path, frame: tuple[int, int] | None, alphas: list[float], thres: str, name: str) -> int:
    predictions = read_predictions(out)
    scores = score_predictions(predictions, frame=frame, alphas=alphas)
    kind, alpha = headline(scores, out, thres)
    path = write_scores(out / name, scores)
    picture = path.with_suffix(".png")
    save_figure(plot_scores(scores, kind, alpha, title=out.name), picture)
    _print_scores(scores, kind)
    for line in (*remarks(predictions, out), f"scores: {path}", f"plot: {picture}"):
        print(line)
    return 0


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
    for name in ("path", "batch", "size", "matches", *STAGES, "in all", "floor", "× floor", "GFLOP", "GiB"):
        table.add_column(name, justify="right")
    for row in report["rows"]:
        stages = [f"{row['stages_ms'][name]:.3f}" for name in STAGES]
        ratio = f"{row['ms_per_pair'] / row['floor_ms']:.1f}"
        numbers = [
            f"{row['ms_per_pair']:.3f}",
            f"{row['floor_ms']:.3f}",
            ratio,
            f"{row['gflops']:.1f}",
            f"{row['peak_gib']:.2f}",
        ]
        table.add_row(row["path"], str(row["batch"]), str(row["size"]), str(row["matches"]), *stages, *numbers)
    STDOUT.print(table)
    ceilings = report["ceilings"]
    rate = f"{ceilings['bytes_per_s'] / 1e9:.0f} GB/s copied, {ceilings['flops_per_s'] / 1e12:.2f} TFLOP/s in products"
    print(f"floor: bytes and operations of one pair against what this device does now, {rate}")


def _print_matches(matches: MatchedPoints, src: str, trg: str, names: list[str] | None = None, most: int = 20) -> None:
    n = len(matches.keypoints0)
    table = Table(title=f"{n} points of {src} on {trg}" + (f", the {most} surest" if n > most else ""))
    for name in ("point", f"{src} x, y", f"{trg} x, y", "confidence" if matches.calibrated else "sharpness"):
        table.add_column(name, justify="right")
    order = np.argsort(-matches.confidence)[:most] if n > most else range(n)
    for index in order:
        (x0, y0), (x1, y1) = matches.keypoints0[index], matches.keypoints1[index]
        label = names[index] if names else str(index + 1)
        place = f"{x1:.1f}, {y1:.1f}" if matches.found[index] else f"no match ({x1:.1f}, {y1:.1f})"
        table.add_row(label, f"{x0:.1f}, {y0:.1f}", place, f"{matches.confidence[index]:.3f}")
    STDOUT.print(table)


def _folder(out: str) -> Path:
    if not out:
        raise InputError("--out is empty; name a folder")
    return Path(out)


def _check_picture(out: str | None) -> None:
    if out is not None and Path(out).is_dir():
        raise InputError(f"{out}: a folder; name the picture itself")
    if out is not None and Path(out).suffix.lower() not in {".png", ".jpg", ".jpeg", ".pdf", ".svg", ".webp"}:
        raise InputError(f"{out}: a picture's name ends in .png, .jpg, .pdf, .svg or .webp")


def _read_points(text: str) -> list[list[float]]:
    """``"x,y;x,y"`` or the name of a JSON file with [[x, y], …] or {name: [x, y], …}."""
    try:
        if text.lower().endswith(".json") or (text and Path(text).is_file()):
            data = read_json(Path(text))
            points = [[x + 0.0, y + 0.0] for x, y in (data.values() if isinstance(data, dict) else data)]
        else:
            points = [[float(x), float(y)] for x, y in (point.split(",") for point in text.split(";") if point.strip())]
    except (ValueError, TypeError) as error:
        raise InputError(
            f"--keypoints {text!r}: expected 'x,y;x,y' or a JSON file with [[x, y], …] ({error})"
        ) from error
    if not points:
        raise InputError(f"--keypoints {text!r}: no point there")
    return points


@contextmanager
def _training_progress(quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """A bar with pairs a second and the time left; what ends in a newline stays, as a line above it."""
    columns = (BarColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True, quiet=quiet)) as bar:
        task = bar.add_task("", total=None, rate="")
        start = (time.monotonic(), 0)

        def report(done: int, total: int, words: str) -> None:
            nonlocal start
            now = time.monotonic()
            if done and not start[1]:
                start = (now, done)
            rate = (done - start[1]) / max(now - start[0], 1e-3)
            bar.update(
                task, completed=done, total=total, description=words.strip(), rate=f"{rate:.0f} pairs/s" * (rate > 0)
            )
            if words.endswith("\n"):
                bar.console.print(words.strip(), highlight=False)

        yield report


@contextmanager
def _progress(what: str, unit: str = "pairs") -> Iterator[Callable[[int, int], None]]:
    """A progress bar with ``unit`` a second and the time left, as a ``track(done, total)`` function."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=STDERR) as bar:
        task = bar.add_task(what, total=None, rate="")
        start, before = time.monotonic(), -1

        def track(done: int, total: int) -> None:
            nonlocal before
            before = done if before < 0 else before  # what an earlier run had done does not count as speed
            rate = (done - before) / max(time.monotonic() - start, 1e-3)
            bar.update(task, completed=done, total=total, rate=f"{rate:.1f} {unit}/s" if rate else "")

        yield track

"""Sub-commands for researchers: analyse nonlocality, tables, attention, failures and overlap; report."""

import argparse
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table as Printed

from transformatcher.cli.model_args import STDOUT, check_picture, named_folder, progress_bar, recorded_split
from transformatcher.config import ModelConfig, to_plain
from transformatcher.data.benchmarks import load_benchmark
from transformatcher.data.pairs import find_split
from transformatcher.errors import InputError
from transformatcher.evaluation.analysis.attention_figure import attention_maps, draw_attention
from transformatcher.evaluation.analysis.attention_hooks import additive_layers
from transformatcher.evaluation.analysis.failures import PAGE, gallery_page, worst_pairs
from transformatcher.evaluation.analysis.html import save_with_command
from transformatcher.evaluation.analysis.nonlocality_figures import departure, plot_difficulty, plot_nonlocality
from transformatcher.evaluation.analysis.nonlocality_run import FORMS, compute_nonlocality, summarise, write_summary
from transformatcher.evaluation.analysis.overlap import (
    LISTS_OF_PAIRS,
    TrainingList,
    measure_overlap,
    overlap_table,
    plot_overlap,
)
from transformatcher.evaluation.analysis.paper_tables import nonlocality_tables, result_tables
from transformatcher.evaluation.analysis.report import collect_inputs, render_report
from transformatcher.evaluation.analysis.run_folders import FOLDERS, read_bench, read_eval
from transformatcher.evaluation.analysis.tables import Table, write_table
from transformatcher.evaluation.scores import parse_alphas
from transformatcher.files import write_text
from transformatcher.images import read_image
from transformatcher.inference.checkpoint import SHIPPED, SHIPPED_DESCRIPTION, load_checkpoint
from transformatcher.inference.matcher import pick_device
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.models.weights_io import hash_tensors
from transformatcher.run_folder import RUN, Run
from transformatcher.viz.pictures import save_figure


def nonlocality(args: argparse.Namespace) -> int:
    """Φ of every layer and head on the pairs of a split; figures 6 and 7 of the paper."""
    device, out = pick_device(args.device), named_folder(args.out)
    model, config, description = _load(args)
    pairs = load_benchmark(args.benchmark, Path(args.root), args.split, n_pairs=args.limit or 1000)[: args.limit]
    split = recorded_split(args)
    arguments = {
        "benchmark": args.benchmark,
        "split": split,
        "weights": args.weights,
        "model": to_plain(config),
        "weights_hash": hash_tensors(model.state_dict()),
    }
    run = Run("analyse nonlocality", arguments)
    with progress_bar("computing") as track:
        measured = compute_nonlocality(
            model.to(device), pairs, out, run, image_size=config.image_size, device=device, track=track
        )
    words = ["--benchmark", args.benchmark, "--root", FOLDERS[args.benchmark], *(["--split", split] if split else [])]
    words += [*_weights_words(args), *(["--limit", str(args.limit)] if args.limit else [])]
    data = f"{FOLDERS[args.benchmark]} {split or ''}".strip()
    name = f"{'shipped model' if description == SHIPPED_DESCRIPTION else description}, {data}"
    summary = {"command": _command("nonlocality", *words, "--out", _shown(out)), "model": name, **summarise(measured)}
    files = {"summary": write_summary(out, summary), "plot": out / "nonlocality.png"}
    save_figure(plot_nonlocality(summary, name), files["plot"])
    shares = plot_difficulty(summary, name)
    if shares is not None:
        files["difficulty"] = out / "difficulty.png"
        save_figure(shares, files["difficulty"])
    if args.json:
        print(json.dumps(summary, indent=2))
        return 0
    for table in nonlocality_tables(summary):
        _print(table)
    for form in FORMS:
        print(f"{form}: heads differ from uniform attention by {departure(summary, form):.2g} % at most")
    if shares is None:
        print(f"no figure of difficulty: the pairs of {args.benchmark} have none")
    for what, path in files.items():
        print(f"{what}: {path}")
    return 0


def tables(args: argparse.Namespace) -> int:
    """Class-wise, difficulty and cost tables beside the paper's numbers, as Markdown and LaTeX."""
    out = named_folder(args.out)
    if not args.runs and not args.bench:
        raise InputError("nothing to put into a table: name folders that eval wrote, or --bench FILE.json")
    runs = [read_eval(Path(folder)) for folder in args.runs]
    benches = [read_bench(Path(path)) for path in args.bench]
    for table in result_tables(runs, benches):
        markdown, latex = write_table(table, out)
        print(f"{table.title}: {markdown}, {latex}")
    return 0


def attention(args: argparse.Namespace) -> int:
    """Draw which matches a layer's global query and global key listen to."""
    check_picture(args.out)
    device = pick_device(args.device)
    model, config, description = _load(args)
    src, trg = (read_image(Path(path)) for path in (args.src, args.trg))
    maps = attention_maps(model.to(device), src, trg, config.image_size, args.layer)
    names = [Path(path).name for path in (args.src, args.trg)]
    words = [*names, *_weights_words(args), "--layer", str(maps.layer), "--most", str(args.most)]
    figure = draw_attention(src, trg, maps, description, args.most)
    save_with_command(figure, Path(args.out), _command("attention", *words, "--out", _shown(Path(args.out))))
    chosen = "" if args.layer else " (the most selective)"
    print(f"layer {maps.layer} of {maps.depth}{chosen}\npicture: {args.out}")
    return 0


def failures(args: argparse.Namespace) -> int:
    """The worst pairs of a run, as a page."""
    run = read_eval(Path(args.run_folder))
    out = named_folder(args.out)
    path = out if out.suffix.lower() in (".html", ".htm") else out / PAGE
    (alpha,) = parse_alphas([args.alpha])
    worst = worst_pairs(run, Path(args.root), args.most, alpha)
    words = [_shown(run.folder), "--root", FOLDERS[run.benchmark], "--most", str(args.most)]
    words += ["--alpha", f"{alpha:g}"] if alpha != 0.1 else []
    with progress_bar("drawing") as track:
        text = gallery_page(run, worst, _command("failures", *words, "--out", _shown(out)), alpha, track)
    write_text(path, text)
    print(f"{len(worst)} of {len(run.predictions)} pairs, PCK {worst[0].pck:.1f} to {worst[-1].pck:.1f}\npage: {path}")
    return 0


def overlap(args: argparse.Namespace) -> int:
    """PCK of runs, by what the training list holds of a pair."""
    out = named_folder(args.out)
    runs = [read_eval(Path(folder)) for folder in args.runs]
    for run in runs:
        if not run.benchmark:
            raise InputError(
                f"{run.folder / RUN}: does not say which benchmark these predictions are of; run eval anew"
            )
        wanted, there = run.arguments.get("n_pairs", 0), len(run.predictions)
        if wanted != there:
            raise InputError(f"{run.folder}: holds {there} of {wanted} pairs; the same eval command goes on with it")
    benchmark, split = args.train_benchmark or runs[0].benchmark, find_split(args.train)
    if benchmark not in LISTS_OF_PAIRS:
        raise InputError(
            f"{runs[0].folder}: {runs[0].data} has no training list of its own; name one by --train-benchmark "
            f"({', '.join(LISTS_OF_PAIRS)}) and --train-root"
        )
    if args.train_benchmark and not args.train_root:
        raise InputError(f"--train-benchmark {benchmark}: name its folder too, by --train-root")
    training = TrainingList(benchmark, Path(args.train_root or args.root), split)
    found = measure_overlap(runs, Path(args.root), training)
    words = [*map(_shown, (run.folder for run in runs)), "--root", FOLDERS[runs[0].benchmark]]
    words += ["--train-benchmark", benchmark, "--train-root", FOLDERS[benchmark]] if args.train_benchmark else []
    words += ["--train", split] if split != "trn" else []
    command = _command("overlap", *words, "--out", _shown(out))
    table = overlap_table(found, [*(run.command for run in runs), command])
    files = [*write_table(table, out), out / "overlap.png"]
    save_with_command(plot_overlap(found), files[-1], command)
    _print(table)
    print("\n".join(str(path) for path in files))
    return 0


def report(args: argparse.Namespace) -> int:
    """Everything that is given, in one page."""
    path = Path(args.out)
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out {args.out}: the report is an HTML page; choose a name that ends in .html")
    inputs = collect_inputs([Path(item) for item in args.runs])
    given = [_shown(Path(item)) for item in args.runs]
    command = shlex.join(["transformatcher", "report", *given, "--title", args.title, "--out", _shown(path)])
    with progress_bar("writing", "parts") as track:
        text = render_report(inputs, command, args.title, track)
    write_text(path, text)
    counts: dict[str, Sequence[Any]] = {
        "evaluation": inputs.evals, "speed benchmark": inputs.benches, "training run": inputs.trainings,
        "ablation": inputs.ablations, "nonlocality": inputs.nonlocalities, "gallery": inputs.galleries,
        "picture": inputs.pictures,
    }  # fmt: skip
    print(", ".join(f"{what}: {len(items)}" for what, items in counts.items() if items))
    print(f"report: {path} ({path.stat().st_size / 1e6:.2g} MB)")
    return 0


def _load(args: argparse.Namespace) -> tuple[TransforMatcher, ModelConfig, str]:
    """A trained model with additive attention, its config, and where its weights come from."""
    model, config = load_checkpoint(Path(args.weights) if args.weights else SHIPPED)
    additive_layers(model.refiner)
    return model, config, args.weights or SHIPPED_DESCRIPTION


def _weights_words(args: argparse.Namespace) -> list[str]:
    return ["--weights", args.weights] if args.weights else []


def _shown(path: Path) -> str:
    """A path as it may stand in a document: where on this disk it begins is nobody's business."""
    return path.name if path.is_absolute() else str(path)


def _command(tool: str, *words: str) -> str:
    return shlex.join(["transformatcher", "analyse", tool, *words])


def _print(table: Table) -> None:
    printed = Printed(title=table.title)
    for index, name in enumerate(table.header):
        printed.add_column(name, justify="right" if index else "left")
    for section in table.sections:
        for row in section.rows:
            printed.add_row(*row)
        printed.add_section()
    STDOUT.print(printed)
    for note in table.notes:
        print(note)

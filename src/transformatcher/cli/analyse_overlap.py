"""``transformatcher analyse overlap``: evaluations and a training list → PCK by how much of a pair is trained on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformatcher.cli.analysis_args import shown_path
from transformatcher.cli.inputs import named_folder
from transformatcher.cli.parser import examples
from transformatcher.data.benchmarks import with_training_pairs
from transformatcher.errors import InputError

if TYPE_CHECKING:
    from transformatcher.evaluation.analysis.run_folders import EvalRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = examples("analyse overlap out/raw out/default --root PF-PASCAL --out out/overlap")
    parser.add_argument("runs", nargs="+", metavar="EVAL_DIR", help="folders that eval wrote, of one split")
    parser.add_argument("--root", required=True, metavar="DIR", help="the benchmark's folder, for its lists of pairs")
    parser.add_argument("--train-split", default="trn", metavar="SPLIT", help="the split trained on (%(default)s)")
    parser.add_argument(
        "--train-benchmark", choices=with_training_pairs(), help="the benchmark trained on (the one of the folders)"
    )
    parser.add_argument("--train-root", metavar="DIR", help="the folder of --train-benchmark")
    parser.add_argument("--out", required=True, metavar="DIR", help="a .md, a .tex and a plot go here")


def run(args: argparse.Namespace) -> int:
    """PCK of evaluations, by how much of a pair is in the training list."""
    from transformatcher.cli.tables import print_result_table
    from transformatcher.data.benchmarks import benchmark_folder, find_split
    from transformatcher.evaluation.analysis.html import save_with_command
    from transformatcher.evaluation.analysis.overlap import TrainingList, measure_overlap, overlap_table, plot_overlap
    from transformatcher.evaluation.analysis.run_folders import read_eval
    from transformatcher.evaluation.analysis.tables import write_table
    from transformatcher.run_folder import format_command

    out = named_folder(args.out)
    runs = [read_eval(Path(folder)) for folder in args.runs]
    _check_complete(runs)
    benchmark, split = _training_benchmark(args, runs[0]), find_split(args.train_split)
    training = TrainingList(benchmark, Path(args.train_root or args.root), split)
    measured = measure_overlap(runs, Path(args.root), training)
    options = {
        "root": benchmark_folder(runs[0].benchmark),
        "train_benchmark": args.train_benchmark,
        "train_root": benchmark_folder(benchmark) if args.train_benchmark else None,
        "train_split": None if split == "trn" else split,
        "out": shown_path(out),
    }
    command = format_command(["analyse", "overlap", *(shown_path(run.folder) for run in runs)], options)
    table = overlap_table(measured, [*(run.command for run in runs), command])
    files = [*write_table(table, out), out / "overlap.png"]
    save_with_command(plot_overlap(measured), files[-1], command)
    print_result_table(table)
    print("\n".join(str(path) for path in files))
    return 0


def _check_complete(runs: Sequence[EvalRun]) -> None:
    """Refuse evaluations of an unknown benchmark, and those that were stopped."""
    from transformatcher.run_folder import RUN

    for run in runs:
        if not run.benchmark:
            raise InputError(f"{run.folder / RUN}: does not name the benchmark of these predictions; run eval again")
        wanted, there = run.arguments.get("n_pairs", 0), len(run.predictions)
        if wanted != there:
            raise InputError(f"{run.folder}: holds {there} of {wanted} pairs; the same eval command continues it")


def _training_benchmark(args: argparse.Namespace, run: EvalRun) -> str:
    """The benchmark whose training list is compared: the one given, or that of the evaluation."""
    benchmark = str(args.train_benchmark or run.benchmark)
    if benchmark not in with_training_pairs():
        raise InputError(
            f"{run.folder}: {run.data} has no training list of its own; name one with --train-benchmark "
            f"({', '.join(with_training_pairs())}) and --train-root"
        )
    if args.train_benchmark and not args.train_root:
        raise InputError(f"--train-benchmark {benchmark}: name its folder too, with --train-root")
    return benchmark

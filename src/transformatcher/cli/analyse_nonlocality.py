"""``transformatcher analyse nonlocality``: a benchmark's pairs → nonlocality of every layer and head, with plots."""

import argparse
import json
from pathlib import Path

from transformatcher.cli.analysis_args import load_additive, shown_path
from transformatcher.cli.inputs import named_folder
from transformatcher.cli.model_args import LIMIT, LIMIT_HELP, add_checkpoint, add_data, add_run, recorded_split
from transformatcher.cli.parser import examples

RESUME_HINT = "the same command continues where it stopped"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Measure how far from itself a match attends, in every layer and head (Figures 6 and 7 of the paper). The same "
        "command continues where it was stopped; with a larger --limit, it adds pairs."
    )
    parser.epilog = examples("analyse nonlocality --benchmark spair --root SPair-71k --limit 100 --out out/nonlocality")
    data = add_data(parser)
    data.add_argument("--split", default="val", metavar="SPLIT", help="trn, val or test (%(default)s)")
    data.add_argument("--limit", type=LIMIT, metavar="N", help=LIMIT_HELP)
    output = parser.add_argument_group("output")
    output.add_argument("--out", required=True, metavar="DIR", help="nonlocality.json, .jsonl and plots go here")
    output.add_argument("--json", action="store_true", help="print the summary as JSON")
    add_checkpoint(parser)
    add_run(parser)


def run(args: argparse.Namespace) -> int:
    """Nonlocality Φ of every layer and head on the pairs of a split; Figures 6 and 7 of the paper."""
    from transformatcher.cli.output import progress_bar
    from transformatcher.cli.tables import print_result_table
    from transformatcher.config import to_plain
    from transformatcher.data.benchmarks import benchmark_folder, benchmark_title, load_benchmark
    from transformatcher.evaluation.analysis.nonlocality_figures import departure, plot_difficulty, plot_nonlocality
    from transformatcher.evaluation.analysis.nonlocality_run import FORMS, compute_nonlocality, summarise, write_summary
    from transformatcher.evaluation.analysis.paper_tables import nonlocality_tables
    from transformatcher.inference.checkpoint import SHIPPED_DESCRIPTION
    from transformatcher.inference.device import pick_device
    from transformatcher.models.weights_io import hash_tensors
    from transformatcher.run_folder import Run, format_command
    from transformatcher.viz.pictures import save_figure

    device, out = pick_device(args.device), named_folder(args.out)
    model, config, description = load_additive(args)
    pairs = load_benchmark(args.benchmark, Path(args.root), args.split, limit=args.limit)
    split = recorded_split(args)
    arguments = {
        "benchmark": args.benchmark,
        "split": split,
        "weights": args.weights,
        "model": to_plain(config),
        "weights_hash": hash_tensors(model.state_dict()),
    }
    run_record = Run("analyse nonlocality", arguments)
    with progress_bar("computing") as track:
        measured = compute_nonlocality(
            model.to(device), pairs, out, run_record, image_size=config.image_size, device=device, track=track
        )
    data = benchmark_title(args.benchmark, split)
    name = f"{'shipped model' if description == SHIPPED_DESCRIPTION else description}, {data}"
    options = {
        "benchmark": args.benchmark, "root": benchmark_folder(args.benchmark), "split": split, "weights": args.weights,
        "limit": args.limit, "out": shown_path(out),
    }  # fmt: skip
    command = format_command(["analyse", "nonlocality"], options)
    summary = {"command": command, "model": name, **summarise(measured)}
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
        print_result_table(table)
    for form in FORMS:
        print(f"{form}: heads differ from uniform attention by {departure(summary, form):.2g} % at most")
    if shares is None:
        print(f"no figure of difficulty: the pairs of {args.benchmark} have none")
    for what, path in files.items():
        print(f"{what}: {path}")
    return 0

"""``transformatcher report``: saved results → one self-contained HTML page."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformatcher.cli.analysis_args import shown_path
from transformatcher.cli.parser import examples
from transformatcher.errors import InputError, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = examples("report out/spair out/pfpascal runs/default --out report.html")
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="folders that eval, train, ablate or analyse wrote, files of bench --json, galleries, pictures; or a "
        "folder of these",
    )
    parser.add_argument("--title", default="TransforMatcher: report", help="title of the page (%(default)s)")
    parser.add_argument("--out", required=True, metavar="PAGE.html", help="the page to write")


def run(args: argparse.Namespace) -> int:
    """Write everything that is given into one page."""
    from transformatcher.cli.output import progress_bar
    from transformatcher.evaluation.analysis.report import collect_inputs, render_report
    from transformatcher.files import file_path, write_text
    from transformatcher.run_folder import format_command

    path = file_path(args.out)
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out {args.out}: the report is an HTML page; choose a name that ends in .html")
    inputs = collect_inputs([Path(item) for item in args.runs])
    given = [shown_path(Path(item)) for item in args.runs]
    command = format_command(["report", *given], {"title": args.title, "out": shown_path(path)})
    with progress_bar("writing", "parts") as track:
        text = render_report(inputs, command, args.title, track)
    write_text(path, text)
    counts: dict[str, Sequence[Any]] = {
        "evaluation": inputs.evals, "speed benchmark": inputs.benches, "training run": inputs.trainings,
        "comparison": inputs.comparisons,
        "ablation": inputs.ablations, "nonlocality": inputs.nonlocalities, "gallery": inputs.galleries,
        "picture": inputs.pictures,
    }  # fmt: skip
    print(", ".join(f"{what}: {len(items)}" for what, items in counts.items() if items))
    print(f"report: {printable(path)} ({path.stat().st_size / 1e6:.2g} MB)")
    return 0

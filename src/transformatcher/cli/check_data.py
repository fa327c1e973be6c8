"""``transformatcher data check``: a benchmark folder → counts and problems."""

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from transformatcher.cli.model_args import add_data
from transformatcher.cli.parser import examples
from transformatcher.errors import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Count what is in a benchmark folder, decode every image and list all problems; the exit code is 1 if there "
        "are any."
    )
    parser.epilog = examples("data check --benchmark spair --root SPair-71k")
    data = add_data(parser)
    data.add_argument("--split", metavar="SPLIT", help="trn, val or test (all that are there)")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Count what is in a benchmark folder and list its problems."""
    from rich.progress import track as rich_track
    from rich.table import Table

    from transformatcher.cli.output import STDERR, STDOUT
    from transformatcher.data.validate import check_benchmark

    def track(images: Iterable[Path]) -> Iterable[Path]:
        return rich_track(list(images), "decoding images", console=STDERR, transient=True)

    report = check_benchmark(args.benchmark, Path(args.root), args.split, track=track)
    if args.json:
        print(json.dumps(asdict(report), indent=2))
        return 1 if report.problems else 0
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
        print(printable(problem))
    n = len(report.problems)
    print(f"{n} problem{'s' * (n > 1)} found" if n else "no problem found")
    return 1 if report.problems else 0

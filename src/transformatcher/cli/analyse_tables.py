"""``transformatcher analyse tables``: evaluations and timings → tables beside the paper's, in Markdown and LaTeX."""

import argparse
from pathlib import Path

from transformatcher.cli.inputs import named_folder
from transformatcher.cli.parser import examples
from transformatcher.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = examples("analyse tables out/spair out/pfpascal --bench bench.json --out out/tables")
    parser.add_argument("runs", nargs="*", metavar="EVAL_DIR", help="folders that eval wrote")
    parser.add_argument(
        "--bench", action="append", default=[], metavar="FILE", help="output of bench --json; may be repeated"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="a .md and a .tex for each table go here")


def run(args: argparse.Namespace) -> int:
    """Tables by category, difficulty and cost beside the paper's numbers, as Markdown and LaTeX."""
    from transformatcher.evaluation.analysis.paper_tables import result_tables
    from transformatcher.evaluation.analysis.run_folders import read_bench, read_eval
    from transformatcher.evaluation.analysis.tables import write_table

    out = named_folder(args.out)
    if not args.runs and not args.bench:
        raise InputError("nothing to put into a table: name folders that eval wrote, or --bench FILE.json")
    runs = [read_eval(Path(folder)) for folder in args.runs]
    benches = [read_bench(Path(path)) for path in args.bench]
    for table in result_tables(runs, benches):
        markdown, latex = write_table(table, out)
        print(f"{table.title}: {markdown}, {latex}")
    return 0

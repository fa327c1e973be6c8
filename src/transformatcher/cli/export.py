"""The sub-command that writes a model for other programs."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from transformatcher.cli.model_args import STDERR, STDOUT, load_matcher, set_threads
from transformatcher.data.benchmarks import load_benchmark
from transformatcher.data.pairs import subsample_evenly
from transformatcher.errors import InputError
from transformatcher.evaluation.export_scores import ExportScore, compare
from transformatcher.inference.export import ParityError, format_parity
from transformatcher.inference.export import export as export_matcher

ALPHAS = (0.05, 0.1, 0.15)


def export(args: argparse.Namespace) -> int:
    """Write the file, say how far it is from the model, compare both on a benchmark if that is asked for."""
    path = Path(args.out)
    if path.is_dir():
        raise InputError(f"{path}: a folder; name the file itself")
    if bool(args.benchmark) != bool(args.root):
        raise InputError("--benchmark and --root go together: which benchmark, and where it is")
    pairs = (
        subsample_evenly(load_benchmark(args.benchmark, Path(args.root), args.split), args.limit) if args.root else []
    )
    set_threads(args.threads)
    matcher, description = load_matcher(args)
    h, w = matcher.config.image_size
    STDERR.print(f"exporting {description}, images of {h} × {w}; a minute or two", highlight=False)
    try:
        parity, allowed = export_matcher(matcher, path, args.precision)
    except ParityError as found:
        STDERR.print(str(found), highlight=False)
        return 1
    rows = compare(matcher, path, pairs, args.benchmark, ALPHAS) if pairs else []
    megabytes = path.stat().st_size / 1e6
    if args.json:
        report: dict[str, Any] = {"file": str(path), "megabytes": megabytes, "parity": asdict(parity)}
        print(json.dumps(report | {"measured": [asdict(row) for row in rows]}, indent=2))
        return 0
    print(f"{path}: {megabytes:.1f} MB, {args.precision}, images of {h} × {w}, any number of pairs")
    print(f"parity: differs from the model by {format_parity(parity)}\nallowed: {format_parity(allowed)}")
    if rows:
        _print_measured(rows, f"{args.benchmark} {args.split}, {len(pairs)} pairs, one at a time on a CPU")
    return 0


def _print_measured(rows: Sequence[ExportScore], title: str) -> None:
    table = Table(title=title)
    for name in ("", "MB", "ms/pair", *(f"PCK @ {alpha:g}" for alpha in ALPHAS)):
        table.add_column(name, justify="right" if name else "left")
    for row in rows:
        size = "–" if row.megabytes is None else f"{row.megabytes:.1f}"
        table.add_row(row.name, size, f"{row.ms_per_pair:.0f}", *(f"{value:.2f}" for value in row.pck.values()))
    STDOUT.print(table)

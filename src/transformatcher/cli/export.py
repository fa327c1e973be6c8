"""``transformatcher export``: a model → one ONNX or torch.export file, checked against the model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformatcher.cli.inputs import set_threads
from transformatcher.cli.model_args import LIMIT, LIMIT_HELP, THREADS, add_checkpoint, add_run, load_matcher
from transformatcher.cli.parser import examples
from transformatcher.data.benchmarks import BENCHMARKS
from transformatcher.errors import InputError
from transformatcher.files import check_writable, file_path

if TYPE_CHECKING:
    from transformatcher.evaluation.export_scores import ExportScore

ALPHAS = (0.05, 0.1, 0.15)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Write the model as one file: two images and points of the first in, the points on the second and their "
        "confidence out. The file matches whole photos in one pass, as match --set coarse_to_fine.passes=1 does. It is "
        "written only if its outputs for the example photos equal those of the model; otherwise the exit code is 1."
    )
    parser.epilog = examples(
        "export --out model.onnx",
        "export --out model.onnx --precision float16 --set image_size=[480,640]",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--out", required=True, metavar="FILE", help=".onnx, or .pt2 for torch.export")
    output.add_argument(
        "--precision",
        choices=("float32", "float16", "int8"),
        default="float32",
        help="of the weights in an ONNX file; all compute in float32 (%(default)s)",
    )
    output.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_checkpoint(parser, settings=True)
    data = parser.add_argument_group("comparison", "Compare PCK and time of the model and the file on a benchmark.")
    data.add_argument(
        "--benchmark", choices=BENCHMARKS, metavar="NAME", help=f"layout of the folder: {', '.join(BENCHMARKS)}"
    )
    data.add_argument("--root", metavar="DIR", help="the benchmark's folder")
    data.add_argument("--split", default="val", metavar="SPLIT", help="trn, val or test (%(default)s)")
    data.add_argument("--limit", type=LIMIT, metavar="N", help=LIMIT_HELP)
    group = add_run(parser, device=False)
    group.add_argument("--threads", type=THREADS, metavar="N", help="CPU threads (one for each core)")
    parser.set_defaults(
        device="cpu", refiner=None, config=None, backbone=None, backbone_weights=None, download=False
    )  # what load_matcher asks for


def run(args: argparse.Namespace) -> int:
    """Write the file, print how far it is from the model, compare both on a benchmark if that is asked for."""
    from transformatcher.cli.output import STDERR
    from transformatcher.data.benchmarks import load_benchmark
    from transformatcher.evaluation.export_scores import compare_export
    from transformatcher.inference.export import check_request, export
    from transformatcher.inference.export_parity import ParityError, format_parity

    path = file_path(args.out)
    check_request(path, args.precision)
    check_writable(path)
    if bool(args.benchmark) != bool(args.root):
        raise InputError("--benchmark and --root go together: which benchmark, and where it is")
    pairs = load_benchmark(args.benchmark, Path(args.root), args.split, limit=args.limit) if args.root else []
    set_threads(args.threads)
    matcher, description = load_matcher(args, precision="float32")
    h, w = matcher.config.image_size
    STDERR.print(f"exporting {description}, images of {h} × {w}; a minute or two", highlight=False)
    try:
        parity, allowed = export(matcher, path, args.precision)
    except ParityError as found:
        STDERR.print(str(found), highlight=False)
        return 1
    rows = compare_export(matcher, path, pairs, args.benchmark, ALPHAS) if pairs else []
    megabytes = path.stat().st_size / 1e6
    if args.json:
        report: dict[str, Any] = {"file": str(path), "megabytes": megabytes, "parity": asdict(parity)}
        print(json.dumps(report | {"measured": [asdict(row) for row in rows]}, indent=2))
        return 0
    print(f"{path}: {megabytes:.1f} MB, {args.precision}, images of {h} × {w}, any number of pairs")
    print(f"parity: differs from the model by {format_parity(parity)}\nallowed: {format_parity(allowed)}")
    if rows:
        _print_scores(rows, f"{args.benchmark} {args.split}, {len(pairs)} pairs, one at a time on a CPU")
    return 0


def _print_scores(rows: Sequence[ExportScore], title: str) -> None:
    from transformatcher.cli.tables import print_table

    cells = []
    for row in rows:
        size = "–" if row.megabytes is None else f"{row.megabytes:.1f}"
        cells.append((row.name, size, f"{row.ms_per_pair:.0f}", *(f"{value:.2f}" for value in row.pck.values())))
    print_table(title, ("", "MB", "ms/pair", *(f"PCK @ {alpha:g}" for alpha in ALPHAS)), cells)

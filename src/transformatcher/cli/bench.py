"""``transformatcher bench``: time, memory and operations of every stage, or the time of whole matches."""

import argparse
import json
import runpy
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from transformatcher.cli.inputs import check_picture, set_threads
from transformatcher.cli.model_args import BACKBONE_HELP, BATCH, THREADS, add_precision, add_run, backbone_name
from transformatcher.cli.parser import examples, number
from transformatcher.errors import InputError

# Options that only one kind of measurement takes, with their defaults.
OF_STAGES = {
    "size": [240],
    "backbone": "resnet101",
    "variant": "paper",
    "backend": ["fused", "eager"],
    "train": False,
    "plot": None,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Measure time and memory. By default of a model with random weights and each of its stages, for each "
        "combination of the values given; with --what match, of Matcher.match with the model in the package. What is "
        "compared takes turns."
    )
    parser.epilog = examples(
        "bench",
        "bench --batch 1 8 --size 240 480 --json",
        "bench --what match --batch 1 8",
        "bench --variant released --backend fused --compare other.py",
    )
    group = parser.add_argument_group("what is measured")
    group.add_argument(
        "--what",
        choices=("stages", "match"),
        default="stages",
        help="stages: a model, from image tensors to flow; match: Matcher.match in several ways, from decoded photos "
        "to matches with their confidence (%(default)s)",
    )
    group.add_argument(
        "--batch",
        type=BATCH,
        nargs="+",
        default=[1],
        metavar="N",
        help="pairs at a time; match: targets of a source (1)",
    )
    group.add_argument(
        "--compare",
        metavar="FILE",
        help="a Python file with a function pair(src, trg), which takes turns with ours. It gets image tensors "
        "(batch, 3, size, size); with --what match, two photos as arrays (h, w, 3) of bytes. The file is executed",
    )
    add_precision(group)
    stages = parser.add_argument_group("stages")
    stages.add_argument("--size", type=number(int, 1, 8192), nargs="+", metavar="PX", help="side of the input (240)")
    stages.add_argument("--backbone", type=backbone_name, metavar="NAME", help=f"{BACKBONE_HELP} (resnet101)")
    stages.add_argument("--variant", choices=("paper", "released"), help="of the architecture (paper)")
    stages.add_argument(
        "--backend",
        choices=("fused", "torch", "eager"),
        nargs="+",
        help="implementation of the stages; torch: fused passes without the library in C, on a CPU (fused eager)",
    )
    stages.add_argument("--train", action="store_true", default=None, help="time training steps instead of inference")
    stages.add_argument("--plot", metavar="PICTURE", help="draw time and memory against the number of matches")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print the rows as JSON")
    run_group = add_run(parser)
    run_group.add_argument("--threads", type=THREADS, metavar="N", help="CPU threads (one for each core)")


def run(args: argparse.Namespace) -> int:
    """Time what was asked for, and print a table or JSON."""
    given = [name for name in OF_STAGES if getattr(args, name) is not None]
    if args.what == "match" and given:
        raise InputError(f"--{given[0]} goes with --what stages; --what match times the model in the package")
    for name, default in OF_STAGES.items():
        if getattr(args, name) is None:
            setattr(args, name, default)
    if args.compare and args.train:
        raise InputError("--compare goes with inference; leave --train out")
    check_picture(args.plot)
    other = _load_pair(args.compare) if args.compare else None
    set_threads(args.threads)
    report = _measure_match(args, other) if args.what == "match" else _measure_stages(args, other)
    if args.plot:
        from transformatcher.viz.pictures import save_figure
        from transformatcher.viz.plots import plot_costs

        save_figure(plot_costs(report), Path(args.plot))
    if args.json:
        print(json.dumps(report, indent=2))
    elif args.what == "match":
        from transformatcher.cli.tables import print_match_speed

        print_match_speed(report)
    else:
        from transformatcher.cli.tables import print_costs

        print_costs(report)
    return 0


def _measure_stages(args: argparse.Namespace, other: Callable[[Any, Any], Any] | None) -> dict[str, Any]:
    """Time all backends for each batch and size."""
    from transformatcher.cli.output import STDERR
    from transformatcher.evaluation.floor import measure_device_peaks
    from transformatcher.evaluation.speed import measure_speed
    from transformatcher.evaluation.timing import device_name
    from transformatcher.inference.device import pick_device

    device = pick_device(args.device)
    if "torch" in args.backend and (device.type != "cpu" or args.train):
        raise InputError("--backend torch is for inference on a CPU; choose fused or eager")
    peaks = measure_device_peaks(device)
    rows, others = [], []
    for size, batch in product(args.size, args.batch):
        STDERR.print(f"timing {', '.join(args.backend)}: batch {batch}, {size} × {size}")
        results, other_ms = measure_speed(
            "train" if args.train else "infer", list(dict.fromkeys(args.backend)), batch=batch, size=size,
            backbone=args.backbone, variant=args.variant, device=device, peaks=peaks, precision=args.precision,
            other=other,
        )  # fmt: skip
        rows += [asdict(result) for result in results]
        others.append(other_ms)
    report = {"device": device_name(device), "device_peaks": asdict(peaks), "rows": rows}
    if args.compare:
        for row in rows:
            index = list(product(args.size, args.batch)).index((row["size"], row["batch"]))
            row["compared_ms_per_pair"] = others[index]
        report["compared"] = args.compare
    return report


def _measure_match(args: argparse.Namespace, other: Callable[[Any, Any], Any] | None) -> dict[str, Any]:
    """Time ``Matcher.match`` in all ways."""
    from transformatcher.cli.output import STDERR
    from transformatcher.evaluation.match_speed import measure_matching
    from transformatcher.evaluation.timing import device_name
    from transformatcher.inference.device import pick_device

    device = pick_device(args.device)
    STDERR.print("timing Matcher.match in several ways, in turn")
    results, other_ms = measure_matching(args.device, args.precision, list(dict.fromkeys(args.batch)), other=other)
    report: dict[str, Any] = {"device": device_name(device), "rows": [asdict(result) for result in results]}
    if args.compare:
        report |= {"compared": args.compare, "compared_ms_per_pair": other_ms}
    return report


def _load_pair(path: str) -> Callable[[Any, Any], Any]:
    """The function ``pair`` of a Python file."""
    if not Path(path).is_file():
        raise InputError(f"{path}: no such file")
    found = runpy.run_path(path).get("pair")
    if not callable(found):
        raise InputError(f"{path}: has no function pair(src, trg)")
    function: Callable[[Any, Any], Any] = found
    return function

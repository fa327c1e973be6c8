"""``transformatcher bench``: time, memory and operations of every stage, fused and eager."""

import argparse
import json
from dataclasses import asdict
from itertools import product
from pathlib import Path

from transformatcher.cli.inputs import check_picture
from transformatcher.cli.model_args import BACKBONE_HELP, BATCH, add_run, backbone_name
from transformatcher.cli.parser import examples, number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = "Measure time and memory of every stage, for each combination of the values given."
    parser.epilog = examples("bench", "bench --batch 1 8 --size 240 480 --json")
    group = parser.add_argument_group("what is measured")
    group.add_argument("--batch", type=BATCH, nargs="+", default=[1], metavar="N", help="pairs at a time (1)")
    group.add_argument(
        "--size", type=number(int, 1, 8192), nargs="+", default=[240], metavar="PX", help="side of the input (240)"
    )
    group.add_argument(
        "--backbone", type=backbone_name, default="resnet101", metavar="NAME", help=f"{BACKBONE_HELP} (%(default)s)"
    )
    group.add_argument(
        "--variant", choices=("paper", "released"), default="paper", help="of the architecture (%(default)s)"
    )
    group.add_argument(
        "--backend",
        choices=("fused", "eager"),
        nargs="+",
        default=["fused", "eager"],
        help="implementation of the stages (fused eager)",
    )
    group.add_argument("--train", action="store_true", help="time training steps instead of inference")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print the rows as JSON")
    output.add_argument("--plot", metavar="PICTURE", help="draw time and memory against the number of matches")
    add_run(parser)


def run(args: argparse.Namespace) -> int:
    """Time every combination of backend, batch and size."""
    from transformatcher.cli.output import STDERR
    from transformatcher.cli.tables import print_costs
    from transformatcher.evaluation.speed import device_name, measure_device_peaks, measure_speed
    from transformatcher.inference.device import pick_device
    from transformatcher.viz.pictures import save_figure
    from transformatcher.viz.plots import plot_costs

    check_picture(args.plot)
    device = pick_device(args.device)
    peaks = measure_device_peaks(device)
    rows = []
    for size, batch, backend in product(args.size, args.batch, args.backend):
        STDERR.print(f"timing the {backend} backend, batch {batch}, {size} × {size}")
        result = measure_speed(
            "train" if args.train else "infer", backend, batch=batch, size=size, backbone=args.backbone,
            variant=args.variant, device=device, peaks=peaks,
        )  # fmt: skip
        rows.append(asdict(result))
    report = {"device": device_name(device), "device_peaks": asdict(peaks), "rows": rows}
    if args.plot:
        save_figure(plot_costs(report), Path(args.plot))
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        print_costs(report)
    return 0

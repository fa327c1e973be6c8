"""``transformatcher data points``: a benchmark → the list of points that a method is asked for."""

import argparse
from pathlib import Path

from transformatcher.cli.model_args import LIMIT, LIMIT_HELP, SEED, add_data
from transformatcher.cli.parser import examples


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Write every point that a benchmark asks for: pair, keypoint, the photos and the point on the source. A method "
        "of any kind fills in x, y on the target, and score scores its file."
    )
    parser.epilog = examples("data points --benchmark spair --root SPair-71k --split test --out points.csv")
    data = add_data(parser)
    data.add_argument("--split", default="test", metavar="SPLIT", help="trn, val or test (%(default)s)")
    data.add_argument("--limit", type=LIMIT, metavar="N", help=LIMIT_HELP)
    data.add_argument("--seed", type=SEED, default=0, metavar="N", help="coco: which pairs are drawn (%(default)s)")
    parser.add_argument("--out", required=True, metavar="FILE", help="a .csv or .jsonl")


def run(args: argparse.Namespace) -> int:
    """Write the list of points."""
    from transformatcher.data.benchmarks import load_benchmark
    from transformatcher.evaluation.points_file import write_points_to_predict

    root = Path(args.root)
    pairs = load_benchmark(args.benchmark, root, args.split, limit=args.limit, seed=args.seed)
    count = write_points_to_predict(Path(args.out), pairs, root)
    print(f"{count} points of {len(pairs)} pairs: {args.out}")
    return 0

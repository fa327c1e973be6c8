"""``transformatcher score``: predictions of any method, or those that eval saved → scores under any protocol."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from transformatcher.cli.inputs import named_folder
from transformatcher.cli.model_args import LIMIT, LIMIT_HELP, SEED, add_data, add_score
from transformatcher.cli.parser import examples
from transformatcher.errors import InputError

if TYPE_CHECKING:
    from transformatcher.schema import ImagePair


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Score predictions, without a model: those that eval saved in a folder, or a file with the points of any other "
        "method (.csv or .jsonl with pair, keypoint, x, y and perhaps confidence). Two methods are compared pair by "
        "pair with --against."
    )
    parser.epilog = examples(
        "score out/spair --frame original",
        "score out/spair --pck-threshold img --alpha 0.05 0.1",
        "score theirs.csv --benchmark spair --root SPair-71k --frame all --against out/spair",
    )
    parser.add_argument("predictions", metavar="PREDICTIONS", help="a folder that eval wrote, or a file of points")
    data = add_data(parser, required=False)
    data.add_argument("--split", default="test", metavar="SPLIT", help="of a file: trn, val or test (%(default)s)")
    data.add_argument("--limit", type=LIMIT, metavar="N", help=f"of a file: {LIMIT_HELP}")
    data.add_argument("--seed", type=SEED, default=0, metavar="N", help="coco: which pairs were drawn (%(default)s)")
    data.add_argument(
        "--missing",
        choices=("refuse", "wrong"),
        default="refuse",
        help="of a file: refuse it if points are missing, or count them as wrong (%(default)s)",
    )
    add_score(parser, every_frame=True)
    parser.add_argument("--against", metavar="OTHER", help="another folder or file, to compare with pair by pair")
    parser.add_argument(
        "--write-points", metavar="FILE", help="write the predictions as a file of points (.csv, .jsonl)"
    )
    parser.add_argument("--out", metavar="DIR", help="scores and plots go here (the folder, or that of the file)")


def run(args: argparse.Namespace) -> int:
    """Score saved predictions; every protocol goes into a file of its own."""
    from dataclasses import replace

    from transformatcher.cli.scoring import Protocol, compare_predicted, read_predicted, score_predicted
    from transformatcher.evaluation.metrics import ALPHAS
    from transformatcher.evaluation.points_file import is_points_file, write_points
    from transformatcher.evaluation.scores import parse_alphas, parse_frames

    protocol = Protocol(parse_frames(args.frame), parse_alphas(args.alpha or ALPHAS), args.pck_threshold)
    path = named_folder(args.predictions)
    if args.benchmark is not None and args.root is None:
        raise InputError(f"--benchmark {args.benchmark}: needs --root, where its pairs are")
    is_file = is_points_file(path)
    pairs = _pairs(args, path) if args.root is not None else None
    predicted = read_predicted(path, pairs, args.missing)
    if is_file:
        predicted = replace(predicted, arguments={"benchmark": args.benchmark, "split": args.split})
    other = read_predicted(Path(args.against), pairs, args.missing) if args.against else None
    prefix = f"{path.stem}-" if is_file else ""
    out = named_folder(args.out) if args.out is not None else path.parent if is_file else path
    score_predicted(predicted, protocol, out, prefix)
    if other is not None:
        compare_predicted(predicted, other, protocol, out, prefix)
    if args.write_points:
        count = write_points(Path(args.write_points), predicted.predictions)
        print(f"{count} points: {args.write_points}")
    return 0


def _pairs(args: argparse.Namespace, path: Path) -> list[ImagePair]:
    """The pairs that a file of points predicts: those that the options name, or those of the folder beside it."""
    from transformatcher.data.benchmarks import load_benchmark
    from transformatcher.evaluation.analysis.run_folders import pairs_of, read_eval
    from transformatcher.evaluation.points_file import is_points_file

    if args.benchmark is not None:
        return load_benchmark(args.benchmark, Path(args.root), args.split, limit=args.limit, seed=args.seed)
    if is_points_file(path):
        raise InputError(f"{path}: name the --benchmark that these points are of")
    run = read_eval(path)
    pairs = pairs_of(run, Path(args.root))
    return [pairs[item.name] for item in run.predictions if item.name in pairs]

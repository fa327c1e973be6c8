"""``transformatcher propagate``: a few annotated photos and a folder of others → a COCO-keypoint file."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from transformatcher.cli.inputs import named_folder, set_threads
from transformatcher.cli.model_args import BATCH, THREADS, add_model, add_run, load_matcher
from transformatcher.cli.parser import examples, number
from transformatcher.errors import InputError

RESUME_HINT = "the same command (without --overwrite) continues where it stopped"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Copy the keypoints of a few annotated photos to others. The same command continues where it was stopped. "
        "The exit code is 1 if some image could not be read; the others are done all the same."
    )
    parser.epilog = examples(
        "propagate marked.json photos --out predicted.json",
        "propagate marked.json photos --category cat --threshold 0.7 --out predicted.json",
    )
    parser.add_argument("annotations", metavar="ANNOTATIONS.json", help="a COCO-keypoint file of the annotated photos")
    parser.add_argument(
        "images", nargs="+", metavar="IMAGES", help="folders or files to predict; annotated photos are left out"
    )
    group = parser.add_argument_group("annotations")
    group.add_argument("--out", required=True, metavar="OUT.json", help="the COCO-keypoint file to write")
    group.add_argument(
        "--images-root",
        metavar="DIR",
        help="the folder of the annotated photos (images/ beside ANNOTATIONS.json, or its own folder)",
    )
    group.add_argument("--category", metavar="NAME", help="only this category")
    group.add_argument(
        "--threshold",
        type=number(float, 0, 1),
        metavar="P",
        help="leave out keypoints of less confidence (0.5 with a calibrated model; others leave out none)",
    )
    group.add_argument("--overwrite", action="store_true", help="start again, and replace OUT.json")
    group.add_argument("--json", action="store_true", help="print a summary as JSON")
    add_model(parser)
    run_group = add_run(parser)
    run_group.add_argument("--batch", type=BATCH, default=4, metavar="N", help="images at a time (%(default)s)")
    run_group.add_argument("--threads", type=THREADS, metavar="N", help="CPU threads (one for each core)")


def run(args: argparse.Namespace) -> int:
    """Copy the keypoints of annotated photos to others; 1 if some of those could not be read."""
    from transformatcher.cli.output import progress_bar
    from transformatcher.inference.propagate import propagate

    if Path(named_folder(args.out)).suffix.lower() != ".json":
        raise InputError(f"--out {args.out}: the result is a COCO-keypoint file, its name ends in .json")
    set_threads(args.threads)
    matcher, _ = load_matcher(args)
    with progress_bar("predicting", "images") as track:
        result = propagate(
            matcher,
            Path(args.annotations),
            [Path(path) for path in args.images],
            Path(args.out),
            images_root=Path(args.images_root) if args.images_root else None,
            category=args.category,
            threshold=args.threshold,
            batch=args.batch,
            threads=args.threads or 2,
            overwrite=args.overwrite,
            track=track,
        )
    if args.json:
        print(json.dumps(asdict(result), indent=2))
    else:
        lost = f", {result.no_match} without a match" if result.no_match else ""
        print(f"{result.keypoints} keypoints on {result.images} images{lost}\nannotations: {result.out}")
    for problem in result.failed.values():
        print(f"left out: {problem}", file=sys.stderr)
    return 1 if result.failed else 0

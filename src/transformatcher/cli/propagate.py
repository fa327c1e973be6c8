"""``transformatcher propagate``: a few annotated photos and a folder of others → a COCO-keypoint file, or a project."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from transformatcher.cli.engine_args import add_engine, make_engine, worker_device
from transformatcher.cli.inputs import check_picture, set_threads
from transformatcher.cli.model_args import BATCH, THREADS, add_model, add_run, add_voting, load_matcher
from transformatcher.cli.parser import examples
from transformatcher.errors import InputError, printable
from transformatcher.files import file_path

RESUME_HINT = "the same command (without --overwrite) continues where it stopped"
PROJECT_SUFFIX = ".sqlite"
NOTHING_DRAWN = "--draw: no photo was predicted, so there is no picture"
SHOWN = 5  # points outside their photos that the warning names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Copy the keypoints of a few annotated photos to others. The result holds both; predictions are marked as such "
        "and are no references until a person has corrected them. The same command continues where it was stopped, and "
        "later adds photos that are new. The exit code is 1 if some image could not be read; the others are done all "
        "the same."
    )
    parser.epilog = examples(
        "propagate marked.json photos --out all.json",
        "propagate marked.json photos --out all.json --draw sheet.png",
        "propagate marked.json photos --category cat --threshold 0.7 --out all.json",
        "propagate photos/keypoints.sqlite photos",
    )
    parser.add_argument(
        "annotations",
        metavar="ANNOTATIONS.json",
        help="a COCO-keypoint file of the annotated photos, or the project (.sqlite) of transformatcher annotate",
    )
    parser.add_argument(
        "images", nargs="+", metavar="IMAGES", help="folders or files to predict; annotated photos are left out"
    )
    group = parser.add_argument_group("annotations")
    group.add_argument(
        "--out",
        metavar="OUT.json",
        help="the COCO-keypoint file to write; may be ANNOTATIONS.json itself. Or a project to write to (.sqlite)",
    )
    group.add_argument(
        "--images-root",
        metavar="DIR",
        help="the folder of the annotated photos (the one that a result names, images/ beside ANNOTATIONS.json, or its "
        "own folder)",
    )
    group.add_argument("--category", metavar="NAME", help="only this category")
    add_voting(group)
    group.add_argument(
        "--predict-again",
        action="store_true",
        help="predict photos anew that OUT.json has predictions for; what a person marked or corrected there stays",
    )
    group.add_argument(
        "--overwrite", action="store_true", help="start again from ANNOTATIONS.json, and replace OUT.json"
    )
    group.add_argument(
        "--draw",
        metavar="PICTURE",
        help="draw the predicted photos with their points, least sure first; several pages are numbered "
        "(.png, .jpg, .pdf, .svg, .webp)",
    )
    group.add_argument("--json", action="store_true", help="print a summary as JSON")
    add_model(parser, try_mirrored=True)
    add_engine(parser)
    run_group = add_run(parser)
    run_group.add_argument("--batch", type=BATCH, default=4, metavar="N", help="images at a time (%(default)s)")
    run_group.add_argument("--threads", type=THREADS, metavar="N", help="CPU threads (one for each core)")


def run(args: argparse.Namespace) -> int:
    """Copy the keypoints of annotated photos to others; 1 if some of those could not be read."""
    from transformatcher.cli.output import progress_bar
    from transformatcher.inference.propagate import propagate

    check_picture(args.draw, [args.annotations, *args.images])
    if any(Path(name).suffix.lower() == PROJECT_SUFFIX for name in (args.annotations, args.out or "")):
        from transformatcher.cli.propagate_project import propagate_project

        return propagate_project(args)
    if args.out is None:
        raise InputError("--out OUT.json is missing: the file to write, which may be ANNOTATIONS.json itself")
    if file_path(args.out).suffix.lower() != ".json":
        raise InputError(f"--out {args.out}: the result is a COCO-keypoint file, its name ends in .json")
    set_threads(args.threads)
    engine = make_engine(args)
    device = worker_device(args)
    matcher, _ = load_matcher(args)
    as_path = Path if engine is None else _absolute  # its workers may be in other folders
    with progress_bar("predicting", "images") as track:
        result = propagate(
            matcher,
            as_path(args.annotations),
            [as_path(path) for path in args.images],
            Path(args.out),
            images_root=as_path(args.images_root) if args.images_root else None,
            category=args.category,
            threshold=args.threshold,
            most_references=args.references,
            batch=args.batch,
            threads=args.threads or 2,
            again=args.predict_again,
            overwrite=args.overwrite,
            engine=engine,
            device=None if engine is None else device,
            track=track,
        )
    pictures = []
    if args.draw is not None:
        from transformatcher.inference.propagate_draw import draw_result

        pictures = draw_result(Path(args.out), Path(args.draw))
    if args.json:
        print(json.dumps(asdict(result) | {"pictures": [str(picture) for picture in pictures]}, indent=2))
    else:
        lost = f", {result.no_match} without a match" if result.no_match else ""
        kept = f"; {result.kept} more are predicted already" if result.kept else ""
        print(
            f"{result.keypoints} keypoints on {result.images} images{lost}{kept}\nannotations: {printable(result.out)}"
        )
        if result.other_kind:
            print(f"probably another kind of thing: {printable(', '.join(result.other_kind))}")
        for picture in pictures:
            print(f"picture: {printable(picture)}")
    if args.draw is not None and not pictures:
        print(NOTHING_DRAWN, file=sys.stderr)
    _warn_outside(result.outside)
    for problem in result.failed.values():
        print(f"left out: {printable(problem)}", file=sys.stderr)
    return 1 if result.failed else 0


def _absolute(path: str) -> Path:
    return Path(path).absolute()


def _warn_outside(points: Sequence[str]) -> None:
    if points:
        more = f" and {len(points) - SHOWN} more" if len(points) > SHOWN else ""
        shown = ", ".join(points[:SHOWN])
        print(f"warning: points outside their photos are not used: {printable(shown)}{more}", file=sys.stderr)

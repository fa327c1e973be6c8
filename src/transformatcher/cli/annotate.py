"""``transformatcher annotate``: a page to mark, predict and review the keypoints of a folder of photos."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformatcher.cli.model_args import BATCH, add_model, add_run, load_matcher
from transformatcher.cli.page import CALIBRATED, add_page, check_packages, open_page, use_matcher
from transformatcher.cli.parser import did_you_mean, examples, number
from transformatcher.errors import InputError, printable

if TYPE_CHECKING:
    from transformatcher.annotation.project import Project
    from transformatcher.annotation.scan import ScanReport

FORMATS = ("coco", "yolo", "label-studio", "deeplabcut", "sleap")  # as in annotation.formats, which is slow to import
NO_PHOTO = "no photo there, nor in its sub-folders"
SHOWN = 5  # files of each kind that the output names
RESUME_HINT = "what was done is kept, and the same command continues"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Open a page in the browser to mark the keypoints of a few photos of a folder, have those of all others "
        "predicted, and review them. Everything is kept in one file beside the photos, which are never written to. It "
        "runs until Ctrl-C. With --export, --import or --predict it does that and ends, without a page."
    )
    parser.epilog = examples(
        "annotate photos",
        "annotate photos --import coco:marked.json --predict",
        "annotate photos --export coco:keypoints.json",
        "annotate photos --export yolo:dataset --predictions include",
    )
    parser.add_argument("folder", metavar="FOLDER", help="the folder of the photos, sub-folders included")
    project = parser.add_argument_group("project")
    project.add_argument(
        "--project",
        metavar="FILE",
        help="the project's file (keypoints.sqlite in FOLDER); its lock and cache lie beside",
    )
    project.add_argument(
        "--import",
        dest="imported",
        type=_named_file("coco"),
        metavar="coco:FILE",
        help="take over the keypoints of a COCO file as marks",
    )
    project.add_argument(
        "--predict", action="store_true", help="predict all photos that nobody has reviewed; continues where it stopped"
    )
    project.add_argument(
        "--export",
        type=_named_file(*FORMATS),
        metavar="FORMAT:OUT",
        help=f"write the keypoints; FORMAT is one of {', '.join(FORMATS)}",
    )
    project.add_argument(
        "--predictions",
        choices=("omit", "include", "only"),
        help="whether the export has predictions that nobody has reviewed (omit)",
    )
    add_page(parser).add_argument(
        "--cache-gb",
        type=number(float, 0, 10_000),
        default=4.0,
        metavar="X",
        help="largest size of the photos' features on disk; 0 keeps none (%(default)s)",
    )
    add_model(parser, try_mirrored=True)
    run_group = add_run(parser)
    run_group.add_argument("--batch", type=BATCH, default=4, metavar="N", help="photos at a time (%(default)s)")


def _named_file(*formats: str) -> Any:
    """A ``type=`` for argparse: ``FORMAT:FILE`` → both."""

    def parse(text: str) -> tuple[str, Path]:
        name, colon, file = text.partition(":")
        if not colon or not file:
            raise argparse.ArgumentTypeError(f"{text!r} is not FORMAT:FILE, such as {formats[0]}:keypoints.json")
        if name not in formats:
            known = f"choose from {', '.join(formats)}"
            raise argparse.ArgumentTypeError(
                f"no format is called {name!r}{did_you_mean(name, formats) or f'; {known}'}"
            )
        return name, Path(file)

    return parse


def run(args: argparse.Namespace) -> int:
    """Open the page; or import, predict, export, in this order."""
    from transformatcher.annotation.project import PROJECT, Project
    from transformatcher.annotation.scan import has_photos

    folder, file = Path(args.folder), Path(args.project) if args.project else None
    if args.predictions and not args.export:
        raise InputError("--predictions: says what an export has; give --export FORMAT:OUT, too")
    if args.export and not (args.imported or args.predict):  # beside a page that has the project open, too
        with Project(folder, file, read_only=True) as project:
            _export(project, args)
        return 0
    if folder.is_dir() and not (file or folder / PROJECT).exists() and not has_photos(folder):
        raise InputError(f"{folder}: {NO_PHOTO}")  # before a project is made there
    has_page = not (args.export or args.imported or args.predict)
    if has_page:
        check_packages()
    with Project(folder, file) as project:
        _scan(project)
        if args.imported:
            _import(project, args.imported[1])
        if args.predict:
            _predict(project, args)
        if args.export:
            _export(project, args)
        if has_page:
            open_page(project, load_matcher(args), args, cache_bytes=int(args.cache_gb * 1e9), batch=args.batch)
    return 0


def _scan(project: "Project") -> None:
    from transformatcher.annotation.scan import scan_photos

    report = scan_photos(project)
    n = sum(project.counts().values())
    if not n:
        raise InputError(f"{project.folder}: {NO_PHOTO}")
    print(f"{n} photo{'s' * (n != 1)}, project {printable(project.file)}")
    for line in _changes(report):
        print(printable(line))
    sys.stdout.flush()
    _print_problems("left out", [f"{name}: {why}" for name, why in report.left_out.items()])


def _changes(report: "ScanReport") -> list[str]:
    """What has changed in the folder since the last time, in a line for each kind."""
    lines = []
    if report.moved:
        lines.append(f"moved: {_shortened([f'{old} → {new}' for old, new in report.moved.items()])}")
    if report.changed:
        lines.append(f"changed, and to be predicted anew: {_shortened(report.changed)}")
    if report.back:
        lines.append(f"there again: {_shortened(report.back)}")
    if report.missing:
        lines.append(f"missing, with their marks kept: {_shortened(report.missing)}")
    return lines


def _shortened(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return f"{shown} and {len(names) - SHOWN} more" if len(names) > SHOWN else shown


def _print_problems(what: str, problems: Sequence[str]) -> None:
    """A line for each, of the first few, to standard error."""
    for problem in problems[:SHOWN]:
        print(f"{what}: {printable(problem)}", file=sys.stderr)
    if (more := len(problems) - SHOWN) > 0:
        print(f"{what}: {more} more", file=sys.stderr)


def _import(project: "Project", file: Path) -> None:
    from transformatcher.annotation.formats.coco_import import import_coco

    summary = import_coco(project, file)
    print(f"imported {summary.keypoints} keypoints of {summary.objects} objects on {summary.images} photos")
    _print_problems("left out", summary.skipped)


def _predict(project: "Project", args: argparse.Namespace) -> None:
    from transformatcher.annotation.predictor import Predictor
    from transformatcher.cli.output import progress_bar

    matcher = use_matcher(project, load_matcher(args))
    predictor = Predictor(project, matcher, batch=args.batch, cache_bytes=int(args.cache_gb * 1e9))
    try:
        with progress_bar("predicting", "objects") as track:
            predictor.run(track)
    finally:
        predictor.close()
    if predictor.progress().state == "no_references":
        raise InputError(
            f"{project.file}: no keypoint is marked yet, so there is nothing to predict from; mark some on the page, "
            "or take them over with --import coco:FILE"
        )
    counts = project.counts()
    print(", ".join(f"{counts[state]} {state}" for state in ("reviewed", "marked", "predicted", "unmarked", "failed")
                    if counts.get(state)))  # fmt: skip


def _export(project: "Project", args: argparse.Namespace) -> None:
    from transformatcher.annotation.formats.export import export_project
    from transformatcher.inference.calibration import MATCH_THRESHOLD

    name, out = args.export
    threshold = MATCH_THRESHOLD if project.setting(CALIBRATED, True) else 0.0
    summary = export_project(project, name, out, predictions=args.predictions or "omit", threshold=threshold)
    print(f"{summary.keypoints} keypoints of {summary.objects} objects on {summary.images} photos: {printable(out)}")
    _print_problems("note", summary.notes)

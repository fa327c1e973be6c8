"""``transformatcher simulate-annotation``: how many clicks the studio saves on photos whose keypoints are known."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from transformatcher.cli.inputs import check_picture, named_folder, set_threads
from transformatcher.cli.model_args import (
    ALPHA,
    BATCH,
    COUNT,
    SEED,
    THREADS,
    add_model,
    add_run,
    load_matcher,
    model_arguments,
)
from transformatcher.cli.parser import examples, number

if TYPE_CHECKING:
    from transformatcher.annotation.known_photos import KnownPhoto
    from transformatcher.annotation.simulate import Rules, SimulatedRun
    from transformatcher.inference.matcher import Matcher

FIRST = ("suggested", "random", "least-like")  # as in annotation.simulate, which is slow to import
RUNS = "runs.jsonl"
REPORT = "report.json"
RESUME_HINT = "with --out, the same command continues after the last finished run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Let a simulated person annotate photos whose keypoints are known, and count her clicks. She marks the photos "
        "that the studio suggests, then reviews the others, least sure first: she accepts what is within the "
        "tolerance and corrects the rest. Accepting a photo is a click, and so is each point that is placed, moved or "
        "said to be not there. By hand, a photo takes a click for each visible keypoint, and one to accept it."
    )
    parser.epilog = examples(
        "simulate-annotation --root my-photos --category cat --photos 20",
        "simulate-annotation --root VOC-Keypoints --category cat --category bus --tolerance 0.1 0.05 "
        "--out out/simulated --plot simulated.png",
    )
    data = parser.add_argument_group("data")
    data.add_argument("--root", required=True, metavar="DIR", help="a folder in COCO's layout, or its JSON file")
    data.add_argument("--split", default="val", metavar="SPLIT", help="if the folder has splits (%(default)s)")
    data.add_argument("--category", required=True, action="append", metavar="NAME", help="may be repeated")
    data.add_argument("--photos", type=COUNT, default=60, metavar="N", help="of each category (%(default)s)")
    data.add_argument(
        "--boxes",
        action="store_true",
        help="give the objects' boxes to the studio, at no click; without, only photos with one object are used",
    )
    work = parser.add_argument_group("work")
    work.add_argument(
        "--tolerance",
        type=ALPHA,
        nargs="+",
        default=[0.1],
        metavar="A",
        help="a predicted point this near is accepted, as a share of the longer side of the object's box (0.1)",
    )
    work.add_argument(
        "--first",
        choices=FIRST,
        nargs="+",
        default=["suggested", "random"],
        help="which photos are marked before the review: those that the studio suggests, some at random, or those "
        "least like any that are marked (suggested random)",
    )
    work.add_argument("--references", type=COUNT, default=3, metavar="K", help="how many of them (%(default)s)")
    work.add_argument(
        "--refresh",
        type=_refresh,
        default="8",
        metavar="N",
        help="photos that are predicted anew after each that was reviewed, the least sure first; or all (%(default)s)",
    )
    work.add_argument("--seed", type=SEED, default=0, metavar="N", help="of photos at random (%(default)s)")
    output = parser.add_argument_group("output")
    output.add_argument(
        "--out", metavar="DIR", help=f"{RUNS} and {REPORT} go here; runs that are there are not repeated"
    )
    output.add_argument("--overwrite", action="store_true", help="replace other runs in DIR")
    output.add_argument("--plot", metavar="PICTURE", help="draw the clicks against the photos finished")
    output.add_argument("--json", action="store_true", help="print the report as JSON")
    add_model(parser, try_mirrored=True)
    group = add_run(parser)
    group.add_argument("--batch", type=BATCH, default=8, metavar="N", help="photos at a time (%(default)s)")
    group.add_argument("--threads", type=THREADS, metavar="N", help="CPU threads (one for each core)")


def _refresh(text: str) -> int | None:
    """A number of photos; None for all."""
    return None if text == "all" else int(number(int, 1, 1_000_000)(text))


def run(args: argparse.Namespace) -> int:
    """Simulate each category with each way of work, and report the clicks."""
    from transformatcher.annotation.known_photos import choose_photos, fingerprint
    from transformatcher.annotation.simulate import Rules
    from transformatcher.annotation.simulation_report import make_report
    from transformatcher.data.coco_keypoints import load_coco
    from transformatcher.files import write_text

    check_picture(args.plot)
    set_threads(args.threads)
    objects = load_coco(Path(args.root), args.split)
    photos = {
        name: choose_photos(objects, name, args.photos, boxes=args.boxes) for name in dict.fromkeys(args.category)
    }
    jobs = [
        (name, Rules(first.replace("-", "_"), args.references, tolerance, args.refresh, args.seed))
        for name in photos
        for tolerance in dict.fromkeys(args.tolerance)
        for first in dict.fromkeys(args.first)
    ]
    matcher, _ = load_matcher(args)
    with TemporaryDirectory() as temporary:
        out = Path(temporary) / "out" if args.out is None else named_folder(args.out)
        report = make_report(_simulate_all(args, matcher, photos, jobs, fingerprint(objects), out, Path(temporary)))
        text = json.dumps(report, indent=2)
        write_text(out / REPORT, text + "\n")
    if args.plot:
        from transformatcher.viz.clicks import plot_clicks
        from transformatcher.viz.pictures import save_figure

        save_figure(plot_clicks(report), Path(args.plot))
    if args.json:
        print(text)
    else:
        _print(report, args)
    return 0


def _simulate_all(
    args: argparse.Namespace, matcher: Matcher, photos: Mapping[str, Sequence[KnownPhoto]],
    jobs: Sequence[tuple[str, Rules]], data: str, out: Path, workspace: Path,
) -> list[SimulatedRun]:  # fmt: skip
    """All runs, those that are in ``out`` already included."""
    from transformatcher.annotation.simulate import read_simulated_run, run_name, simulate
    from transformatcher.cli.output import progress_bar
    from transformatcher.config import to_plain
    from transformatcher.models.weights_io import hash_tensors
    from transformatcher.run_folder import LineFile, Run, open_run_folder

    arguments: dict[str, Any] = {
        **model_arguments(args), "references": args.references, "refresh": args.refresh, "seed": args.seed,
        "boxes": args.boxes, "try_mirrored": args.try_mirrored, "photos": args.photos, "data": data,
        "model": to_plain(matcher.config), "weights_hash": hash_tensors(matcher.model.state_dict()),
    }  # fmt: skip
    by_name = {run_name(category, rules): (category, rules) for category, rules in jobs}
    lines = LineFile(out / RUNS, read_simulated_run, "a simulated run")
    with (
        open_run_folder(out, Run("simulate-annotation", arguments), [RUNS], overwrite=args.overwrite),
        progress_bar("annotating", "photos") as track,
    ):
        there = lines.read()
        done = sum(len(photos[category]) for name, (category, _) in by_name.items() if name in there)
        total = sum(len(photos[category]) for category, _ in jobs)
        track(done, total)

        def compute(names: Sequence[str]) -> Iterator[SimulatedRun]:
            nonlocal done
            for name in names:
                category, rules = by_name[name]
                folder = workspace / str(list(photos).index(category))

                def finished(count: int, before: int = done) -> None:
                    track(before + count, total)

                yield simulate(
                    matcher, photos[category], rules, folder, boxes=args.boxes, batch=args.batch,
                    track=finished,
                )  # fmt: skip
                done += len(photos[category])

        runs = lines.complete(list(by_name), compute)
    return [runs[name] for name in by_name]


def _print(report: Mapping[str, Any], args: argparse.Namespace) -> None:
    from transformatcher.cli.tables import print_table

    rows = [
        (
            row["category"], row["first"].replace("_", " "), f"{row['tolerance']:g}", str(row["photos"]),
            str(row["by_hand"][-1]), str(row["clicks"][-1]), f"{row['share']:.0%}",
            *(f"{row[key]}" for key in ("placed", "moved", "removed", "untouched")),
            f"{row['unreviewed'][0]['found_share']:.0%}", f"{row['within_fine']:.0%}",
        )
        for row in report["runs"]
    ]  # fmt: skip
    header = (
        "category", "first", "tolerance", "photos", "by hand", "clicks", "share", "placed", "moved", "removed",
        "untouched", "found by one", "within 0.05",
    )  # fmt: skip
    print_table(f"clicks of a person who marks {args.references} photos and reviews the others", header, rows, left=2)
    for row in report["means"]:
        print(
            f"{row['first'].replace('_', ' ')}, tolerance {row['tolerance']:g}: {row['share']:.1%} of the clicks by "
            f"hand on average over {row['categories']} categories ({row['least']:.0%} to {row['most']:.0%}); after one "
            f"reference, without review, {row['one_reference']:.0%} of the visible keypoints are found"
        )

"""``transformatcher match``: one photo and others → tables or JSON of matches, and pictures."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformatcher.cli.inputs import picture_names, read_points, set_threads
from transformatcher.cli.model_args import (
    BATCH,
    THREADS,
    add_model,
    add_photos,
    add_run,
    load_matcher,
)
from transformatcher.cli.parser import examples
from transformatcher.errors import InputError, printable

if TYPE_CHECKING:
    from transformatcher.inference.matched_pair import MatchedPoints


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Find points of one photo on another, or on several. Without --keypoints, a grid of points is matched and "
        "the most confident are printed."
    )
    parser.epilog = examples(
        "match cat_a.jpg cat_b.jpg --out matches.png",
        'match cat_a.jpg cat_b.jpg --keypoints "168,115;262,241" --json',
        "match cat_a.jpg cat_b.jpg cat_c.jpg --keypoints cat_a.json --out pictures",
    )
    add_photos(parser, targets="+")
    pictures = parser.add_argument_group(
        "pictures", "With several targets, PICTURE names a folder; the pictures in it are called SOURCE-TARGET.png."
    )
    pictures.add_argument(
        "--keypoints",
        metavar="POINTS",
        help="points of SOURCE in pixels: 'x,y;x,y' or a JSON file with [[x, y], …] or {name: [x, y], …}",
    )
    pictures.add_argument(
        "--out", metavar="PICTURE", help="draw the matches, coloured by confidence (.png, .jpg, .pdf, .svg, .webp)"
    )
    pictures.add_argument("--flow", metavar="PICTURE", help="draw where every part of the source lands, as colours")
    pictures.add_argument(
        "--heatmap", metavar="PICTURE", help="draw where each keypoint might be, as a heat map; several are numbered"
    )
    pictures.add_argument("--json", action="store_true", help="print the matches as JSON; a list, for several targets")
    add_model(parser, try_mirrored=True)
    group = add_run(parser)
    group.add_argument("--batch", type=BATCH, default=4, metavar="N", help="targets at a time (%(default)s)")
    group.add_argument("--threads", type=THREADS, metavar="N", help="CPU threads (one for each core)")


def run(args: argparse.Namespace) -> int:
    """Match a photo with one or several others; print tables or JSON, draw pictures."""
    from transformatcher.images import image_size

    named = read_points(args.keypoints) if args.keypoints is not None else {}
    points = list(named.values()) or None
    if args.heatmap is not None and points is None:
        raise InputError("--heatmap shows where a point of SOURCE might be on TARGET; name points with --keypoints")
    pictures = _pictures(args, len(points or []))
    set_threads(args.threads)
    if len(args.trg) > 1:  # a file that is no image is found before anything is printed or written
        for photo in args.trg:
            image_size(Path(photo))
    matcher, description = load_matcher(args)
    found = matcher.match_many(args.src, args.trg, points, args.batch)
    report = []
    for target, matches, (out, flow, heatmaps) in zip(args.trg, found, pictures, strict=True):
        for picture in out:
            matches.draw(picture, description, point_names=list(named))
        for picture in flow:
            matches.pair.draw_flow(picture, description)
        for (name, point), picture in zip(named.items(), heatmaps, strict=False):
            matches.pair.draw_heatmap(point, picture, f"{name} · {description}")
        if args.json:
            names = {"names": list(named)} if named else {}
            report.append(names | _as_json(matches) | ({"target": target} if len(args.trg) > 1 else {}))
        else:
            _print(args, matches, target, list(named), [*out, *flow, *heatmaps])
    if args.json:
        print(json.dumps(report if len(args.trg) > 1 else report[0]))
    return 0


def _pictures(args: argparse.Namespace, n_points: int) -> list[tuple[list[Path], list[Path], list[Path]]]:
    """For each target, the pictures of --out, --flow and --heatmap."""
    outs = picture_names("--out", args.out, args.src, args.trg)
    flows = picture_names("--flow", args.flow, args.src, args.trg, "-flow")
    heatmaps = picture_names("--heatmap", args.heatmap, args.src, args.trg, "-heatmap", n_points)
    names = [name for option in (outs, flows, heatmaps) for group in option for name in group]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(
            f"{twice}: two pictures cannot have one name; give --out, --flow and --heatmap different names"
        )
    return list(zip(outs, flows, heatmaps, strict=True))


def _as_json(matches: MatchedPoints) -> dict[str, Any]:
    numbers = {name: getattr(matches, name).round(3).tolist() for name in ("keypoints0", "keypoints1", "confidence")}
    same_kind = None if matches.same_kind is None else round(matches.same_kind, 3)
    pair = {"calibrated": matches.calibrated, "same_kind": same_kind, "mirrored": matches.mirrored}
    return numbers | {"is_match": matches.is_match.tolist()} | pair


def _print(args: argparse.Namespace, matches: MatchedPoints, target: str, names: list[str], files: list[Path]) -> None:
    from transformatcher.cli.tables import print_matches

    print_matches(matches, Path(args.src).name, Path(target).name, names)
    for picture in files:
        print(f"picture: {printable(picture)}")

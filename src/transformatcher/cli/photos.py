"""Sub-commands for photos: match, warp, propagate, serve and the demo."""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from transformatcher.cli.model_args import (
    PICTURES,
    STDOUT,
    check_picture,
    load_matcher,
    named_folder,
    progress_bar,
    read_points,
    set_threads,
)
from transformatcher.errors import InputError
from transformatcher.files import make_folder
from transformatcher.inference.matcher import MatchedPoints, Matcher, to_pixels

# What only some commands need is imported by them: matplotlib and scipy take longer than matching two photos.


def match(args: argparse.Namespace) -> int:
    """Match a photo with one or several others; print tables or JSON, draw pictures. Or the pairs of a list."""
    if args.pairs is not None:
        from transformatcher.cli.match_pairs import match_pairs

        return match_pairs(args)
    if args.part or args.cache_gb:
        raise InputError("--part and --cache-gb go with --pairs")
    named = read_points(args.keypoints) if args.keypoints is not None else {}
    points = list(named.values()) or None
    if args.heat is not None and points is None:
        raise InputError("--heat shows where a point of SOURCE might be on TARGET; name points with --keypoints")
    outs = picture_names("--out", args.out, args.src, args.trg)
    flows = picture_names("--flow", args.flow, args.src, args.trg, "-flow")
    heats = picture_names("--heat", args.heat, args.src, args.trg, "-heat", len(points or []))
    names = [name for option in (outs, flows, heats) for group in option for name in group]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(
            f"{twice}: two pictures cannot have one name; give --out, --flow and --heat names of their own"
        )
    set_threads(args.threads)
    if len(args.trg) > 1:  # a bad one among them is found before anything is printed or written
        for photo in args.trg:
            to_pixels(photo)
    matcher, description = load_matcher(args)
    found = matcher.match_many(args.src, args.trg, points, args.batch)
    report = []
    for target, matches, out, flow, heat in zip(args.trg, found, outs, flows, heats, strict=True):
        for picture in out:
            matches.draw(picture, description)
        for picture in flow:
            matches.pair.draw_flow(picture, description)
        for point, picture in zip(points or [], heat, strict=False):
            matches.pair.draw_heatmap(point, picture, description)
        if args.json:
            names_of = {"names": list(named)} if named else {}
            report.append(names_of | _as_json(matches) | ({"target": target} if len(args.trg) > 1 else {}))
        else:
            _print_matches(matches, Path(args.src).name, Path(target).name, list(named))
            for picture in (*out, *flow, *heat):
                print(f"picture: {picture}")
    if args.json:
        print(json.dumps(report if len(args.trg) > 1 else report[0]))
    return 0


def picture_names(
    option: str, given: str | None, src: str, targets: Sequence[str], word: str = "", count: int = 1
) -> list[list[Path]]:
    """For each target, the pictures that an option asks for.

    Args:
        option: its name.
        given: what follows it: a picture for one target, a folder for several; None asks for none.
        src, targets: photos; in a folder, a picture is called SOURCE-TARGET.
        word: goes behind that.
        count: pictures of each target; more than one are numbered from 1.
    """
    if given is None:
        return [[] for _ in targets]
    if len(targets) == 1:
        check_picture(given)
        names = [Path(given)]
    else:
        if not given:
            raise InputError(f"{option} is empty; name a folder")
        if Path(given).suffix.lower() in PICTURES or Path(given).is_file():
            raise InputError(f"{option} {given}: {len(targets)} targets make a picture each; name a folder for them")
        stems: list[str] = []
        for target in targets:
            stem = f"{Path(src).stem}-{Path(target).stem}"
            alike = sum(other == stem or other.startswith(f"{stem} (") for other in stems)
            stems.append(f"{stem} ({alike + 1})" if alike else stem)
        names = [Path(given) / f"{stem}{word}.png" for stem in stems]
    if count == 1:
        return [[name] for name in names]
    return [[name.with_name(f"{name.stem}-{i}{name.suffix}") for i in range(1, count + 1)] for name in names]


def _as_json(matches: MatchedPoints) -> dict[str, Any]:
    numbers = {name: getattr(matches, name).round(3).tolist() for name in ("keypoints0", "keypoints1", "confidence")}
    return numbers | {"is_match": matches.is_match.tolist(), "calibrated": matches.calibrated}


def warp(args: argparse.Namespace) -> int:
    """Bend the source onto the target; write a picture of both, the bare result, and an animation."""
    from transformatcher.viz.pictures import draw_warp, save_figure
    from transformatcher.viz.warp import morph, save_animation, save_warped, thin_plate_warp

    out = named_folder(args.out)
    points = list(read_points(args.keypoints).values()) if args.keypoints is not None else None
    set_threads(args.threads)
    matcher, description = load_matcher(args)
    matches = matcher.match(args.src, args.trg, points)
    used = matches.is_match if points is not None else matches.reliable
    if used.sum() < 3:
        raise InputError(
            f"{used.sum()} of {len(used)} {'keypoints' if points is not None else 'grid cells'} of {args.src} found on "
            f"{args.trg} with confidence; a warp takes 3 or more: choose photos of the same kind of thing from a "
            "similar side, or name points that both show with --keypoints"
        )
    src, trg = matches.pair.src.pixels, matches.pair.trg.pixels
    # Points that a person named are to be met; of the many found by themselves, some are wrong.
    smoothing, reach = (0.01, 0.5) if points is not None else (0.05, 0.2)
    ends = matches.keypoints0[used], matches.keypoints1[used]
    warped, mask = thin_plate_warp(src, *ends, matches.pair.trg.size, smoothing=smoothing, reach=reach)
    pictures = [out / name for name in ("side-by-side.png", "warped.png", "morph.gif")]
    save_figure(draw_warp(src, trg, warped, mask, description), pictures[0])
    save_warped(pictures[1], warped, mask)
    save_animation(pictures[2], morph(warped, mask, trg))
    print(f"{Path(args.src).name} bent onto {Path(args.trg).name} through {used.sum()} matches")
    for picture in pictures:
        print(f"picture: {picture}")
    return 0


def propagate(args: argparse.Namespace) -> int:
    """Carry the keypoints of annotated photos over to others; 1 if some of those could not be read."""
    from transformatcher.inference.propagate import propagate as propagate_keypoints

    if Path(named_folder(args.out)).suffix.lower() != ".json":
        raise InputError(f"--out {args.out}: the result is a COCO-keypoint file, its name ends in .json")
    set_threads(args.threads)
    matcher, _ = load_matcher(args)
    with progress_bar("predicting", "images") as track:
        result = propagate_keypoints(
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
    for fault in result.failed.values():
        print(f"left out: {fault}", file=sys.stderr)
    return 1 if result.failed else 0


def demo(args: argparse.Namespace) -> int:
    """Carry named points of one example photo over to two others, and draw them."""
    make_folder(Path(args.out))
    matcher = Matcher.from_pretrained(device=args.device)
    note = json.loads((files("transformatcher") / "examples" / "cat_a.json").read_text(encoding="utf-8"))
    with as_file(files("transformatcher") / "examples") as folder:
        for name in ("cat_a.jpg", "cat_a.json", "cat_b.jpg", "cat_c.jpg"):
            shutil.copyfile(folder / name, Path(args.out) / name)
        for target in ("cat_b.jpg", "cat_c.jpg"):
            src, trg = folder / "cat_a.jpg", folder / target
            matches = matcher.match(src, trg, list(note.values()))
            picture = Path(args.out) / f"{src.stem}-{trg.stem}.png"
            _print_matches(matches, src.name, trg.name, list(note))
            matches.draw(picture)
            print(f"picture: {picture}\n")
    print(f"photos: {args.out}")
    return 0


def serve(args: argparse.Namespace) -> int:
    """Serve the page until interrupted."""
    try:
        from transformatcher.web.server import serve as serve_page
        from transformatcher.web.session import Limits
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("transformatcher"):
            raise
        raise InputError(
            f"the page needs {error.name}, which is not installed: pip install 'transformatcher[serve]'"
        ) from error
    limits = Limits(upload_bytes=args.max_upload_mb * 1_000_000, pixels=args.max_pixels, sessions=args.max_sessions)
    matcher, description = load_matcher(args)
    print(f"matching with {description}", flush=True)
    serve_page(matcher, args.host, args.port, limits, browser=not args.no_browser)
    return 0


def _print_matches(matches: MatchedPoints, src: str, trg: str, names: list[str], most: int = 20) -> None:
    """Those that have names all; of the many found by themselves, the surest."""
    n = len(matches.keypoints0)
    order = range(n) if names else [i for i in np.argsort(-matches.confidence).tolist() if matches.is_match[i]][:most]
    table = Table(title=f"{n} points of {src} on {trg}" + (f", the {len(order)} surest" if len(order) < n else ""))
    for name in ("point", f"{src} x, y", f"{trg} x, y", "confidence" if matches.calibrated else "sharpness"):
        table.add_column(name, justify="right")
    for index in order:
        (x0, y0), (x1, y1) = matches.keypoints0[index], matches.keypoints1[index]
        label = names[index] if names else str(index + 1)
        place = f"{x1:.1f}, {y1:.1f}" if matches.is_match[index] else f"no match ({x1:.1f}, {y1:.1f})"
        table.add_row(label, f"{x0:.1f}, {y0:.1f}", place, f"{matches.confidence[index]:.3f}")
    STDOUT.print(table)

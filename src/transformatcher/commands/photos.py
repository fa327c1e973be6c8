"""Sub-commands for photos: match, warp, propagate, serve and the demo."""

import argparse
import json
import sys
from dataclasses import asdict
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import torch
from rich.table import Table

from transformatcher.commands.shared import (
    STDOUT,
    check_picture,
    load_matcher,
    named_folder,
    progress_bar,
    read_points,
)
from transformatcher.errors import InputError
from transformatcher.files import make_folder
from transformatcher.predictor import MatchedPoints, Matcher
from transformatcher.propagate import propagate as propagate_keypoints
from transformatcher.visualize import draw_warp, save_figure
from transformatcher.warp import morph, save_animation, save_warped, thin_plate_warp


def match(args: argparse.Namespace) -> int:
    """Match two photos; print a table or JSON, draw a picture."""
    check_picture(args.out)
    points = read_points(args.keypoints) if args.keypoints is not None else None
    matcher, description = load_matcher(args)
    matches = matcher.match(args.src, args.trg, points)
    if args.out:
        matches.draw(args.out, description)
    if args.json:
        numbers = {
            name: getattr(matches, name).round(3).tolist() for name in ("keypoints0", "keypoints1", "confidence")
        }
        print(json.dumps(numbers | {"found": matches.found.tolist(), "calibrated": matches.calibrated}))
    else:
        _print_matches(matches, Path(args.src).name, Path(args.trg).name)
        if args.out:
            print(f"picture: {args.out}")
    return 0


def warp(args: argparse.Namespace) -> int:
    """Bend the source onto the target; write a picture of both, the bare result, and an animation."""
    out = named_folder(args.out)
    points = read_points(args.keypoints) if args.keypoints is not None else None
    matcher, description = load_matcher(args)
    matches = matcher.match(args.src, args.trg, points)
    used = matches.found if points is not None else matches.sure
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
    if Path(named_folder(args.out)).suffix.lower() != ".json":
        raise InputError(f"--out {args.out}: the result is a COCO-keypoint file, its name ends in .json")
    if args.threads:
        torch.set_num_threads(args.threads)
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
        for target in ("cat_b.jpg", "cat_c.jpg"):
            src, trg = folder / "cat_a.jpg", folder / target
            matches = matcher.match(src, trg, list(note.values()))
            picture = Path(args.out) / f"{src.stem}-{trg.stem}.png"
            _print_matches(matches, src.name, trg.name, list(note))
            matches.draw(picture)
            print(f"picture: {picture}\n")
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


def _print_matches(matches: MatchedPoints, src: str, trg: str, names: list[str] | None = None, most: int = 20) -> None:
    n = len(matches.keypoints0)
    table = Table(title=f"{n} points of {src} on {trg}" + (f", the {most} surest" if n > most else ""))
    for name in ("point", f"{src} x, y", f"{trg} x, y", "confidence" if matches.calibrated else "sharpness"):
        table.add_column(name, justify="right")
    order = np.argsort(-matches.confidence)[:most] if n > most else range(n)
    for index in order:
        (x0, y0), (x1, y1) = matches.keypoints0[index], matches.keypoints1[index]
        label = names[index] if names else str(index + 1)
        place = f"{x1:.1f}, {y1:.1f}" if matches.found[index] else f"no match ({x1:.1f}, {y1:.1f})"
        table.add_row(label, f"{x0:.1f}, {y0:.1f}", place, f"{matches.confidence[index]:.3f}")
    STDOUT.print(table)

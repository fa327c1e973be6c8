"""``transformatcher warp``: two photos → the first warped onto the second, as pictures and an animation."""

import argparse
from pathlib import Path

from transformatcher.cli.inputs import named_folder, read_points, set_threads
from transformatcher.cli.model_args import THREADS, add_model, add_photos, add_run, load_matcher
from transformatcher.cli.parser import examples
from transformatcher.errors import InputError, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Warp one photo onto another through their matches. Writes side-by-side.png, warped.png (in the frame of "
        "TARGET, transparent where nothing of SOURCE lands) and morph.gif."
    )
    parser.epilog = examples(
        "warp cat_a.jpg cat_b.jpg --out warped",
        "warp cat_a.jpg cat_b.jpg --keypoints cat_a.json --out warped",
    )
    add_photos(parser, "the photo to be warped")
    pictures = parser.add_argument_group("pictures")
    pictures.add_argument(
        "--keypoints",
        metavar="POINTS",
        help="warp through the matches of these points of SOURCE: 'x,y;x,y' or a JSON file; without: through all "
        "confident matches",
    )
    pictures.add_argument("--out", default="out/warp", metavar="DIR", help="the three pictures go here (%(default)s)")
    add_model(parser, try_mirrored=True)
    group = add_run(parser)
    group.add_argument("--threads", type=THREADS, metavar="N", help="CPU threads (one for each core)")


def run(args: argparse.Namespace) -> int:
    """Warp the source onto the target; write a picture of both, the warped photo alone, and an animation."""
    from transformatcher.cli.tables import print_pair_notes
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
            f"{args.trg} with confidence; a warp takes 3 or more: choose photos of the same kind of object from a "
            "similar viewpoint, or name points that both show with --keypoints"
        )
    src, trg = matches.pair.src.pixels, matches.pair.trg.pixels
    # Points that a person named are to be met; of the many found automatically, some are wrong.
    smoothing, margin = (0.01, 0.5) if points is not None else (0.05, 0.2)
    ends = matches.keypoints0[used], matches.keypoints1[used]
    warped, mask = thin_plate_warp(src, *ends, matches.pair.trg.size, smoothing=smoothing, margin=margin)
    pictures = [out / name for name in ("side-by-side.png", "warped.png", "morph.gif")]
    save_figure(draw_warp(src, trg, warped, mask, description, names=matches.pair.names), pictures[0])
    save_warped(pictures[1], warped, mask)
    save_animation(pictures[2], morph(warped, mask, trg))
    names = Path(args.src).name, Path(args.trg).name
    print(f"{printable(names[0])} warped onto {printable(names[1])} through {used.sum()} matches")
    print_pair_notes(matches, *names)
    for picture in pictures:
        print(f"picture: {printable(picture)}")
    return 0

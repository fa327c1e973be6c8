"""``transformatcher analyse attention``: two photos → a picture of the matches that a layer attends to."""

import argparse
from pathlib import Path

from transformatcher.cli.analysis_args import load_additive, shown_path
from transformatcher.cli.inputs import check_picture
from transformatcher.cli.model_args import COUNT, add_checkpoint, add_photos, add_run
from transformatcher.cli.parser import examples, number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = examples("analyse attention cat_a.jpg cat_b.jpg --out attention.png")
    add_photos(parser, "one photo")
    pictures = parser.add_argument_group("pictures")
    pictures.add_argument("--layer", type=number(int, 1, 1000), metavar="N", help="from 1 (the most selective layer)")
    pictures.add_argument("--most", type=COUNT, default=20, metavar="N", help="matches for each head (%(default)s)")
    pictures.add_argument("--out", required=True, metavar="PICTURE", help=".png, .jpg, .pdf, .svg or .webp")
    add_checkpoint(parser)
    add_run(parser)


def run(args: argparse.Namespace) -> int:
    """Draw which matches a layer's global query and global key attend to."""
    from transformatcher.evaluation.analysis.attention_figure import attention_maps, draw_attention
    from transformatcher.evaluation.analysis.html import save_with_command
    from transformatcher.images import read_image
    from transformatcher.inference.device import pick_device
    from transformatcher.run_folder import format_command

    check_picture(args.out, [args.src, args.trg])
    device = pick_device(args.device)
    model, config, description = load_additive(args)
    src, trg = (read_image(Path(path)) for path in (args.src, args.trg))
    maps = attention_maps(model.to(device), src, trg, config.image_size, args.layer)
    names = [Path(path).name for path in (args.src, args.trg)]
    options = {"weights": args.weights, "layer": maps.layer, "most": args.most, "out": shown_path(Path(args.out))}
    command = format_command(["analyse", "attention", *names], options)
    save_with_command(draw_attention(src, trg, maps, description, args.most), Path(args.out), command)
    chosen = "" if args.layer else " (the most selective)"
    print(f"layer {maps.layer} of {maps.depth}{chosen}\npicture: {args.out}")
    return 0

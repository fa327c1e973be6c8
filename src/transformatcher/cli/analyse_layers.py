"""``transformatcher analyse layers``: a backbone → which of its layers, alone and by twos, match best as they are."""

import argparse
import json
from pathlib import Path

from transformatcher.cli.analysis_args import shown_path
from transformatcher.cli.inputs import named_folder
from transformatcher.cli.model_args import ALPHA, LIMIT, LIMIT_HELP, SEED, add_data, add_model, add_run, load_matcher
from transformatcher.cli.parser import examples

LAYERS = "layers.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Match by the raw correlation of each layer of a backbone, and of each two, and score it: which layers know "
        "the most of a correspondence before anything is trained. Choose model.layers by a validation set."
    )
    parser.epilog = examples(
        "analyse layers --benchmark spair --root SPair-71k --backbone resnet50 --backbone-weights IMAGENET1K_V1 "
        "--out out/layers",
    )
    data = add_data(parser)
    data.add_argument("--split", default="val", metavar="SPLIT", help="trn, val or test (%(default)s)")
    data.add_argument("--limit", type=LIMIT, metavar="N", help=LIMIT_HELP)
    data.add_argument("--seed", type=SEED, default=0, metavar="N", help="coco: which pairs are drawn (%(default)s)")
    parser.add_argument("--alpha", type=ALPHA, default=0.1, metavar="A", help="tolerance of the PCK (%(default)s)")
    parser.add_argument("--out", required=True, metavar="DIR", help="layers.json and the plot go here")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    add_model(parser)
    add_run(parser)


def run(args: argparse.Namespace) -> int:
    """Score every layer and every two; print the best, write all, plot."""
    from functools import partial

    from transformatcher.cli.output import progress_bar
    from transformatcher.cli.tables import print_table
    from transformatcher.data.benchmarks import benchmark_folder, benchmark_title, find_benchmark, load_benchmark
    from transformatcher.data.pairs import load_pair
    from transformatcher.data.prefetch import prefetch
    from transformatcher.evaluation.analysis.layer_scores import score_layers
    from transformatcher.evaluation.scores import published_threshold
    from transformatcher.files import write_text
    from transformatcher.run_folder import format_command
    from transformatcher.viz.pictures import save_figure
    from transformatcher.viz.plots import plot_layers

    args.refiner = "none"
    out = named_folder(args.out)
    matcher, description = load_matcher(args)
    pairs = load_benchmark(args.benchmark, Path(args.root), args.split, limit=args.limit, seed=args.seed)
    boxes = all(pair.trg_bbox_px is not None for pair in pairs)
    threshold = (
        published_threshold(args.benchmark)
        if boxes or find_benchmark(args.benchmark).pck_threshold != "bbox"
        else "img"
    )
    with progress_bar("matching") as track:
        loaded = prefetch(partial(load_pair, size=matcher.config.image_size), pairs, ahead=4, threads=2)
        scores = score_layers(
            matcher.model, loaded, threshold, args.alpha, matcher.device, lambda done: track(done, len(pairs))
        )
    options = {
        "benchmark": args.benchmark, "root": benchmark_folder(args.benchmark), "split": args.split,
        "limit": args.limit, "backbone": matcher.config.backbone,
        "backbone_weights": Path(args.backbone_weights).name, "set": dict(item.split("=", 1) for item in args.settings),
        "out": shown_path(out),
    }  # fmt: skip
    ranked = scores.ranked()
    data = {
        "command": format_command(["analyse", "layers"], options), "model": description,
        "backbone": matcher.config.backbone, "image_size": list(matcher.config.image_size),
        "data": benchmark_title(args.benchmark, args.split), "n_pairs": scores.n_pairs, "pck_threshold": threshold,
        "alpha": args.alpha, "layers": list(scores.layers), "pck": scores.pck.round(3).tolist(),
        "ci95": scores.ci95.round(3).tolist(), "all_layers": round(scores.all_layers, 3),
    }  # fmt: skip
    write_text(out / LAYERS, json.dumps(data, indent=1) + "\n")
    save_figure(plot_layers(data), out / "layers.png")
    if args.json:
        print(json.dumps(data))
        return 0
    single = [row for row in ranked if len(row[0]) == 1]
    for title, rows in (("layers", single), ("the best layers and pairs of layers", ranked[:10])):
        cells = [(" + ".join(map(str, row[0])), f"{row[1]:.1f}", f"{row[2][0]:.1f} – {row[2][1]:.1f}") for row in rows]
        print_table(
            f"{title}: PCK (%) @ {args.alpha:g}, {threshold}, {scores.n_pairs} pairs",
            ("layer", "PCK", "95 % interval"),
            cells,
        )
    print(f"all layers: {scores.all_layers:.1f}\nnumbers: {out / LAYERS}\nplot: {out / 'layers.png'}")
    return 0

"""``transformatcher eval``: a benchmark's pairs → predictions, scores and a plot."""

import argparse
from functools import partial
from pathlib import Path

from transformatcher.cli.engine_args import add_engine, make_engine, worker_device
from transformatcher.cli.inputs import named_folder
from transformatcher.cli.model_args import (
    BATCH,
    COUNT,
    LIMIT,
    LIMIT_HELP,
    SEED,
    THREADS,
    add_data,
    add_model,
    add_run,
    add_score,
    load_matcher,
    model_arguments,
    recorded_split,
)
from transformatcher.cli.parser import examples
from transformatcher.errors import InputError

RESUME_HINT = "the same command continues where it stopped"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Predict every pair of a benchmark's split, then score (PCK). The same command continues where it was stopped."
    )
    parser.epilog = examples(
        "eval --benchmark spair --root SPair-71k --split val --out out/spair",
        "eval --benchmark coco --root my-photos --limit 200 --draw 10 --out out/mine",
    )
    data = add_data(parser)
    data.add_argument("--split", default="test", metavar="SPLIT", help="trn, val or test (%(default)s)")
    data.add_argument("--limit", type=LIMIT, metavar="N", help=LIMIT_HELP)
    data.add_argument("--seed", type=SEED, default=0, metavar="N", help="coco: which pairs are drawn (%(default)s)")
    data.add_argument(
        "--unrelated",
        action="store_true",
        help="give every source the target of a pair of another category, drawn by --seed: pairs with nothing to find, "
        "for calibrate",
    )
    data.add_argument(
        "--facing",
        choices=("same", "opposite"),
        help="coco: only pairs that show the same sides of their objects, or opposite sides (names of left and "
        "right are then swapped in the target, for --try-mirrored)",
    )
    data.add_argument(
        "--all-points",
        action="store_true",
        help="ask for all keypoints of the source, as people do, and not for those alone that both photos show: crops "
        "are made around all of them; for calibrate",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--out", required=True, metavar="DIR", help="predictions, scores.json and the plot go here")
    output.add_argument("--overwrite", action="store_true", help="replace predictions of another run in DIR")
    output.add_argument(
        "--draw", type=COUNT, metavar="N", help="draw the N worst and the N best pairs into DIR/pictures"
    )
    output.add_argument(
        "--against", metavar="OTHER", help="compare with another folder of eval or file of points, pair by pair"
    )
    add_score(parser)
    add_model(parser, try_mirrored=False)
    add_engine(parser)
    group = add_run(parser)
    group.add_argument("--batch", type=BATCH, default=8, metavar="N", help="pairs at a time (%(default)s)")
    group.add_argument("--threads", type=THREADS, default=2, metavar="N", help="threads that decode (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Predict every pair of a split, then score."""
    from transformatcher.cli.output import progress_bar
    from transformatcher.cli.scoring import (
        Protocol,
        compare_predicted,
        draw_pairs,
        read_predicted,
        score_predicted,
    )
    from transformatcher.config import to_plain
    from transformatcher.data.benchmarks import BENCHMARKS, load_benchmark
    from transformatcher.evaluation.metrics import ALPHAS
    from transformatcher.evaluation.predict import (
        PHOTOS,
        fingerprint,
        fingerprint_photos,
        make_predictor,
        predict_to_disk,
    )
    from transformatcher.evaluation.scores import SCORES, parse_alphas, parse_frame
    from transformatcher.models.weights_io import hash_tensors
    from transformatcher.run_folder import Run

    frame, alphas = parse_frame(args.frame), parse_alphas(args.alpha or ALPHAS)
    out = named_folder(args.out)
    engine = make_engine(args)
    device = worker_device(args)
    matcher, _ = load_matcher(args)
    config = matcher.config
    root = Path(args.root) if engine is None else Path(args.root).absolute()
    if args.try_mirrored and matcher.coarse_to_fine is None:
        raise InputError("--try-mirrored: this model matches in one pass; only models of several passes try it")
    pairs = load_benchmark(
        args.benchmark,
        root,
        args.split,
        limit=args.limit,
        seed=args.seed,
        facing=args.facing,
        unrelated=args.unrelated,
    )
    drawn = args.unrelated or BENCHMARKS[args.benchmark].content == "objects"
    arguments = {
        "benchmark": args.benchmark,
        "split": recorded_split(args),
        "limit": args.limit,
        "seed": args.seed if drawn else None,
        **model_arguments(args),
        "n_pairs": len(pairs),
        "pairs": fingerprint(pairs),
        PHOTOS: fingerprint_photos(pairs),
        "model": to_plain(config),
        "weights_hash": hash_tensors(matcher.model.state_dict()),
    }
    options = {name: getattr(args, name) for name in ("facing", "unrelated", "all_points", "try_mirrored")}
    arguments |= {name: value for name, value in options.items() if value}
    if args.pck_threshold == "bbox" and any(pair.trg_bbox_px is None for pair in pairs):
        raise InputError(f"--pck-threshold bbox: not every pair of {args.benchmark} has an object box; choose another")
    other = read_predicted(Path(args.against), pairs) if args.against else None
    options = {"all_points": args.all_points, "batch": args.batch, "threads": args.threads}
    make_worker = partial(make_predictor, matcher, device, **options)
    with progress_bar("predicting") as track:
        predict_to_disk(
            make_worker, pairs, out, Run("eval", arguments), engine=engine, overwrite=args.overwrite, track=track
        )
    protocol, predicted = Protocol([frame], alphas, args.pck_threshold), read_predicted(out)
    pck_threshold, alpha = score_predicted(predicted, protocol, out, name=SCORES)
    if other is not None:
        compare_predicted(predicted, other, protocol, out)
    if args.draw:
        draw_pairs(out, {pair.name: pair for pair in pairs}, frame, pck_threshold, alpha, args.draw)
    return 0

"""The ``transformatcher`` command: arguments in, exit code out. All work is done elsewhere, imported when needed."""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from transformatcher import __version__
from transformatcher.errors import InputError

BENCHMARKS = ("spair", "pfpascal", "pfwillow", "coco")  # as in data.benchmarks, whose import would wait for torch
BACKBONES = ("resnet50", "resnet50_v1", "resnet101")  # as in config.RESNETS
_BACKBONE_HELP = f"{', '.join(BACKBONES)} or timm:NAME"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command; 0 done, 1 faults found in data, 2 unusable input, 130 interrupted."""
    args = _parser().parse_args(argv)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin while they wait hold up those at work
    try:
        return int(args.run(args))
    except InputError as error:
        print(f"transformatcher {args.command}: {error}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not re.search("out of memory|allocate memory", str(error)):
            raise
        print(f"transformatcher {args.command}: out of memory; choose a smaller --batch or image_size", file=sys.stderr)
        return 2
    except OSError as error:  # a folder that may not be entered, a name too long: the system says what and why
        print(f"transformatcher {args.command}: {_in_words(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        hint = {
            "eval": "; the same command goes on where it stopped",
            "analyse": "; analyse nonlocality goes on where it stopped",
            "match": "; match --pairs goes on where it stopped",
            "propagate": "; the same command (without --overwrite) goes on where it stopped",
            "train": "; --resume goes on where it stopped",
            "ablate": "; the same command goes on where it stopped",
        }
        print("\ninterrupted" + hint.get(args.command, ""), file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="transformatcher",
        description="Semantic correspondence: find points of one photo on another photo of the same kind of thing.",
    )
    parser.add_argument("--version", action="version", version=f"transformatcher {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    match = commands.add_parser(
        "match",
        help="match a photo with another, with several, or the pairs of a long list",
        description="Find points of one photo on another, or on several. Pictures of one target go into the file that "
        "is named (.png, .jpg, .pdf, .svg, .webp), of several into a folder, each called SOURCE-TARGET. With --pairs, "
        "all pairs of a list: start it with torchrun for several GPUs or machines; the same command goes on where it "
        "was stopped; exit code 1 if some pair could not be matched, the others are done all the same.",
    )
    photos = [match.add_argument("src", metavar="SOURCE"), match.add_argument("trg", nargs="+", metavar="TARGET")]
    match.add_argument(
        "--pairs",
        action=_InsteadOf,
        others=photos,
        metavar="LIST",
        help="instead of photos, a .csv (src,trg and keypoints as 'x,y;x,y') or a .jsonl with those keys; --out then "
        "names a folder for Parquet files",
    )
    match.add_argument(
        "--keypoints", metavar="POINTS", help="'x,y;x,y' or a JSON file with [[x, y], …] or {name: [x, y], …}"
    )
    match.add_argument("--json", action="store_true", help="print the matches as JSON; a list, for several targets")
    match.add_argument("--out", metavar="PICTURE", help="draw the matches, coloured by confidence (--pairs: a folder)")
    match.add_argument("--flow", metavar="PICTURE", help="draw where all of the source lands, as colours")
    match.add_argument(
        "--heat", metavar="PICTURE", help="draw where each keypoint might be, as a heat map; several are numbered"
    )
    match.add_argument("--batch", type=_count, default=4, metavar="N", help="targets at a time (%(default)s)")
    match.add_argument("--threads", type=_count, metavar="N", help="threads that compute (one for each core)")
    match.add_argument(
        "--part", type=_count, metavar="N", help="--pairs: pairs in a file, what a kill loses at most (1000)"
    )
    match.add_argument(
        "--cache-gb", type=_positive, metavar="GB", help="--pairs: memory for features of images seen before (2)"
    )
    _model_arguments(match)
    match.set_defaults(run=_lazy("photos", "match"))

    warp = commands.add_parser("warp", help="bend one photo onto another, as pictures and an animation")
    warp.add_argument("src", metavar="SOURCE")
    warp.add_argument("trg", metavar="TARGET")
    warp.add_argument(
        "--keypoints",
        metavar="POINTS",
        help="bend through the matches of these: 'x,y;x,y' or a JSON file; without, through all confident ones",
    )
    warp.add_argument(
        "--out",
        default="out/warp",
        metavar="DIR",
        help="side-by-side.png, warped.png (in the target's frame) and morph.gif go here (%(default)s)",
    )
    warp.add_argument("--threads", type=_count, metavar="N", help="threads that compute (one for each core)")
    _model_arguments(warp)
    warp.set_defaults(run=_lazy("photos", "warp"))

    propagate = commands.add_parser(
        "propagate",
        help="carry the keypoints of a few annotated photos over to a folder of others",
        description="Carry the keypoints of a few annotated photos over to others. The same command goes on where it "
        "was stopped. Exit code 1 if some image could not be read; the others are done all the same.",
    )
    propagate.add_argument("annotations", metavar="ANNOTATIONS.json", help="a COCO-keypoint file")
    propagate.add_argument("images", nargs="+", metavar="IMAGES", help="folders or files; annotated ones are left out")
    propagate.add_argument("--out", required=True, metavar="OUT.json", help="the COCO-keypoint file to write")
    propagate.add_argument(
        "--images-root",
        metavar="DIR",
        help="the folder of the annotated photos (images/ beside ANNOTATIONS.json, or its own folder)",
    )
    propagate.add_argument("--category", metavar="NAME", help="carry over this category only")
    propagate.add_argument(
        "--threshold",
        type=float,
        metavar="P",
        help="keypoints with less confidence are left out (0.5 with a calibrated model; others leave out none)",
    )
    propagate.add_argument("--overwrite", action="store_true", help="begin anew, and replace OUT.json")
    propagate.add_argument("--batch", type=_count, default=4, metavar="N", help="images at a time (%(default)s)")
    propagate.add_argument("--threads", type=_count, metavar="N", help="threads that compute, and that decode")
    propagate.add_argument("--json", action="store_true", help="print a summary as JSON")
    _model_arguments(propagate)
    propagate.set_defaults(run=_lazy("photos", "propagate"))

    demo = commands.add_parser("demo", help="match the example photos that come with the package")
    demo.add_argument("--out", default="out/demo", metavar="DIR", help="where pictures and photos go (%(default)s)")
    demo.add_argument("--device", default="auto", help="auto, cpu or cuda (%(default)s)")
    demo.set_defaults(run=_lazy("photos", "demo"))

    evaluate = commands.add_parser("eval", help="predict and score the pairs of a benchmark")
    _data_arguments(evaluate)
    evaluate.add_argument("--split", default="test", metavar="SPLIT", help="trn, val or test (%(default)s)")
    _model_arguments(evaluate)
    evaluate.add_argument("--out", required=True, metavar="DIR", help="predictions, scores.json and plot go here")
    evaluate.add_argument("--overwrite", action="store_true", help="replace predictions of another run in DIR")
    evaluate.add_argument("--limit", type=_count, metavar="N", help="the first N pairs only (coco draws 1000 or N)")
    evaluate.add_argument("--seed", type=_whole, default=0, help="coco: which pairs are drawn (%(default)s)")
    evaluate.add_argument("--batch", type=_count, default=8, metavar="N", help="pairs at a time (%(default)s)")
    evaluate.add_argument("--threads", type=_count, default=2, metavar="N", help="threads that decode (%(default)s)")
    evaluate.add_argument(
        "--draw", type=_count, metavar="N", help="draw the N worst and the N best pairs into DIR/pictures"
    )
    _score_arguments(evaluate)
    evaluate.set_defaults(run=_lazy("measure", "evaluate"))

    score = commands.add_parser("score", help="score saved predictions again, under another protocol")
    score.add_argument("--out", required=True, metavar="DIR", help="the folder that eval wrote")
    _score_arguments(score)
    score.set_defaults(run=_lazy("measure", "score"))

    train = commands.add_parser("train", help="train a matcher; start with torchrun for several GPUs or machines")
    train.add_argument("config", metavar="CONFIG", help="a .toml with the tables [model], [data] and [train]")
    train.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="TABLE.KEY=VALUE", help="change a setting"
    )
    train.add_argument("--out", metavar="DIR", help="the run's folder (runs/NAME-OF-CONFIG)")
    train.add_argument("--resume", action="store_true", help="go on with the run in DIR")
    train.add_argument("--device", default="auto", help="auto, cpu or cuda (%(default)s)")
    train.set_defaults(run=_lazy("training", "train"))

    ablate = commands.add_parser(
        "ablate",
        help="train and measure every row of a study, with several seeds, into one table and plot",
        description="The same command goes on where it stopped.",
    )
    ablate.add_argument(
        "studies", nargs="+", metavar="NAME", help="a study that comes with the package, or a .toml file of your own"
    )
    ablate.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        help="change all rows' settings",
    )
    ablate.add_argument("--seeds", type=_whole, nargs="+", metavar="N", help="instead of the study's own")
    ablate.add_argument("--row", action="append", metavar="LABEL", help="only this row; may be repeated")
    ablate.add_argument("--keep-weights", action="store_true", help="keep every run's best checkpoint")
    ablate.add_argument("--out", metavar="DIR", help="runs, table and plot go here (runs/ablate-NAME)")
    ablate.add_argument("--device", default="auto", help="auto, cpu or cuda (%(default)s)")
    ablate.set_defaults(run=_lazy("training", "ablate"))

    calibrate = commands.add_parser("calibrate", help="make confidence a probability, and see how well that works")
    calibrate.add_argument("fit", metavar="DIR", help="predictions that eval made of a validation set")
    calibrate.add_argument("--weights", metavar="DIR", help="the checkpoint folder that the result is written to")
    calibrate.add_argument(
        "--check", nargs="+", default=[], metavar="DIR", help="predictions of other sets to judge by"
    )
    calibrate.add_argument("--alpha", type=float, default=0.1, help="right means within this (%(default)s)")
    calibrate.add_argument("--plot", metavar="PICTURE", help="draw reliability and ROC into this file")
    calibrate.add_argument("--json", action="store_true", help="print the figures as JSON")
    calibrate.set_defaults(run=_lazy("measure", "calibrate"))

    bench = commands.add_parser("bench", help="time and memory of every stage, fast and plain path side by side")
    bench.add_argument("--batch", type=_count, nargs="+", default=[1], metavar="N", help="pairs at a time (1)")
    bench.add_argument(
        "--size", type=_count, nargs="+", default=[240], metavar="PX", help="sides of the square input (240)"
    )
    bench.add_argument("--backbone", type=_backbone, default="resnet101", metavar="NAME", help=_BACKBONE_HELP)
    bench.add_argument("--variant", choices=("paper", "released"), default="paper")
    bench.add_argument("--path", choices=("fast", "plain"), nargs="+", default=["fast", "plain"])
    bench.add_argument("--train", action="store_true", help="time training steps instead of inference")
    bench.add_argument("--device", default="auto", help="auto, cpu or cuda (%(default)s)")
    bench.add_argument("--json", action="store_true", help="print the rows as JSON")
    bench.add_argument("--plot", metavar="PICTURE", help="draw time and memory against the number of matches")
    bench.set_defaults(run=_lazy("measure", "bench"))

    export = commands.add_parser(
        "export",
        help="write the model as one ONNX or torch.export file: two images in, flow and confidence out",
        description="The file is written if its answers for the example photos are the model's own; else exit code 1.",
    )
    export.add_argument("--out", required=True, metavar="FILE", help=".onnx, or .pt2 for torch.export")
    export.add_argument(
        "--precision",
        choices=("float32", "float16", "int8"),
        default="float32",
        help="of the weights in an ONNX file; all compute in float32 (%(default)s)",
    )
    export.add_argument("--benchmark", choices=BENCHMARKS, help="then compare PCK and time of model and file on this")
    export.add_argument("--root", metavar="DIR", help="the benchmark's folder")
    export.add_argument("--split", default="val", metavar="SPLIT", help="trn, val or test (%(default)s)")
    export.add_argument("--limit", type=_count, metavar="N", help="so many of its pairs, evenly spaced")
    export.add_argument("--threads", type=_count, metavar="N", help="threads that compute (one for each core)")
    export.add_argument("--json", action="store_true", help="print the figures as JSON")
    export.add_argument("--weights", metavar="DIR", help="a checkpoint folder; without, the shipped model")
    export.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="image_size=[480,640], …"
    )
    export.set_defaults(
        run=_lazy("export", "export"), device="cpu", refiner=None, config=None, backbone=None, backbone_weights=None,
        download=False,
    )  # fmt: skip

    serve = commands.add_parser(
        "serve", help="a page in the browser: point at one photo, correct and export the others"
    )
    serve.add_argument(
        "--host", default="127.0.0.1", help="whom to listen to; other machines, too, with 0.0.0.0 (%(default)s)"
    )
    serve.add_argument("--port", type=_whole, default=8000, help="0 takes a free one (%(default)s)")
    serve.add_argument("--no-browser", action="store_true", help="only print the address")
    serve.add_argument("--max-upload-mb", type=_count, default=20, metavar="MB", help="largest file (%(default)s)")
    serve.add_argument(
        "--max-pixels", type=_count, default=50_000_000, metavar="N", help="largest photo, width × height (%(default)s)"
    )
    serve.add_argument(
        "--max-sessions",
        type=_count,
        default=4,
        metavar="N",
        help="open pages whose photos are kept; the least recently used goes first (%(default)s)",
    )
    _model_arguments(serve)
    serve.set_defaults(run=_lazy("photos", "serve"))

    _research_parsers(commands)
    data = commands.add_parser("data", help="look after benchmark folders")
    tools = data.add_subparsers(dest="tool", required=True, metavar="TOOL")
    check = tools.add_parser("check", help="count everything and name every fault; exit code 1 if there are any")
    _data_arguments(check)
    check.add_argument("--split", metavar="SPLIT", help="trn, val or test; all that are there if left out")
    check.add_argument("--json", action="store_true", help="print the report as JSON")
    check.set_defaults(run=_lazy("measure", "check_data"))
    return parser


def _research_parsers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    analyse = commands.add_parser("analyse", help="nonlocality, tables, attention, failures, overlap")
    tools = analyse.add_subparsers(dest="tool", required=True, metavar="TOOL")

    nonlocality = tools.add_parser(
        "nonlocality",
        help="how far from itself a match listens, in every layer and head (Figures 6 and 7)",
        description="The same command goes on where it was stopped; with a larger --limit, it adds pairs.",
    )
    _data_arguments(nonlocality)
    nonlocality.add_argument("--split", default="val", metavar="SPLIT", help="trn, val or test (%(default)s)")
    nonlocality.add_argument("--limit", type=_count, metavar="N", help="the first N pairs only (coco draws 1000 or N)")
    nonlocality.add_argument("--out", required=True, metavar="DIR", help="nonlocality.json, .jsonl and plots go here")
    nonlocality.add_argument("--json", action="store_true", help="print the summary as JSON")
    _checkpoint_arguments(nonlocality)
    nonlocality.set_defaults(run=_lazy("research", "nonlocality"))

    tables = tools.add_parser("tables", help="class-wise, difficulty and cost tables beside the paper's numbers")
    tables.add_argument("runs", nargs="*", metavar="EVAL_DIR", help="folders that eval wrote")
    tables.add_argument(
        "--bench", action="append", default=[], metavar="FILE", help="what bench --json printed; may be repeated"
    )
    tables.add_argument("--out", required=True, metavar="DIR", help="a .md and a .tex for each table go here")
    tables.set_defaults(run=_lazy("research", "tables"))

    attention = tools.add_parser("attention", help="draw which matches the global query and key listen to")
    attention.add_argument("src", metavar="SOURCE")
    attention.add_argument("trg", metavar="TARGET")
    attention.add_argument("--layer", type=_count, metavar="N", help="from 1; without, the most selective one")
    attention.add_argument("--most", type=_count, default=20, metavar="N", help="matches for each head (%(default)s)")
    attention.add_argument("--out", required=True, metavar="PICTURE", help=".png, .jpg, .pdf, .svg")
    _checkpoint_arguments(attention)
    attention.set_defaults(run=_lazy("research", "attention"))

    failures = tools.add_parser("failures", help="a page of the worst pairs of a run, their errors drawn")
    failures.add_argument("run_folder", metavar="EVAL_DIR", help="a folder that eval wrote")
    failures.add_argument("--root", required=True, metavar="DIR", help="the benchmark's folder, for the photos")
    failures.add_argument("--most", type=_count, default=24, metavar="N", help="pairs (%(default)s)")
    failures.add_argument("--alpha", type=float, default=0.1, help="right means within this (%(default)s)")
    failures.add_argument("--out", required=True, metavar="PAGE", help="an .html file, or a folder for failures.html")
    failures.set_defaults(run=_lazy("research", "failures"))

    overlap = tools.add_parser("overlap", help="PCK of runs, by what the training list holds of a pair")
    overlap.add_argument("runs", nargs="+", metavar="EVAL_DIR", help="folders that eval wrote, of one split")
    overlap.add_argument("--root", required=True, metavar="DIR", help="the benchmark's folder, for its lists of pairs")
    overlap.add_argument("--train", default="trn", metavar="SPLIT", help="the split trained on (%(default)s)")
    overlap.add_argument(
        "--train-benchmark", choices=("pfpascal", "spair"), help="whose training list, if not the runs' own"
    )
    overlap.add_argument("--train-root", metavar="DIR", help="the folder of --train-benchmark")
    overlap.add_argument("--out", required=True, metavar="DIR", help="a .md, a .tex and a plot go here")
    overlap.set_defaults(run=_lazy("research", "overlap"))

    report = commands.add_parser("report", help="gather saved results into one self-contained HTML page")
    report.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="folders that eval, train, ablate or analyse wrote, what bench --json printed, galleries, pictures; or a "
        "folder of such",
    )
    report.add_argument("--title", default="TransforMatcher: report", help="(%(default)s)")
    report.add_argument("--out", required=True, metavar="PAGE.html")
    report.set_defaults(run=_lazy("research", "report"))


def _checkpoint_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--weights", metavar="DIR", help="a checkpoint folder; without, the shipped model")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (%(default)s)")


def _data_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--benchmark", required=True, choices=BENCHMARKS)
    parser.add_argument("--root", required=True, metavar="DIR", help="the benchmark's folder (coco: or its JSON file)")


def _model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights",
        metavar="DIR",
        help="a checkpoint folder, or owner/name on the Hugging Face hub; without, the shipped model",
    )
    parser.add_argument("--refiner", choices=("none",), help="none: raw mean correlation of the backbone's layers")
    parser.add_argument("--config", metavar="FILE", help="settings for --refiner none: a .toml with a [model] table")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="change a setting of the model"
    )
    _backbone_arguments(parser)


def _backbone_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backbone", type=_backbone, metavar="NAME", help=f"which network --backbone-weights are for: {_BACKBONE_HELP}"
    )
    parser.add_argument(
        "--backbone-weights",
        metavar="FILE",
        help="a .safetensors file, torchvision's name, or timm for what timm has cached",
    )
    parser.add_argument(
        "--download",
        action="store_true",
        help="let torchvision, timm or the hub fetch weights that are not in the cache",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (%(default)s)")


def _score_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--frame", default="240", help="resize targets to this before measuring: 240, HxW or original (%(default)s)"
    )
    parser.add_argument(
        "--thres",
        default="auto",
        choices=("auto", "img", "bbox", "bbox-kp", "bbox-padded"),
        help="the threshold of the table by category (auto: the one the benchmark is published with)",
    )
    parser.add_argument("--alpha", type=float, nargs="+", metavar="A", help="tolerances (0.01 0.05 0.1 0.15)")


def _backbone(text: str) -> str:
    """One of our ResNets, or timm's; whether timm has it is seen when it is built."""
    if text not in BACKBONES and text.removeprefix("timm:") in ("", text):
        near = difflib.get_close_matches(text, BACKBONES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise argparse.ArgumentTypeError(f"{text!r} is none of {_BACKBONE_HELP}{hint}")
    return text


class _InsteadOf(argparse.Action):
    """An option that takes the place of arguments which are needed otherwise."""

    def __init__(self, *args: Any, others: Sequence[argparse.Action], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.others = others

    def __call__(self, _parser: object, namespace: argparse.Namespace, values: object, _option: object = None) -> None:
        for other in self.others:
            other.required = False
        setattr(namespace, self.dest, values)


def _in_words(error: OSError) -> str:
    words = error.strerror or str(error) or type(error).__name__
    return words if error.filename is None else f"{error.filename}: cannot be used ({words})"


def _whole(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _lazy(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        command: Callable[[argparse.Namespace], int] = getattr(import_module(f"transformatcher.cli.{module}"), name)
        return command(args)

    return run

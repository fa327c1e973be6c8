"""``transformatcher analyse failures``: an evaluation → an HTML page of its worst pairs."""

import argparse
from pathlib import Path

from transformatcher.cli.analysis_args import shown_path
from transformatcher.cli.inputs import named_folder
from transformatcher.cli.model_args import ALPHA, COUNT
from transformatcher.cli.parser import examples
from transformatcher.errors import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = examples("analyse failures out/spair --root SPair-71k --out failures.html")
    parser.add_argument("run_folder", metavar="EVAL_DIR", help="a folder that eval wrote")
    parser.add_argument("--root", required=True, metavar="DIR", help="the benchmark's folder, for the photos")
    parser.add_argument("--most", type=COUNT, default=24, metavar="N", help="pairs (%(default)s)")
    parser.add_argument(
        "--alpha", type=ALPHA, default=0.1, metavar="A", help="a point within this tolerance is right (%(default)s)"
    )
    parser.add_argument("--out", required=True, metavar="PAGE", help="an .html file, or a folder for failures.html")


def run(args: argparse.Namespace) -> int:
    """Draw the worst pairs of an evaluation on a page."""
    from transformatcher.cli.output import progress_bar
    from transformatcher.data.benchmarks import benchmark_folder
    from transformatcher.evaluation.analysis.failures import PAGE, gallery_page, worst_pairs
    from transformatcher.evaluation.analysis.run_folders import read_eval
    from transformatcher.evaluation.scores import parse_alphas
    from transformatcher.files import write_text
    from transformatcher.run_folder import format_command

    evaluation = read_eval(Path(args.run_folder))
    out = named_folder(args.out)
    path = out if out.suffix.lower() in (".html", ".htm") else out / PAGE
    (alpha,) = parse_alphas([args.alpha])
    worst = worst_pairs(evaluation, Path(args.root), args.most, alpha)
    options = {
        "root": benchmark_folder(evaluation.benchmark), "most": args.most, "alpha": None if alpha == 0.1 else alpha,
        "out": shown_path(out),
    }  # fmt: skip
    command = format_command(["analyse", "failures", shown_path(evaluation.folder)], options)
    with progress_bar("drawing") as track:
        text = gallery_page(evaluation, worst, command, alpha, track)
    write_text(path, text)
    n = len(evaluation.predictions)
    print(f"{len(worst)} of {n} pairs, PCK {worst[0].pck:.1f} to {worst[-1].pck:.1f}\npage: {printable(path)}")
    return 0

"""``transformatcher score``: saved predictions → scores under another protocol, without images or model."""

import argparse

from transformatcher.cli.inputs import named_folder
from transformatcher.cli.model_args import add_score
from transformatcher.cli.parser import examples


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Score saved predictions again, under another protocol. It needs neither images nor model. The scores go into "
        "DIR, into a file named after the protocol."
    )
    parser.epilog = examples("score out/spair --frame original", "score out/spair --pck-threshold img --alpha 0.05 0.1")
    parser.add_argument("folder", metavar="DIR", help="a folder that eval wrote")
    add_score(parser)


def run(args: argparse.Namespace) -> int:
    """Score saved predictions; another protocol than the published one goes into a file of its own."""
    from transformatcher.cli.scoring import score_folder
    from transformatcher.evaluation.metrics import ALPHAS
    from transformatcher.evaluation.scores import parse_alphas, parse_frame, scores_name

    frame, alphas = parse_frame(args.frame), parse_alphas(args.alpha or ALPHAS)
    score_folder(named_folder(args.folder), frame, alphas, args.pck_threshold, scores_name(frame, alphas))
    return 0

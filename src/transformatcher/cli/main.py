"""Command line → exit code: the parser of all commands, and one sentence for every error."""

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import import_module

from transformatcher import __version__
from transformatcher.cli.parser import Parser, examples
from transformatcher.errors import InputError

# (words, what it does, module of transformatcher.cli with add_arguments and run). These modules import torch and other
# large libraries only inside run, so that help and typos are answered at once.
COMMANDS = (
    ("match", "match a photo with another or with several", "match"),
    ("match-pairs", "match all pairs of a long list, on one GPU or many", "match_pairs"),
    ("warp", "warp one photo onto another, as pictures and an animation", "warp"),
    ("propagate", "copy the keypoints of a few annotated photos to a folder of others", "propagate"),
    ("annotate", "mark a few photos of a folder, have the others predicted, and review them", "annotate"),
    ("simulate-annotation", "count the clicks of annotating photos with known keypoints", "simulate_annotation"),
    ("serve", "open the same page without a folder, to try it", "serve"),
    ("label-studio", "predict keypoints in Label Studio, as a model that it connects to", "label_studio"),
    ("demo", "match the example photos that come with the package", "demo"),
    ("eval", "predict and score the pairs of a benchmark", "eval"),
    ("score", "score predictions of any method, under any protocol; compare two", "score"),
    ("calibrate", "fit confidence to the probability of being right, and test it", "calibrate"),
    ("train", "train a matcher, on one GPU or many", "train"),
    ("ablate", "train and evaluate every row of a study, with several seeds", "ablate"),
    ("reproduce", "make the paper's tables and figures again, with our numbers beside its own", "reproduce"),
    ("bench", "measure time and memory of every stage, fused and eager", "bench"),
    ("export", "write the model as one ONNX or torch.export file", "export"),
    ("analyse nonlocality", "measure how far attention reaches in every layer and head", "analyse_nonlocality"),
    ("analyse tables", "write tables by category, difficulty and cost beside the paper's numbers", "analyse_tables"),
    ("analyse attention", "draw the matches that the global query and key attend to", "analyse_attention"),
    ("analyse failures", "draw the worst pairs of an evaluation on one HTML page", "analyse_failures"),
    ("analyse layers", "score each layer of a backbone, and each two, as they are", "analyse_layers"),
    ("analyse overlap", "score pairs by how much of them is in the training set", "analyse_overlap"),
    ("report", "gather saved results into one self-contained HTML page", "report"),
    ("info", "print versions, devices and which implementation runs", "info"),
    ("data check", "check a benchmark folder for missing or damaged files", "check_data"),
    ("data points", "list the points that a benchmark asks for, for another method to find", "list_points"),
)  # fmt: skip
GROUPS = {"analyse": "look into a model or its results", "data": "look after benchmark folders"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 1 problems found in data, 2 unusable input, 130 interrupted."""
    args = build_parser().parse_args(argv)
    if args.command is None:
        args.parser.print_help(sys.stderr)
        return 2
    module = import_module(args.module)
    try:
        return int(module.run(args))
    except (InputError, OSError, MemoryError, RuntimeError) as error:
        message = _message(error)
        if message is None:
            raise
        print(f"transformatcher {args.command}: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        hint = getattr(module, "RESUME_HINT", None)
        print("\ninterrupted" + (f"; {hint}" if hint else ""), file=sys.stderr)
        return 130


def build_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(
        prog="transformatcher",
        description="Semantic correspondence: find points of one photo on another photo of the same kind of object.",
        epilog=examples(
            "demo",
            "match cat.jpg other-cat.jpg --out matches.png",
            "match --help",
        ),
    )
    parser.add_argument("--version", action="version", version=f"transformatcher {__version__}")
    parser.set_defaults(command=None, parser=parser)
    commands = parser.add_subparsers()
    groups: dict[str, argparse._SubParsersAction[Parser]] = {}
    for words, summary, module in COMMANDS:
        group, _, name = words.rpartition(" ")
        if group and group not in groups:
            child = commands.add_parser(group, help=GROUPS[group], description=f"{GROUPS[group].capitalize()}.")
            child.set_defaults(parser=child)
            groups[group] = child.add_subparsers()
        command = (groups[group] if group else commands).add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        path = f"transformatcher.cli.{module}"
        import_module(path).add_arguments(command)
        command.set_defaults(command=words, module=path)
    return parser


def _message(error: Exception) -> str | None:
    """What to tell the user of an error; None of one that is a bug."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, MemoryError) or re.search("out of memory|allocate memory", str(error)):
        return "out of memory; choose a smaller --batch or image_size"
    if isinstance(error, OSError):  # a folder without permission, a name too long: the system says which and why
        reason = error.strerror or str(error) or type(error).__name__
        return reason if error.filename is None else f"{error.filename}: cannot be used ({reason})"
    return None

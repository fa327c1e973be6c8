"""Command line → exit code: the parser of all commands, and one sentence for every error."""

import argparse
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from transformatcher import __version__
from transformatcher.cli.parser import Parser, examples
from transformatcher.cli.process import (
    INTERRUPTED,
    end_at_next_interrupt,
    flush_output,
    open_closed_streams,
    print_anything,
    termination_interrupts,
)
from transformatcher.errors import InputError, printable

# (words, what it does, module of transformatcher.cli with add_arguments and run). These modules import torch and other
# large libraries only inside run, so that help and typos are answered at once.
COMMANDS = (
    ("match", "match a photo with another or with several", "match"),
    ("match-pairs", "match all pairs of a long list, on a laptop or a cluster", "match_pairs"),
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
BUG, PIPE_CLOSED = 70, 141  # exit codes: as sysexits.h has it, and as shells report SIGPIPE
GROUPS = {"analyse": "look into a model or its results", "data": "look after benchmark folders"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 done, 1 problems found in data, 2 unusable input, 70 an error of ours, 130 interrupted, 141 nobody reads the
        output any more.
    """
    if not open_closed_streams():
        print("transformatcher: standard output is closed; send it to a file or to /dev/null", file=sys.stderr)
        return 2
    print_anything()
    command = Command()
    try:
        try:
            with termination_interrupts():
                code = command.run(argv)
        finally:  # also of --help, which ends by SystemExit
            flush_output()
        return code
    except KeyboardInterrupt:
        end_at_next_interrupt()
        print("\ninterrupted" + (f"; {command.resume_hint}" if command.resume_hint else ""), file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return PIPE_CLOSED
    except Exception as error:
        return command.report(error)


class Command:
    """One run of the program, and what to say of its errors."""

    def __init__(self) -> None:
        self.name = "transformatcher"
        self.resume_hint = ""
        self.debug = False

    def run(self, argv: Sequence[str] | None) -> int:
        """Parse the arguments and run the command that they name; returns its exit code."""
        words = sys.argv[1:] if argv is None else argv
        _check_characters(words)
        args = build_parser().parse_args(words)
        if args.command is None:
            args.parser.print_help(sys.stderr)
            return 2
        self.name, self.debug = f"transformatcher {args.command}", args.debug
        module = import_module(args.module)
        self.resume_hint = getattr(module, "RESUME_HINT", "")
        with warnings.catch_warnings():
            warnings.showwarning = self._show_warning
            return int(module.run(args))

    def _show_warning(self, message: Warning | str, *_place: object, **_more: object) -> None:
        print(f"{self.name}: warning: {printable(message)}", file=sys.stderr)

    def report(self, error: Exception) -> int:
        """Print one sentence on an error, with --debug its traceback, too; returns the exit code."""
        if self.debug:
            traceback.print_exception(error)
        message, code = _message(error), 2
        if message is None:
            code = BUG
            more = "" if self.debug else "; the same command with --debug shows where. Please report it"
            message = f"an error of transformatcher itself ({type(error).__name__}: {error}){more}"
        with suppress(OSError):  # nobody reads standard error any more
            print(f"{self.name}: {printable(message)}", file=sys.stderr)
        return code


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
        command.add_argument("--debug", action="store_true", help="show where an error comes from")
        command.set_defaults(command=words, module=path)
    return parser


def _check_characters(words: Sequence[str]) -> None:
    """Refuse arguments that no file name, and no file, can hold."""
    for word in words:
        try:
            possible = b"\0" not in os.fsencode(word)
        except UnicodeEncodeError:  # half a character; a shell cannot give it, a program can
            possible = False
        if not possible:
            raise InputError(f"the argument {word!r} holds a character that no text has")


def _message(error: Exception) -> str | None:
    """What to tell the user of an error; None of one that is a bug."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, MemoryError) or re.search("out of memory|allocate memory", str(error)):
        return "out of memory; choose a smaller --batch or image_size"
    if isinstance(error, OSError):  # a folder without permission, a name too long: the system says which and why
        reason = error.strerror or str(error) or type(error).__name__
        return reason if error.filename is None else f"{os.fsdecode(error.filename)}: cannot be used ({reason})"
    return None

"""``transformatcher reproduce``: the paper's tables and figures → a plan, what is not done yet, and our numbers."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformatcher.cli.inputs import named_folder
from transformatcher.cli.model_args import add_run
from transformatcher.cli.parser import examples
from transformatcher.errors import InputError

if TYPE_CHECKING:
    from transformatcher.training.reproduction_plan import Setting, Step

RESUME_HINT = "the same command continues where it stopped"
NAMES = (
    "table1", "table2", "table3", "tableA1", "tableA2", "figure5", "figure6", "figure7", "figureA1", "figureA2",
    "figureA3", "figureA4", "all",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Make a table or figure of the paper again. It prints the plan, does what is not done yet, and writes our "
        "number beside the paper's with the difference and a 95 % interval. What cannot be had is named with the place "
        "that it comes from."
    )
    parser.epilog = examples(
        "reproduce table1 --data DATA --dry-run",
        "reproduce all --data DATA --set train.batch_size=8 --set train.accumulate=2",
        "reproduce table1 tableA1 --data DATA --weights shipped --split val",
    )
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--data", required=True, metavar="DIR", help="the folder with SPair-71k, PF-PASCAL, PF-WILLOW")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and the table, do nothing")
    parser.add_argument(
        "--weights", metavar="DIR", help="evaluate this checkpoint in place of all trainings; shipped: the package's"
    )
    parser.add_argument(
        "--split", choices=("test", "val"), default="test", help="of SPair-71k; the paper's is test (%(default)s)"
    )
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="TABLE.KEY=VALUE",
        help="change a setting of all trainings, such as train.backbone_weights; may be repeated",
    )  # fmt: skip
    parser.add_argument("--out", default="out/reproduce", metavar="DIR", help="everything goes here (%(default)s)")
    add_run(parser)


def run(args: argparse.Namespace) -> int:
    """Print the plan, do the steps, write the tables."""
    from transformatcher.cli.tables import print_result_table, print_table
    from transformatcher.config import parse_overrides
    from transformatcher.evaluation.analysis.tables import write_table
    from transformatcher.training.reproduction import ITEMS
    from transformatcher.training.reproduction_plan import Setting, plan
    from transformatcher.training.reproduction_table import figure_title, paper_table

    if args.weights and args.settings:
        raise InputError("--weights takes the place of all trainings, so --set has nothing to change")
    data, out = Path(args.data), named_folder(args.out)
    if not data.is_dir():
        raise InputError(f"{data}: no such folder; name the one that SPair-71k, PF-PASCAL and PF-WILLOW are in")
    setting = Setting(data, out, args.split, args.weights, parse_overrides(args.settings), args.device)
    names = list(ITEMS) if "all" in args.names else list(dict.fromkeys(args.names))
    items = [ITEMS[name] for name in names]
    steps = plan(items, setting)
    rows = [(step.kind, step.name, _cost(step), step.state) for step in steps]
    print_table(f"plan of {', '.join(names)}", ("step", "of", "on one H200", "state"), rows, left=4)
    trainings = [step for step in steps if step.kind == "train" and not step.done]
    hours = sum(step.hours for step in trainings)
    print(f"{len(trainings)} trainings, {hours:.1f} hours on one H200; {len(steps)} steps in all")
    if not args.dry_run:
        for step in steps:
            if not step.done and not step.obstacle:
                _do(step, setting)
        steps = plan(items, setting)
    for item in items:
        if item.numbers:
            table = paper_table(item, setting, steps)
            print_result_table(table)
            if not args.dry_run:
                print(f"{item.title}: {', '.join(map(str, write_table(table, out)))}")
        for what in item.missing:
            print(f"{item.title}: cannot be had: {what}")
        pictures = [step for step in steps if step.picture in item.pictures and step.done]
        for step in pictures:
            print(f"{item.title}: {figure_title(step, setting)}")
    return 0


def _cost(step: Step) -> str:
    return f"{step.hours:.2f} h" if step.kind == "train" else ""


def _do(step: Step, setting: Setting) -> None:
    """Do one step, as its own command does it."""
    from transformatcher.config import to_plain
    from transformatcher.files import write_text
    from transformatcher.training.reproduction_plan import study_row

    print(f"{step.kind}: {step.model}", flush=True)
    if step.kind == "train":
        config = study_row(step.model, setting).config
        write_text(Path(step.words[1]), json.dumps(to_plain(config), indent=2) + "\n")
    if step.kind == "cost":
        _measure_cost(step, setting)
    elif step.kind == "warps":
        _warp_best(step, setting)
    else:
        _command(step.words)


def _command(words: Sequence[str]) -> None:
    """Run another command of the package in this process."""
    from transformatcher.cli.main import build_parser

    args = build_parser().parse_args(words)
    from importlib import import_module

    import_module(args.module).run(args)


def _measure_cost(step: Step, setting: Setting) -> None:
    from transformatcher.inference.device import pick_device
    from transformatcher.training.ablation import measure_cost
    from transformatcher.training.reproduction_plan import study_row

    measure_cost(study_row(step.model, setting), step.out, pick_device(setting.device))


def _warp_best(step: Step, setting: Setting) -> None:
    """Warp the sources of the pairs with the highest PCK, of those that are hard in the factor, one of a category."""
    from transformatcher.data.benchmarks import benchmark_folder
    from transformatcher.evaluation.analysis.run_folders import pairs_of, read_eval
    from transformatcher.files import write_text
    from transformatcher.training.reproduction_plan import PICTURES, WARPED, weights_of
    from transformatcher.training.reproduction_table import best_pairs

    assert step.picture is not None
    evaluated = read_eval(setting.folder("eval", step.model, f"-spair-{setting.split}"))
    pairs = pairs_of(evaluated, setting.data / benchmark_folder("spair"))
    weights = weights_of(step.model, setting)
    drawn: list[str] = []
    for prediction in best_pairs(evaluated.predictions, step.picture.factor):
        if len(drawn) == PICTURES:
            break
        pair = pairs[prediction.name]
        out = step.out / f"{len(drawn) + 1:02d}-{prediction.category}"
        points = out / "keypoints.json"
        write_text(points, json.dumps(prediction.src_kps) + "\n")
        words = ["warp", str(pair.src_image), str(pair.trg_image), "--keypoints", str(points), "--out", str(out)]
        words += ["--no-try-mirrored", "--device", setting.device, *(["--weights", weights] if weights else [])]
        try:
            _command(words)
            drawn.append(prediction.name)
        except InputError as error:  # too few of its points have a match
            shutil.rmtree(out)
            print(f"{prediction.name}: not drawn ({error})")
    write_text(step.out / WARPED, json.dumps(drawn, indent=1) + "\n")

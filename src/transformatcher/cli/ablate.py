"""``transformatcher ablate``: studies → every row trained with several seeds, as a table and a plot."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from transformatcher.cli.inputs import named_folder
from transformatcher.cli.model_args import SEED, add_run
from transformatcher.cli.parser import examples
from transformatcher.errors import InputError

if TYPE_CHECKING:
    from transformatcher.training.study import Study

RESUME_HINT = "the same command continues where it stopped"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Train and evaluate every row of a study, with several seeds, into one table and plot. The same command "
        "continues where it was stopped."
    )
    parser.epilog = examples(
        "ablate attention --set data.root=DATA",
        "ablate attention --set data.root=DATA --only Performer --seeds 0 1 2",
    )
    parser.add_argument(
        "studies", nargs="+", metavar="NAME", help="a study that comes with the package, or a .toml file of your own"
    )
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        help="change a setting of all rows; may be repeated",
    )
    parser.add_argument("--seeds", type=SEED, nargs="+", metavar="N", help="seeds instead of the study's own")
    parser.add_argument("--only", action="append", metavar="LABEL", help="only this row; may be repeated")
    parser.add_argument("--keep-weights", action="store_true", help="keep every run's best checkpoint")
    parser.add_argument("--out", metavar="DIR", help="runs, table and plot go here (runs/ablate-NAME)")
    add_run(parser)


def run(args: argparse.Namespace) -> int:
    """Train and evaluate every row of one study or several, which share their decoded images."""
    from transformatcher.config import parse_overrides
    from transformatcher.training.study import read_study

    if args.out is not None and len(args.studies) > 1:
        raise InputError(f"--out {args.out}: is for one study, not {len(args.studies)}; each has a folder of its own")
    settings = parse_overrides(args.settings)
    studies = {name: read_study(name, settings, args.seeds) for name in args.studies}
    shown = {"data.root": "DATA", "train.backbone_weights": Path(str(settings.get("train.backbone_weights", ""))).name}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={shown.get(key, value)}")]
    words += ["--seeds", *map(str, args.seeds)] if args.seeds else []
    for name, study in studies.items():
        _run_study(study, shlex.join(["transformatcher", "ablate", name, *words]), args)
    return 0


def _run_study(study: Study, command: str, args: argparse.Namespace) -> None:
    from transformatcher.cli.output import STDERR, progress_bar
    from transformatcher.inference.device import pick_device
    from transformatcher.training.ablation import run_study
    from transformatcher.training.ablation_table import TABLE
    from transformatcher.viz.pictures import save_figure
    from transformatcher.viz.plots import plot_ablation

    out = named_folder(args.out) if args.out is not None else Path("runs") / f"ablate-{study.name}"
    with progress_bar(study.name, "runs") as track:

        def report(done: int, total: int, text: str) -> None:
            track(done, total)
            if text:
                STDERR.print(text, highlight=False)

        table = run_study(
            study, out, pick_device(args.device), keep_weights=args.keep_weights, only=args.only, command=command,
            on_progress=report,
        )  # fmt: skip
    save_figure(plot_ablation(table), out / "plot.png")
    print(f"{study.title}\n{study.question}\n\n{(out / TABLE).read_text(encoding='utf-8')}")
    print(f"table: {out / TABLE}\nplot: {out / 'plot.png'}")

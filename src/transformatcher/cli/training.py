"""Sub-commands that train."""

import argparse
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from transformatcher.cli.model_args import STDERR, named_folder, progress_bar
from transformatcher.config import parse_overrides, read_run_config
from transformatcher.errors import InputError
from transformatcher.inference.matcher import pick_device
from transformatcher.training.ablation import TABLE, Study, read_study, run_study
from transformatcher.training.distributed import init_distributed
from transformatcher.training.trainer import BEST
from transformatcher.training.trainer import train as run_training
from transformatcher.viz.pictures import save_figure
from transformatcher.viz.plots import plot_ablation


def train(args: argparse.Namespace) -> int:
    """Train what a config describes."""
    config = read_run_config(Path(args.config), args.settings)
    out = named_folder(args.out) if args.out is not None else Path("runs") / Path(args.config).stem
    with init_distributed(pick_device(args.device)) as (distributed, device):
        with training_progress(quiet=not distributed.is_main) as report:
            state = run_training(config, out, device, distributed, resume=args.resume, on_progress=report)
        if distributed.is_main:
            alphas = ", ".join(map(str, config.train.select_alphas))
            best = f"epoch {state.best_epoch}: {state.best:.1f} at α = {alphas}"
            print(f"best mean validation PCK, {best}\ncheckpoint: {out / BEST}\ncurves: {out / 'curves.png'}")
    return 0


def ablate(args: argparse.Namespace) -> int:
    """Train and measure every row of one study or several, which share what they have decoded."""
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
    out = named_folder(args.out) if args.out is not None else Path("runs") / f"ablate-{study.name}"
    with progress_bar(study.name, "runs") as track:

        def report(done: int, total: int, words: str) -> None:
            track(done, total)
            if words:
                STDERR.print(words, highlight=False)

        table = run_study(
            study, out, pick_device(args.device), keep_weights=args.keep_weights, only=args.row, command=command,
            on_progress=report,
        )  # fmt: skip
    save_figure(plot_ablation(table), out / "plot.png")
    print(f"{study.title}\n{study.question}\n\n{(out / TABLE).read_text(encoding='utf-8')}")
    print(f"table: {out / TABLE}\nplot: {out / 'plot.png'}")


@contextmanager
def training_progress(quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """A bar with pairs a second and the time left; what ends in a newline stays, as a line above it."""
    columns = (BarColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True, quiet=quiet, markup=False)) as bar:
        task = bar.add_task("", total=None, rate="")
        start = (time.monotonic(), 0)

        def report(done: int, total: int, words: str) -> None:
            nonlocal start
            now = time.monotonic()
            if done and not start[1]:
                start = (now, done)
            rate = (done - start[1]) / max(now - start[0], 1e-3)
            bar.update(
                task, completed=done, total=total, description=words.strip(), rate=f"{rate:.0f} pairs/s" * (rate > 0)
            )
            if words.endswith("\n"):
                bar.console.print(words.strip(), highlight=False)

        yield report

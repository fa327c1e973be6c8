"""``transformatcher train``: a config → a run's folder with checkpoints and curves."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from transformatcher.cli.inputs import named_folder
from transformatcher.cli.model_args import add_run
from transformatcher.cli.parser import examples

if TYPE_CHECKING:
    from transformatcher.training.state import TrainingState

RESUME_HINT = "--resume continues where it stopped"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = "Train a matcher. Start it with torchrun for several GPUs or machines."
    parser.epilog = examples(
        "train configs/pfpascal.toml --set data.root=DATA --set train.backbone_weights=FILE.safetensors",
        "train configs/pfpascal.toml --set data.root=DATA --set train.backbone_weights=IMAGENET1K_V1 "
        "--set model.backbone=resnet50 --set train.epochs=4 --out runs/short",
        "train configs/pfpascal.toml --set data.root=DATA --set train.backbone_weights=FILE.safetensors --resume",
    )
    parser.add_argument("config", metavar="CONFIG", help="a .toml with the tables [model], [data] and [train]")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        help="change a setting; may be repeated",
    )
    parser.add_argument("--out", metavar="DIR", help="the run's folder (runs/NAME-OF-CONFIG)")
    parser.add_argument("--resume", action="store_true", help="continue the run in DIR")
    add_run(parser)


def run(args: argparse.Namespace) -> int:
    """Train what a config describes."""
    from transformatcher.cli.output import training_progress
    from transformatcher.config import read_run_config
    from transformatcher.inference.device import pick_device
    from transformatcher.training.distributed import init_distributed
    from transformatcher.training.trainer import BEST, train

    config = read_run_config(Path(args.config), args.settings)
    out = named_folder(args.out) if args.out is not None else Path("runs") / Path(args.config).stem
    with init_distributed(pick_device(args.device)) as (distributed, device):
        with training_progress(quiet=not distributed.is_main) as report:
            state = train(config, out, device, distributed, resume=args.resume, on_progress=report)
        if distributed.is_main:
            alphas = ", ".join(map(str, config.train.select_alphas))
            best = f"epoch {state.best_epoch}: {state.best:.1f} at α = {alphas}"
            print(describe_gain(state))
            print(f"best mean validation PCK, {best}\ncheckpoint: {out / BEST}\ncurves: {out / 'curves.png'}")
    return 0


def describe_gain(state: TrainingState) -> str:
    """What a run has gained over its start, or that it has lost."""
    if state.start is None:
        return "the start of this run was not measured"
    difference = state.best - state.start
    if difference >= 0:
        return f"start: {state.start:.1f}, so the run gained {difference:.1f}"
    return (
        f"this run is worse than what it started from: {state.best:.1f} at best, {state.start:.1f} before the first "
        "step. Keep what it started from, or train on more pairs, at lower rates, or with train.lr_backbone = 0"
    )

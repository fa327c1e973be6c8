"""What several sub-commands need: arguments → model, points, checked paths; progress bars."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from transformatcher.config import (
    ModelConfig,
    model_config,
    parse_overrides,
    read_model_table,
)
from transformatcher.data.coco_keypoints import has_splits
from transformatcher.errors import InputError
from transformatcher.files import is_file, read_json
from transformatcher.inference.calibration import (
    load_calibration,
)
from transformatcher.inference.checkpoint import SHIPPED, SHIPPED_DESCRIPTION, find_checkpoint, load_checkpoint
from transformatcher.inference.matcher import Matcher
from transformatcher.models.backbones.resnet import backbone_of, load_backbone_weights
from transformatcher.models.build import build_matcher
from transformatcher.models.transformatcher import TransforMatcher

# A file or pipe has no width of its own. Names of files, points and categories are shown as they are, brackets and all.
STDOUT = Console(width=None if sys.stdout.isatty() else 160, markup=False)
STDERR = Console(stderr=True, markup=False)
PICTURES = {".png", ".jpg", ".jpeg", ".pdf", ".svg", ".webp"}  # the endings of what matplotlib writes


def load_matcher(args: argparse.Namespace) -> tuple[Matcher, str]:
    """The matcher that the arguments ask for, calibrated if its weights are, and a few words on those."""
    model, config, description = load_model(args)
    calibration = None
    if args.refiner != "none":
        weights = _checkpoint(args)
        calibration = load_calibration(weights if weights.is_dir() else weights.parent)
    return Matcher(model, config, args.device, calibration), description


def recorded_split(args: argparse.Namespace) -> str | None:
    """The split, where it decides which pairs are read."""
    return None if args.benchmark == "coco" and not has_splits(Path(args.root)) else str(args.split)


def load_model(args: argparse.Namespace) -> tuple[TransforMatcher, ModelConfig, str]:
    """The model that the arguments ask for, its config, and a few words on where its weights come from."""
    if args.weights and (args.refiner or args.backbone or args.backbone_weights):
        raise InputError("--weights brings its own refiner and backbone; leave --refiner and --backbone… out")
    if args.refiner != "none":
        if args.config or args.backbone or args.backbone_weights:
            raise InputError("--config and --backbone… go with --refiner none; a trained model's are fixed")
        model, config = load_checkpoint(_checkpoint(args), parse_overrides(args.settings))
        changed = f" with {', '.join(args.settings)}" if args.settings else ""
        return model, config, (args.weights or SHIPPED_DESCRIPTION) + changed
    if not args.backbone_weights:
        raise InputError(
            "--refiner none needs --backbone-weights: a .safetensors file, a torchvision name such as IMAGENET1K_V1 "
            "(with --backbone resnet50 or resnet101), or timm (with --backbone timm:NAME)"
        )
    settings: dict[str, Any] = {}
    if args.config:
        model_config(settings := read_model_table(Path(args.config)), source=args.config)
    settings |= parse_overrides(args.settings)
    for key in ("matcher", "variant"):
        if settings.pop(key, "raw") not in ("raw", "none"):
            raise InputError(f"--refiner none is raw correlation: leave {key!r} out of the settings")
    backbone = args.backbone or settings.get("backbone") or backbone_of(args.backbone_weights)
    config = model_config({**settings, "backbone": backbone, "variant": "raw"}, source="--set")
    model = build_matcher(config)
    load_backbone_weights(model.backbone, args.backbone_weights, download=args.download)
    return model, config, f"raw correlation, {Path(args.backbone_weights).name}"


def model_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The options that chose the model, as data for run.json; ``set`` holds those of --config, too."""
    settings = read_model_table(Path(args.config)) if args.config else {}
    given = {
        "weights": args.weights,
        "refiner": args.refiner,
        "backbone": args.backbone,
        "backbone_weights": Path(args.backbone_weights).name if args.backbone_weights else None,
        "set": settings | parse_overrides(args.settings),
    }
    return {key: value for key, value in given.items() if value}


def _checkpoint(args: argparse.Namespace) -> Path:
    """Where the weights that the arguments name are; a name on the Hugging Face hub is looked for in its cache."""
    return find_checkpoint(args.weights, download=args.download) if args.weights else SHIPPED


def named_folder(out: str) -> Path:
    """What ``--out`` names."""
    if not out:
        raise InputError("--out is empty; name a folder")
    return Path(out)


def check_picture(out: str | None) -> None:
    """Refuse a name that no picture can be written to."""
    if out is not None and Path(out).is_dir():
        raise InputError(f"{out}: a folder; name the picture itself")
    if out is not None and Path(out).suffix.lower() not in PICTURES:
        raise InputError(f"{out}: a picture's name ends in .png, .jpg, .pdf, .svg or .webp")


def read_points(text: str) -> dict[str, list[float]]:
    """``"x,y;x,y"`` or the name of a JSON file with [[x, y], …] or {name: [x, y], …} → points by name, or by number."""
    try:
        if text.lower().endswith(".json") or is_file(Path(text)):
            data = read_json(Path(text))
            named = data if isinstance(data, dict) else {str(i): point for i, point in enumerate(data, 1)}
            points = {name: [x + 0.0, y + 0.0] for name, (x, y) in named.items()}
        else:
            pairs = [point.split(",") for point in text.split(";") if point.strip()]
            points = {str(i): [float(x), float(y)] for i, (x, y) in enumerate(pairs, 1)}
        "".join(points).encode()  # half a character could not be shown
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(
            f"--keypoints {text!r}: expected 'x,y;x,y', or a JSON file with [[x, y], …] or {{name: [x, y], …}}"
        ) from error
    if not points:
        raise InputError(f"--keypoints {text!r}: no point there")
    return points


def set_threads(threads: int | None) -> None:
    """Let torch compute with as many threads; None leaves that to it."""
    if threads:
        torch.set_num_threads(threads)


@contextmanager
def progress_bar(what: str, unit: str = "pairs") -> Iterator[Callable[[int, int], None]]:
    """A progress bar with ``unit`` a second and the time left, as a ``track(done, total)`` function."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=STDERR) as bar:
        task = bar.add_task(what, total=None, rate="")
        start, before = time.monotonic(), -1

        def track(done: int, total: int) -> None:
            nonlocal before
            before = done if before < 0 else before  # what an earlier run had done does not count as speed
            rate = (done - before) / max(time.monotonic() - start, 1e-3)
            bar.update(task, completed=done, total=total, rate=f"{rate:.1f} {unit}/s" if rate else "")

        yield track

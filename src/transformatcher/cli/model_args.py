"""Options that several commands share, and the model that they ask for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformatcher.cli.parser import did_you_mean, number
from transformatcher.data.benchmarks import BENCHMARKS, DRAWN_PAIRS
from transformatcher.errors import InputError

if TYPE_CHECKING:
    from transformatcher.config import ModelConfig
    from transformatcher.inference.matcher import Matcher
    from transformatcher.models.fused.precision import Precision
    from transformatcher.models.transformatcher import TransforMatcher

BACKBONES = ("resnet50", "resnet50_v1", "resnet101")  # as in config.RESNETS
BACKBONE_HELP = f"{', '.join(BACKBONES)} or timm:NAME"
THREADS = number(int, 1, 1024)
BATCH = number(int, 1, 4096)
LIMIT = number(int, 1, 10_000_000)
LIMIT_HELP = f"N pairs only, spread evenly over the list and so over its categories (coco draws N, or {DRAWN_PAIRS})"
SEED = number(int, 0, 2**32 - 1)
ALPHA = number(float, 0.0001, 1)
COUNT = number(int, 1, 10_000)
MODEL_GROUP = "Without these options, the model that comes with the package is used."


def add_photos(
    parser: argparse.ArgumentParser,
    source: str = "the photo with the points to be found",
    *,
    targets: str | None = None,
) -> None:
    """SOURCE and TARGET; ``source`` describes the first, ``targets="+"`` allows several of the second."""
    parser.add_argument("src", metavar="SOURCE", help=f"{source}: JPEG, PNG, WebP, …")
    several = ", or several" if targets else ""
    parser.add_argument(
        "trg", metavar="TARGET", nargs=targets, help=f"another photo of the same kind of object{several}"
    )


def add_data(parser: argparse.ArgumentParser, *, required: bool = True) -> argparse._ArgumentGroup:
    """The group "data": --benchmark and --root; the caller adds --split."""
    group = parser.add_argument_group("data")
    group.add_argument(
        "--benchmark",
        required=required,
        choices=BENCHMARKS,
        metavar="NAME",
        help=f"layout of the folder: {', '.join(BENCHMARKS)}; coco also for your own data",
    )
    group.add_argument(
        "--root", required=required, metavar="DIR", help="the benchmark's folder (coco: or its JSON file)"
    )
    return group


def add_model(parser: argparse.ArgumentParser, *, try_mirrored: bool | None = None) -> None:
    """The group "model": which weights and settings; --try-mirrored with this default, unless it is None."""
    group = parser.add_argument_group("model", MODEL_GROUP)
    group.add_argument("--weights", metavar="DIR", help="a checkpoint folder, or owner/name on the Hugging Face hub")
    _add_settings(group)
    group.add_argument(
        "--refiner", choices=("none",), help="none: match by the raw mean correlation of the backbone's layers"
    )
    group.add_argument("--config", metavar="FILE", help="settings for --refiner none: a .toml with a [model] table")
    group.add_argument("--backbone", type=backbone_name, metavar="NAME", help=f"for --refiner none: {BACKBONE_HELP}")
    group.add_argument(
        "--backbone-weights",
        metavar="FILE",
        help="for --refiner none: a .safetensors file, a torchvision name such as IMAGENET1K_V1, or timm",
    )
    group.add_argument(
        "--download", action="store_true", help="allow downloads from torchvision, timm or the hub if not cached"
    )
    add_precision(group)
    if try_mirrored is not None:
        group.add_argument(
            "--try-mirrored",
            action=argparse.BooleanOptionalAction,
            default=try_mirrored,
            help="match the mirrored source if it fits the target better, as for objects that face opposite ways; for "
            f"models that match in several passes (default: {'yes' if try_mirrored else 'no'})",
        )


def add_precision(group: argparse._ArgumentGroup) -> None:
    """--precision of the backbone."""
    group.add_argument(
        "--precision",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="of the backbone; auto: bfloat16 where the device multiplies it faster (%(default)s)",
    )


def add_checkpoint(parser: argparse.ArgumentParser, *, settings: bool = False) -> None:
    """The group "model" of commands that take trained models only: --weights, perhaps --set."""
    group = parser.add_argument_group("model", MODEL_GROUP)
    group.add_argument("--weights", metavar="DIR", help="a checkpoint folder")
    if settings:
        _add_settings(group)


def _add_settings(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting of the model, e.g. image_size=[480,640]; may be repeated",
    )


def add_run(parser: argparse.ArgumentParser, *, device: bool = True) -> argparse._ArgumentGroup:
    """The group "run": --device; the caller adds --batch and --threads."""
    group = parser.add_argument_group("run")
    if device:
        group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1 (%(default)s)")
    return group


def add_score(parser: argparse.ArgumentParser, *, every_frame: bool = False) -> None:
    """The group "score": how PCK is measured; perhaps in several frames at once."""
    group = parser.add_argument_group("score")
    several = "; all: 240 and original" if every_frame else ""
    group.add_argument(
        "--frame",
        default="240",
        help=f"resize targets to this before measuring distances: 240, HxW or original{several} (%(default)s)",
    )
    group.add_argument(
        "--pck-threshold",
        default="auto",
        choices=("auto", "img", "bbox", "bbox-kp", "bbox-padded"),
        help="the length that α multiplies, in the table by category; auto: the benchmark's own (%(default)s)",
    )
    group.add_argument(
        "--alpha", type=ALPHA, nargs="+", metavar="A", help="tolerances, as a share of that length (0.01 0.05 0.1 0.15)"
    )


def backbone_name(text: str) -> str:
    """One of our ResNets, or timm:NAME; whether timm has it is seen when it is built."""
    if text not in BACKBONES and text.removeprefix("timm:") in ("", text):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {BACKBONE_HELP}{did_you_mean(text, BACKBONES)}")
    return text


def load_matcher(args: argparse.Namespace, precision: Precision | None = None) -> tuple[Matcher, str]:
    """The matcher that the arguments ask for, calibrated if its weights are, and where its weights come from.

    ``precision`` is that of commands without --precision.
    """
    from transformatcher.inference.calibration import Calibrations, load_calibration
    from transformatcher.inference.matcher import Matcher

    model, config, description = load_model(args)
    calibration = Calibrations()
    if args.refiner != "none":
        weights = _checkpoint(args)
        calibration = load_calibration(weights if weights.is_dir() else weights.parent)
    try_mirrored, precision = getattr(args, "try_mirrored", False), precision or args.precision
    matcher = Matcher(model, config, args.device, calibration, try_mirrored=try_mirrored, precision=precision)
    return matcher, description


def load_model(args: argparse.Namespace) -> tuple[TransforMatcher, ModelConfig, str]:
    """The model that the arguments ask for, its config, and where its weights come from."""
    from transformatcher.config import parse_overrides
    from transformatcher.inference.checkpoint import SHIPPED_DESCRIPTION, load_checkpoint

    if args.weights and (args.refiner or args.backbone or args.backbone_weights):
        raise InputError("--weights brings its own refiner and backbone; leave --refiner and --backbone… out")
    if args.refiner == "none":
        return _raw_model(args)
    if args.config or args.backbone or args.backbone_weights:
        raise InputError("--config and --backbone… go with --refiner none; a trained model's are fixed")
    model, config = load_checkpoint(_checkpoint(args), parse_overrides(args.settings))
    changed = f" with {', '.join(args.settings)}" if args.settings else ""
    return model, config, (args.weights or SHIPPED_DESCRIPTION) + changed


def _raw_model(args: argparse.Namespace) -> tuple[TransforMatcher, ModelConfig, str]:
    """The model of ``--refiner none``: raw correlation of a backbone's features."""
    from transformatcher.config import model_config, parse_overrides, read_model_table
    from transformatcher.models.backbones.weights import backbone_of, load_backbone_weights
    from transformatcher.models.build import build_matcher

    if not args.backbone_weights:
        raise InputError(
            "--refiner none needs --backbone-weights: a .safetensors file, a torchvision name such as IMAGENET1K_V1 "
            "(with --backbone resnet50 or resnet101), or timm (with --backbone timm:NAME)"
        )
    settings: dict[str, Any] = {}
    if args.config:
        model_config(settings := read_model_table(Path(args.config)), source=args.config)
    settings |= parse_overrides(args.settings)
    for key in ("refiner", "variant"):
        if settings.pop(key, "raw") not in ("raw", "none"):
            raise InputError(f"--refiner none is raw correlation: leave {key!r} out of the settings")
    backbone = args.backbone or settings.get("backbone") or backbone_of(args.backbone_weights)
    config = model_config({**settings, "backbone": backbone, "variant": "raw"}, source="--set")
    model = build_matcher(config)
    load_backbone_weights(model.backbone, args.backbone_weights, download=args.download)
    return model, config, f"raw correlation, {Path(args.backbone_weights).name}"


def model_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The options that chose the model, as data for run.json; ``set`` holds those of --config, too."""
    from transformatcher.config import parse_overrides, read_model_table

    settings = read_model_table(Path(args.config)) if args.config else {}
    given = {
        "weights": args.weights,
        "refiner": args.refiner,
        "backbone": args.backbone,
        "backbone_weights": Path(args.backbone_weights).name if args.backbone_weights else None,
        "set": settings | parse_overrides(args.settings),
        "precision": None if args.precision == "auto" else args.precision,
    }
    return {key: value for key, value in given.items() if value}


def _checkpoint(args: argparse.Namespace) -> Path:
    """Where the weights that the arguments name are; a name on the Hugging Face hub is looked up in its cache."""
    from transformatcher.inference.checkpoint import SHIPPED, find_checkpoint

    return find_checkpoint(args.weights, download=args.download) if args.weights else SHIPPED


def recorded_split(args: argparse.Namespace) -> str | None:
    """The split, or None where one annotation file has no splits."""
    from transformatcher.data.coco_keypoints import has_splits

    objects = BENCHMARKS[args.benchmark].content == "objects"
    return None if objects and not has_splits(Path(args.root)) else str(args.split)


def add_voting(group: Any) -> None:
    """Add how references vote on a photo: how many of them, and the confidence that a keypoint needs."""
    group.add_argument(
        "--threshold",
        type=number(float, 0, 1),
        metavar="P",
        help="leave out keypoints of less confidence (0.5 with a calibrated model; others leave out none)",
    )
    group.add_argument(
        "--references",
        type=_references,
        default="6",
        metavar="K",
        help="how many references of a category vote on an image, those that look most like it; or all (%(default)s)",
    )


def _references(text: str) -> int | None:
    """A number of references; None for all."""
    return None if text == "all" else int(COUNT(text))

"""Matcher ↔ folder: ``model.safetensors`` beside ``config.json``, written whole or not at all, loaded strictly."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from transformatcher.config import INPUT, READ_OUT, ModelConfig, check_keys, model_config, read_model_config, to_plain
from transformatcher.errors import InputError
from transformatcher.files import write_text
from transformatcher.inference.calibration import CALIBRATION
from transformatcher.models.build import build_matcher
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.models.weights_io import (
    hub_folder,
    load_strictly,
    looks_like_hub_id,
    read_safetensors,
    to_float16,
    write_tensors,
)

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
SHIPPED = Path(__file__).parents[1] / "weights"  # the model that comes with the package, with its card
SHIPPED_DESCRIPTION = "the model that ships with transformatcher"


class _NoDraws(TorchFunctionMode):
    """Modules are built without initial weights: drawing them takes longer than loading what overwrites them."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.normal_, Tensor.uniform_) or getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def find_checkpoint(name: str | Path, *, download: bool = False, revision: str | None = None) -> Path:
    """A local checkpoint, or the name ``owner/name`` of one on the Hugging Face hub → where its files are.

    Args:
        name: what is there locally is taken; a path (not a string) is never looked for on the hub.
        download: fetch it from the hub where it is not in the hub's cache.
        revision: of a checkpoint on the hub.
    """
    if isinstance(name, Path) or Path(name).exists() or not looks_like_hub_id(name):
        return Path(name)
    try:
        return hub_folder(name, [WEIGHTS, CONFIG], [CALIBRATION, CARD], download=download, revision=revision)
    except InputError as error:
        raise InputError(f"{name}: no such checkpoint here; on the Hugging Face hub, {error}") from error


def save_checkpoint(folder: Path, model: TransforMatcher, config: ModelConfig, *, half: bool = False) -> None:
    """Write both files under other names first, so that an interrupted save leaves the old ones.

    ``half``: weights as float16, in half the space.
    """
    tensors = model.state_dict()
    write_tensors(folder / WEIGHTS, to_float16(tensors) if half else tensors)
    write_text(folder / CONFIG, json.dumps(to_plain(config), indent=2) + "\n")


def load_checkpoint(path: Path, settings: Mapping[str, Any] | None = None) -> tuple[TransforMatcher, ModelConfig]:
    """A checkpoint folder, or the .safetensors file in it → the matcher, in evaluation mode, and its config.

    ``settings`` change how it is read out, and the size of the images that it is given (READ_OUT and INPUT in
    :mod:`transformatcher.config`); all others are part of it.
    """
    if not path.exists():
        raise InputError(f"{path}: no such checkpoint")
    weights = path / WEIGHTS if path.is_dir() else path
    if not (weights.parent / CONFIG).is_file():
        raise InputError(
            f"{path}: no checkpoint, there is no {CONFIG} with it; weights of a backbone alone go with --refiner none "
            "--backbone-weights"
        )
    trained = config = read_model_config(weights.parent / CONFIG)
    if settings:
        free = (*READ_OUT, *INPUT)
        if fixed := next((key for key in settings if key.split(".")[0] in vars(config) and key not in free), None):
            raise InputError(f"{path}: {fixed} is fixed by its training; what can be changed is {', '.join(free)}")
        check_keys(settings, free, f"{path}, a trained model")
        config = model_config({**to_plain(config), **settings}, source="--set")
        _check_input(trained, config)
    tensors, _ = read_safetensors(weights)
    with _NoDraws():  # for the grid of its training: vectors learned for that are interpolated on any other
        model = build_matcher(replace(config, image_size=trained.image_size))
    load_strictly(model, tensors, source=str(weights))
    return model, config


def _check_input(trained: ModelConfig, config: ModelConfig) -> None:
    """Refuse another image size where weights belong to single cells of the correlation's grid."""
    if config.image_size == trained.image_size or config.grid is not None:
        return  # with a grid of its own, the correlation is brought to that whatever the images are
    linformer = config.refiner == "match2match" and config.match2match.attention == "linformer"
    if config.refiner == "cats" or linformer:
        h, w = trained.image_size
        part = "the attention 'linformer'" if linformer else "the refiner 'cats'"
        raise InputError(
            f"--set image_size: {part} has weights for every cell of images of {h} × {w} "
            "and takes no others without training again"
        )

"""Matcher ↔ folder: ``model.safetensors`` beside ``config.json``, written whole or not at all, loaded strictly."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformatcher.config import READ_OUT, ModelConfig, check_keys, model_config, read_model_config, to_plain
from transformatcher.errors import InputError
from transformatcher.files import write_text
from transformatcher.models.build import build_matcher
from transformatcher.models.matcher import TransforMatcher
from transformatcher.tensors import load_strictly, read_safetensors, write_tensors

WEIGHTS, CONFIG = "model.safetensors", "config.json"
SHIPPED = Path(__file__).parent / "weights"  # the model that comes with the package; MODEL_CARD.md there describes it


def save_checkpoint(folder: Path, model: TransforMatcher, config: ModelConfig) -> None:
    """Write both files under other names first, so that an interrupted save leaves the old ones."""
    write_tensors(folder / WEIGHTS, model.state_dict())
    write_text(folder / CONFIG, json.dumps(to_plain(config), indent=2) + "\n")


def load_checkpoint(path: Path, settings: Mapping[str, Any] | None = None) -> tuple[TransforMatcher, ModelConfig]:
    """A checkpoint folder, or the .safetensors file in it → the matcher, in evaluation mode, and its config.

    ``settings`` change how it is read out (READ_OUT in :mod:`transformatcher.config`); all others are part of it.
    """
    if not path.exists():
        raise InputError(f"{path}: no such checkpoint")
    weights = path / WEIGHTS if path.is_dir() else path
    config = read_model_config(weights.parent / CONFIG)
    if settings:
        check_keys(settings, READ_OUT, f"{path}, a trained model, whose read-out alone can be changed")
        config = model_config({**to_plain(config), **settings}, source="--set")
    model = build_matcher(config)
    tensors, _ = read_safetensors(weights)
    load_strictly(model, tensors, source=str(weights))
    return model, config

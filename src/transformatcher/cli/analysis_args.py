"""What the analyses share: the model that is looked into, and the command as it stands in a document."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformatcher.config import ModelConfig
    from transformatcher.models.transformatcher import TransforMatcher


def load_additive(args: argparse.Namespace) -> tuple[TransforMatcher, ModelConfig, str]:
    """A trained model with additive attention, its config, and where its weights come from."""
    from transformatcher.evaluation.analysis.attention_hooks import additive_layers
    from transformatcher.inference.checkpoint import SHIPPED, SHIPPED_DESCRIPTION, load_checkpoint

    model, config = load_checkpoint(Path(args.weights) if args.weights else SHIPPED)
    additive_layers(model.refiner)
    return model, config, args.weights or SHIPPED_DESCRIPTION


def shown_path(path: Path) -> str:
    """A path as it may stand in a document: without the folders of this machine."""
    return path.name if path.is_absolute() else str(path)

"""TransforMatcher: semantic correspondence by match-to-match attention."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformatcher.config import ModelConfig, model_config
    from transformatcher.errors import InputError
    from transformatcher.inference.matcher import Matcher
    from transformatcher.inference.pair_matcher import PairMatcher
    from transformatcher.models.build import build_matcher
    from transformatcher.models.transformatcher import TransforMatcher

__version__ = "0.1.0"

__all__ = [
    "InputError",
    "Matcher",
    "ModelConfig",
    "PairMatcher",
    "TransforMatcher",
    "__version__",
    "build_matcher",
    "model_config",
]

# OpenMP reads this when torch is imported. By default its threads spin while they wait, which slows down all others.
if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Looked up on first use, so that `import transformatcher` does not wait for torch.
_HOMES = {
    "InputError": "errors",
    "Matcher": "inference.matcher",
    "ModelConfig": "config",
    "PairMatcher": "inference.pair_matcher",
    "TransforMatcher": "models.transformatcher",
    "build_matcher": "models.build",
    "model_config": "config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'transformatcher' has no attribute {name!r}")
    return getattr(import_module(f"transformatcher.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

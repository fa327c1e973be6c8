"""State of a training run ↔ one file that training can be resumed from."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from transformatcher.errors import InputError
from transformatcher.models.weights_io import load_strictly, read_safetensors, write_tensors


@dataclass
class TrainingState:
    """How far a run is. The rest of its state is in tensors: weights, their EMA, and the optimizer's moments."""

    epoch: int = 0  # the current one, counted from 0
    batch: int = 0  # the next one of this epoch
    step: int = 0  # optimizer steps done
    loss_sum: float = 0.0  # over the batches since the last validation
    best: float = -math.inf  # highest validation score
    best_epoch: int = -1
    seconds: float = 0.0  # of training so far
    pairs: str = ""  # a hash of what is trained on; empty in states of earlier versions
    metrics: list[dict[str, Any]] = field(default_factory=list)  # one entry for each validation, the first of the start

    @property
    def start(self) -> float | None:
        """The score before the first step; None in runs that did not measure it."""
        return float(self.metrics[0]["score"]) if self.metrics and self.metrics[0]["step"] == 0 else None


def save_state(
    path: Path, state: TrainingState, model: nn.Module, ema: nn.Module | None, optimizer: torch.optim.Optimizer
) -> None:
    """Write everything that resuming needs into one file, completely or not at all."""
    tensors = {f"model.{key}": value for key, value in model.state_dict().items()}
    if ema is not None:
        tensors |= {f"ema.{key}": value for key, value in ema.state_dict().items()}
    for index, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": torch.as_tensor(value) for key, value in moments.items()}
    write_tensors(path, tensors, {"state": json.dumps(asdict(state))})


def load_state(path: Path, model: nn.Module, ema: nn.Module | None, optimizer: torch.optim.Optimizer) -> TrainingState:
    """Read what :func:`save_state` wrote into model, EMA and optimizer, which must be built as they were then."""
    tensors, metadata = read_safetensors(path)
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "ema": {}, "optimizer": {}}
    for key, value in tensors.items():
        part, _, name = key.partition(".")
        parts.setdefault(part, {})[name] = value
    state = _read_progress(metadata, path)
    load_strictly(model, parts["model"], str(path))
    if ema is not None:
        load_strictly(ema, parts["ema"], str(path))
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in parts["optimizer"].items():
        index, _, key = name.partition(".")
        moments.setdefault(int(index) if index.isdecimal() else -1, {})[key] = value
    _check_moments(moments, optimizer, path)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    return state


def _read_progress(metadata: Mapping[str, str], path: Path) -> TrainingState:
    try:
        return TypeAdapter(TrainingState).validate_json(metadata["state"])
    except (KeyError, ValidationError) as error:
        raise InputError(f"{path}: not the state of a training run; start again without --resume") from error


def _check_moments(moments: Mapping[int, Mapping[str, Tensor]], optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Raise an InputError for moments that are not those of the optimizer's parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, values in moments.items():
        known = 0 <= index < len(parameters)
        if not known or any(value.numel() > 1 and value.shape != parameters[index].shape for value in values.values()):
            raise InputError(f"{path}: its optimizer belongs to another model; start again without --resume")

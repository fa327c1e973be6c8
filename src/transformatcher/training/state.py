"""State of a training run ↔ one file that training can be resumed from."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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
        parts[part][name] = value
    load_strictly(model, parts["model"], str(path))
    if ema is not None:
        load_strictly(ema, parts["ema"], str(path))
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in parts["optimizer"].items():
        index, _, key = name.partition(".")
        moments.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    return TrainingState(**json.loads(metadata["state"]))

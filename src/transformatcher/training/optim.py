"""Train config → optimizer, learning-rate schedule and exponential moving average (EMA) of the weights."""

import math

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from transformatcher.config import TrainConfig
from transformatcher.models.transformatcher import TransforMatcher

Tensors = tuple[Tensor, ...] | list[Tensor]


def make_optimizer(model: TransforMatcher, settings: TrainConfig, device: torch.device) -> torch.optim.Optimizer:
    """AdamW with one learning rate for the backbone and one for the rest; without weight decay it is Adam.

    Parameters whose rate is 0 are left out. Each group keeps its unscheduled rate as ``base_lr``.
    """
    backbone = {id(p) for p in model.backbone.parameters()}
    groups = []
    for lr, in_backbone in ((settings.lr, False), (settings.lr_backbone, True)):
        parameters = [p for p in model.parameters() if (id(p) in backbone) == in_backbone]
        if lr and parameters:
            groups.append({"params": parameters, "lr": lr, "base_lr": lr})
    return torch.optim.AdamW(groups, weight_decay=settings.weight_decay, fused=device.type == "cuda")


def lr_factor(step: int, steps: int, warmup: int, schedule: str) -> float:
    """The factor in [0, 1] of the learning rates at one step.

    Args:
        step: counted from 0.
        steps: of the whole run.
        warmup: steps of linear increase at the start.
        schedule: what follows: ``constant``, or ``cosine`` down to 0.
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1)))


def make_ema(model: nn.Module, decay: float) -> AveragedModel:
    """A copy of the model whose ``update_parameters(model)`` moves its weights and running statistics to the model's.

    The decay after step n is min(decay, (1 + n) / (10 + n)): small at first, so that the initial weights are soon
    forgotten. Integer buffers, which count batches, stay as they are.
    """

    def update(ema: Tensors, current: Tensors, n_averaged: Tensor | int) -> None:
        if ema[0].is_floating_point():
            n = int(n_averaged)
            lerp = get_ema_multi_avg_fn(min(decay, (1 + n) / (10 + n)))  # type: ignore[no-untyped-call]
            lerp(ema, current, n)

    averaged = AveragedModel(model, multi_avg_fn=update, use_buffers=True)
    averaged.n_averaged += 1  # the copy counts as the first one; without this, the first update would overwrite it
    return averaged.requires_grad_(False)

"""Train config → optimizer, learning-rate schedule and exponential moving average (EMA) of the weights."""

import math
from itertools import chain

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from transformatcher.config import TrainConfig
from transformatcher.models.transformatcher import TransforMatcher


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


class EMA(AveragedModel):
    """Exponential moving average of a model's weights and running statistics; ``module`` is the averaged model.

    The decay after update n is min(decay, (1 + n) / (10 + n)): small at first, so that the initial weights are soon
    forgotten. Integer buffers, which count batches, stay as they are.

    Args:
        model: the average starts with its current weights.
        decay: below 1; the larger, the longer the average remembers.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model, use_buffers=True)
        self.decay = decay
        self.requires_grad_(False)

    def update_parameters(self, model: nn.Module) -> None:
        """Move towards the current weights of the model.

        The formula is torch's. Its own method copies the counter to the device, which waits for the device each time.
        """
        n = int(self.n_averaged) + 1  # the counter stays on the host
        decay = min(self.decay, (1 + n) / (10 + n))
        averaged, current = (chain(module.parameters(), module.buffers()) for module in (self.module, model))
        pairs = [pair for pair in zip(averaged, current, strict=True) if pair[0].is_floating_point()]
        update = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        update([ours for ours, _ in pairs], [theirs.detach() for _, theirs in pairs], n)
        self.n_averaged.fill_(n)

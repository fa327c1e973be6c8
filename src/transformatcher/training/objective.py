"""Batch → loss and gradients."""

from dataclasses import fields, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from transformatcher.models.flow import KernelSoftArgmax
from transformatcher.models.fused.inference import capture_cuda_graph
from transformatcher.models.losses import keypoint_loss, map_cross_entropy
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.schema import PairBatch


class Objective(nn.Module):
    """The loss of a batch, as a module so that DistributedDataParallel can wrap it.

    Args:
        model: to be trained.
        regression, cross_entropy: weights of the two losses; 0 leaves one out.
        use_bfloat16: run the backbone in bfloat16.
    """

    def __init__(
        self, model: TransforMatcher, regression: float, cross_entropy: float, *, use_bfloat16: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self.regression = regression
        self.cross_entropy = cross_entropy
        self.use_bfloat16 = use_bfloat16

    def forward(self, batch: PairBatch) -> Tensor:
        """The weighted sum of the losses, a scalar."""
        model, b = self.model, len(batch.src)
        images = torch.cat([batch.src, batch.trg])
        if images.is_cuda:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.use_bfloat16, cache_enabled=False):
            features = model.encode(images)
        refined = model.refine([f[:b] for f in features], [f[b:] for f in features])
        loss = refined.new_zeros(())
        if self.regression:
            predicted = model.transfer(model.readout(refined), batch.src_kps_norm)
            loss = loss + self.regression * keypoint_loss(predicted, batch.trg_kps_norm, batch.visible)
        if self.cross_entropy:
            logits = refined / cast(KernelSoftArgmax, model.readout).temperature
            loss = loss + self.cross_entropy * map_cross_entropy(
                logits, batch.src_kps_norm, batch.trg_kps_norm, batch.visible
            )
        return loss


def loss_and_gradients(objective: nn.Module, batch: PairBatch, accumulate: int = 1) -> Tensor:
    """The loss of a batch; its gradients replace the parameters' old ones.

    Args:
        objective: the loss.
        batch: of pairs.
        accumulate: equal parts of the batch that are computed one after the other, so that the memory is that of one
            part. Loss and gradients are those of the whole batch; only batch norms in training mode see the parts.
    """
    for parameter in objective.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    total = batch.src.new_zeros(())
    counted = batch.visible.any(dim=1)  # pairs that the loss is the mean over
    for part, part_counted in zip(split_batch(batch, accumulate), counted.chunk(accumulate), strict=True):
        loss: Tensor = objective(part)
        if accumulate > 1:
            loss = loss * (part_counted.sum() / counted.sum().clamp(min=1))
        loss.backward()  # type: ignore[no-untyped-call]
        total = total + loss.detach()
    return total


def split_batch(batch: PairBatch, parts: int) -> list[PairBatch]:
    """A batch → parts of the same size."""
    if len(batch.src) % parts:
        raise ValueError(f"a batch of {len(batch.src)} pairs cannot be divided into {parts} parts")
    pieces = {item.name: getattr(batch, item.name).chunk(parts) for item in fields(batch)}
    return [PairBatch(**{name: chunks[i] for name, chunks in pieces.items()}) for i in range(parts)]


class CudaGraphLoss:
    """:func:`loss_and_gradients` as one CUDA graph: one launch instead of thousands of small ones.

    Args:
        objective: the loss.
        example: a batch. All others must have its shapes.
        accumulate: see :func:`loss_and_gradients`.
    """

    INPUTS = ("src", "trg", "src_kps_norm", "trg_kps_norm", "visible")

    def __init__(self, objective: nn.Module, example: PairBatch, accumulate: int = 1) -> None:
        self.batch = replace(example, **{name: getattr(example, name).clone() for name in self.INPUTS})
        # The warm-up before the capture must not change the running statistics of batch norms.
        before = [buffer.clone() for buffer in objective.buffers()]
        self.replay = capture_cuda_graph(partial(loss_and_gradients, objective, self.batch, accumulate))
        for buffer, value in zip(objective.buffers(), before, strict=True):
            buffer.copy_(value)

    def __call__(self, batch: PairBatch) -> Tensor:
        """The loss of a batch; its gradients replace the parameters' old ones."""
        for name in self.INPUTS:
            getattr(self.batch, name).copy_(getattr(batch, name))
        return self.replay().clone()

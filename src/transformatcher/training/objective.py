"""Config → the parts of a training run: what it starts from, learns by, is fed with and is measured on."""

import math
from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from transformatcher.config import DataConfig, ModelConfig, RunConfig, SourceConfig, TrainConfig
from transformatcher.data.benchmarks import load_benchmark
from transformatcher.data.coco_keypoints import AnnotatedObject, find_coco, load_coco_objects
from transformatcher.data.coco_pairs import CocoPairs, SelfPairs, objects_of
from transformatcher.data.loader import Source
from transformatcher.data.pairs import LoadedPair, find_split, load_pair, photo_names
from transformatcher.errors import InputError
from transformatcher.evaluation.metrics import ALPHAS, Kind
from transformatcher.evaluation.predict import predict_batch
from transformatcher.evaluation.scores import PUBLISHED_KIND, pair_scores
from transformatcher.inference.checkpoint import load_checkpoint
from transformatcher.models.backbones.resnet import load_backbone_weights
from transformatcher.models.build import build_matcher
from transformatcher.models.flow import KernelSoftArgmax
from transformatcher.models.fused.inference import captured
from transformatcher.models.losses import keypoint_loss, map_cross_entropy
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.models.weights_io import load_strictly
from transformatcher.schema import PairBatch, Size
from transformatcher.training.distributed import Team


def start_model(config: RunConfig) -> TransforMatcher:
    """A model with the weights that training starts from."""
    settings = config.train
    model = build_matcher(config.model)
    if settings.start:
        other, _ = load_checkpoint(Path(settings.start))
        load_strictly(model, other.state_dict(), settings.start)
    elif settings.backbone_weights:
        load_backbone_weights(model.backbone, settings.backbone_weights)
    return model


def rehearse(config: ModelConfig, source: str) -> None:
    """A model's whole way with shapes alone: what cannot work is refused before anything is trained."""
    try:
        with torch.device("meta"), torch.inference_mode():
            model = build_matcher(config)
            image = torch.empty(1, 3, *config.image_size)
            flow = model(image, image)
            for training in (True, False):  # which sample differently
                model.train(training).transfer(flow, torch.empty(1, 1, 2))
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


class Objective(nn.Module):
    """A batch → its loss; a module so that DistributedDataParallel can wrap it.

    Args:
        model: to be trained.
        regression, cross_entropy: weights of the two losses.
        low: run the backbone in bfloat16.
    """

    def __init__(self, model: TransforMatcher, regression: float, cross_entropy: float, low: bool = False) -> None:
        super().__init__()
        self.model = model
        self.regression = regression
        self.cross_entropy = cross_entropy
        self.low = low

    def forward(self, batch: PairBatch) -> Tensor:
        """The weighted sum of the losses."""
        model, b = self.model, len(batch.src)
        images = torch.cat([batch.src, batch.trg])
        if images.is_cuda:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.low, cache_enabled=False):
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


class GraphedLoss:
    """Loss and gradients of batches of one shape, as one CUDA graph: thousands of small launches become one.

    Args:
        objective: the loss.
        example: a batch; all others must have its shapes.
    """

    INPUTS = ("src", "trg", "src_kps_norm", "trg_kps_norm", "visible")

    def __init__(self, objective: nn.Module, example: PairBatch) -> None:
        self.batch = replace(example, **{name: getattr(example, name).clone() for name in self.INPUTS})
        before = [buffer.clone() for buffer in objective.buffers()]  # of batch norms, which warming up would move
        self.replay = captured(partial(loss_and_gradients, objective, self.batch))
        for buffer, value in zip(objective.buffers(), before, strict=True):
            buffer.copy_(value)

    def __call__(self, batch: PairBatch) -> Tensor:
        """The loss of a batch; its gradients replace those that parameters had."""
        for name in self.INPUTS:
            getattr(self.batch, name).copy_(getattr(batch, name))
        return self.replay().clone()


def loss_and_gradients(objective: nn.Module, batch: PairBatch) -> Tensor:
    """The loss of a batch; its gradients replace those that parameters had."""
    for parameter in objective.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    loss: Tensor = objective(batch)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def make_optimiser(model: TransforMatcher, settings: TrainConfig, device: torch.device) -> torch.optim.Optimizer:
    """Adam with one rate for the matcher and one for the backbone."""
    backbone = {id(p) for p in model.backbone.parameters()}
    groups = []
    for rate, inside in ((settings.lr, False), (settings.lr_backbone, True)):
        parameters = [p for p in model.parameters() if (id(p) in backbone) == inside]
        if rate and parameters:
            groups.append({"params": parameters, "lr": rate, "full_lr": rate})
    fused = device.type == "cuda"
    return torch.optim.AdamW(groups, weight_decay=settings.weight_decay, fused=fused)  # without decay it is Adam


def rate_scale(step: int, steps: int, warmup: int, schedule: str) -> float:
    """The part of the full learning rate at a step, counted from 0."""
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1)))


class Average:
    """A running average of a model's weights, as a model of its own."""

    def __init__(self, model: TransforMatcher, decay: float) -> None:
        self.model = deepcopy(model).requires_grad_(False)
        self.decay = decay
        pairs = list(zip(self.model.state_dict().values(), model.state_dict().values(), strict=True))
        self.moving = [(ours, theirs) for ours, theirs in pairs if ours.is_floating_point()]

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Move towards the model after its step number ``step``: fast at first, so that the start is soon forgotten."""
        decay = min(self.decay, (1 + step) / (10 + step))
        move = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        move([ours for ours, _ in self.moving], [theirs for _, theirs in self.moving], step)


def training_source(item: SourceConfig, data: DataConfig, seed: int) -> Source:
    """A line of the config → pairs."""
    root = Path(data.root) / item.folder
    hidden = _photos(data)
    if item.benchmark != "coco":
        listed = load_benchmark(item.benchmark, root, item.split)[: item.limit]
        listed = _without(listed, photo_names, hidden, f"{root}, {item.split}: pair")
        return Source(SelfPairs(objects_of(listed), seed=seed) if item.with_itself else listed, item.share)
    objects = load_coco_objects(*find_coco(root, find_split(item.split)))
    objects = _without(objects, lambda thing: {thing.image.stem}, hidden, f"{root}: object")
    large = [thing for thing in objects if _side(thing) >= data.min_object]
    if objects and not large:
        raise InputError(f"{root}: none of {len(objects)} objects is as large as data.min_object = {data.min_object:g}")
    if item.with_itself:
        return Source(SelfPairs(large, seed=seed), item.share)
    pairs = CocoPairs(
        large,
        seed=seed,
        min_shared=data.min_shared,
        min_overlap=data.min_overlap,
        balanced=data.balanced,
        mirror=data.mirror,
    )
    return Source(pairs, item.share)


def _photos(data: DataConfig) -> set[str]:
    """The photos that are not to be trained on."""
    names: set[str] = set()
    for item in data.leave_out:
        root = Path(data.root) / item.folder
        try:
            if item.benchmark == "coco":
                names |= {thing.image.stem for thing in load_coco_objects(*find_coco(root, find_split(item.split)))}
            else:
                names = names.union(*map(photo_names, load_benchmark(item.benchmark, root, item.split)))
        except InputError as error:
            raise InputError(f"data.leave_out: {error}") from error
    return names


Item = TypeVar("Item")


def _without(items: list[Item], photos: Callable[[Item], Set[str]], hidden: Set[str], what: str) -> list[Item]:
    left = [item for item in items if not photos(item) & hidden]
    if items and not left:
        raise InputError(
            f"{what}s: all {len(items)} show photos that data.leave_out names; does it name another split than trn?"
        )
    return left


def _side(thing: AnnotatedObject) -> float:
    """The longer side of an object's box in that of its image; 1 where either is unknown."""
    if thing.bbox_px is None or thing.image_size is None:
        return 1.0
    x0, y0, x1, y1 = thing.bbox_px
    return float(max(x1 - x0, y1 - y0) / max(thing.image_size))


@dataclass(frozen=True)
class Validation:
    """The decoded pairs of one validation set that this process predicts, in batches."""

    name: str
    kind: Kind
    n_pairs: int  # of all processes
    batches: Sequence[Sequence[LoadedPair]]


def load_validation(
    item: SourceConfig, root: str, size: Size, team: Team, threads: int = 4, batch: int = 16
) -> Validation:
    """Decode the pairs of a validation set, once for the whole run."""
    folder = Path(root) / item.folder
    pairs = load_benchmark(item.benchmark, folder, item.split, n_pairs=item.limit or 1000)[: item.limit]
    chunks = [pairs[start : start + batch] for start in range(0, len(pairs), batch)][team.rank :: team.world]
    with ThreadPoolExecutor(threads) as pool:
        batches = [list(pool.map(partial(load_pair, size=size), chunk)) for chunk in chunks]
    return Validation(set_name(item), PUBLISHED_KIND[item.benchmark], len(pairs), batches)


def set_name(item: SourceConfig) -> str:
    """What a set of pairs is called wherever it is measured."""
    return f"{item.folder}-{item.split}"


def measure(
    model: TransforMatcher, validations: Sequence[Validation], device: torch.device, team: Team | None = None
) -> dict[str, dict[str, float]]:
    """PCK of every set at every α, as its publications measure it; pairs are shared among the processes."""
    result = {}
    for validation in validations:
        totals = torch.zeros(len(ALPHAS), dtype=torch.float64)
        for batch in validation.batches:
            predictions = list(predict_batch(model, batch, device))
            totals += torch.tensor([pair_scores(predictions, validation.kind, alpha).sum() for alpha in ALPHAS])
        means = (team or Team()).sum(totals.to(device)) / validation.n_pairs
        result[validation.name] = {f"{alpha:g}": pck for alpha, pck in zip(ALPHAS, means.tolist(), strict=True)}
    return result

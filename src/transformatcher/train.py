"""Config → trained matcher: one loop that can be killed at any moment and goes on where it stopped.

A run folder holds run.json (config, versions), metrics.jsonl (a line for each epoch), last.safetensors (all that is
needed to go on), best/ (the checkpoint with the highest validation score), curves.png and pictures/.
"""

import json
import math
import platform
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, cast

import numpy as np
import torch
import torchvision
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import get_ema_multi_avg_fn

from transformatcher import __version__
from transformatcher.checkpoint import load_checkpoint, save_checkpoint
from transformatcher.config import DataConfig, RunConfig, SourceConfig, TrainConfig, to_plain
from transformatcher.data.benchmarks import load_benchmark
from transformatcher.data.coco_keypoints import (
    AnnotatedObject,
    CocoPairs,
    SelfPairs,
    find_coco,
    load_coco_objects,
)
from transformatcher.data.pairs import LoadedPair, find_split, load_pair
from transformatcher.data.store import ImageStore, choose_place
from transformatcher.data.training import Augmentation, Batches, Draws, Source, TrainingPairs, open_store
from transformatcher.distributed import Team
from transformatcher.errors import InputError
from transformatcher.evaluate import PUBLISHED_KIND, pair_scores, predict_batch
from transformatcher.files import make_folder, read_json, write_text
from transformatcher.images import read_image
from transformatcher.losses import keypoint_loss, map_cross_entropy
from transformatcher.metrics import ALPHAS, Kind
from transformatcher.models.backbone import load_backbone_weights
from transformatcher.models.build import build_matcher
from transformatcher.models.flow import KernelSoftArgmax
from transformatcher.models.inference import captured
from transformatcher.models.matcher import TransforMatcher
from transformatcher.schema import Matches, PairBatch, Size
from transformatcher.tensors import load_strictly, read_safetensors, write_tensors
from transformatcher.visualize import draw_matches, plot_curves, save_figure

RUN, METRICS, LAST, BEST = "run.json", "metrics.jsonl", "last.safetensors", "best"
# What may differ between a run and its continuation: where things lie and how they are read, not what comes out.
FREE_KEYS = ("data.root", "data.keep", "data.threads", "data.workers", "train.save_every")
LOOK_EVERY = 20  # steps between looks at the loss; each look waits for the device

Report = Callable[[int, int, str], None]  # pairs done, pairs in all, a few words


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


@dataclass
class Progress:
    """How far a run is. Everything else that changes is in tensors."""

    epoch: int = 0  # that is going on, or comes next
    batch: int = 0  # of that epoch, to come next
    step: int = 0
    loss_sum: float = 0.0  # of this epoch's batches
    best: float = -math.inf
    best_epoch: int = -1
    seconds: float = 0.0
    metrics: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Validation:
    """The decoded pairs of one validation set that this process predicts, in batches."""

    name: str
    kind: Kind
    n_pairs: int  # of all processes
    batches: Sequence[Sequence[LoadedPair]]


class Trainer:
    """Everything that a run holds; :meth:`fit` is the loop.

    Args:
        config: the resolved one.
        out: the run's folder.
        device: of this process.
        team: of processes.
        report: called now and then with how far the run is.
    """

    def __init__(
        self,
        config: RunConfig,
        out: Path,
        device: torch.device,
        team: Team | None = None,
        report: Report = lambda _done, _total, _words: None,
    ) -> None:
        self.config, self.out, self.device, self.team, self.report = config, out, device, team or Team(), report
        settings = config.train
        if settings.batch % self.team.world:
            raise InputError(f"train.batch = {settings.batch} cannot be shared by {self.team.world} processes")
        if settings.select_alpha not in ALPHAS:
            raise InputError(f"train.select_alpha = {settings.select_alpha:g} is none of {', '.join(map(str, ALPHAS))}")
        torch.manual_seed(settings.seed)
        self.model = start_model(config).to(device)
        if device.type == "cuda":
            self.model.backbone.to(memory_format=torch.channels_last)
            torch.backends.cudnn.benchmark = True  # every batch has one shape
        self.low = settings.precision == "bfloat16" or (settings.precision == "auto" and device.type == "cuda")
        self.model.backbone.requires_grad_(settings.lr_backbone > 0)
        objective = Objective(self.model, settings.regression, settings.cross_entropy, self.low)
        self.objective: nn.Module = objective
        if self.team.world > 1:
            if settings.batch_norm == "train" and device.type == "cuda":
                objective = nn.SyncBatchNorm.convert_sync_batchnorm(objective)  # type: ignore[no-untyped-call]
            self.objective = DistributedDataParallel(objective, broadcast_buffers=False)
        self.average = Average(self.model, settings.average) if settings.average else None
        self.loss_of: Callable[[PairBatch], Tensor] = partial(loss_and_gradients, self.objective)
        self.optimiser = make_optimiser(self.model, settings, device)
        self.sources = [training_source(item, config.data, settings.seed) for item in config.data.train]
        self.validations = [load_validation(item, config, self.team) for item in config.data.validate]
        self.batches = self._open_batches()
        self.progress = Progress()
        self.losses: list[Tensor] = []  # since the last look
        self.stop_asked = False

    def _open_batches(self) -> Batches:
        data, size = self.config.data, self.config.model.image_size
        canvas: Size = (data.canvas, data.canvas)

        def make(images: Sequence[Any]) -> ImageStore:
            keep = choose_place(len(images), canvas, self.device) if data.keep == "auto" else data.keep

            def track(done: int, total: int) -> None:
                self.report(0, 1, f"decoding images: {done} of {total}")

            return ImageStore(images, canvas, self.device, keep, data.threads, track)

        pairs = TrainingPairs(self.sources, self.config.train.seed, data.pairs_per_epoch)
        if len(pairs) < self.config.train.batch:
            raise InputError(
                f"an epoch of {len(pairs)} pairs does not fill one batch of {self.config.train.batch}: "
                "lower train.batch, or set data.pairs_per_epoch"
            )
        augmentation = Augmentation(data.colour, data.crop, data.focus, data.flip)
        store = open_store(self.sources, make)
        batch = self.config.train.batch
        draws = Draws(pairs, store, size, augmentation, batch, self.team.rank, self.team.world)
        return Batches(draws, store, data.workers)

    # ------------------------------------------------------------ the loop

    def fit(self) -> Progress:
        """Train to the end, or until interrupted; what was reached is on disk in either case."""
        progress, settings = self.progress, self.config.train
        started = time.monotonic() - progress.seconds
        with self._interruptible(), self._board() as board:
            if progress.step == 0:
                self._draw("start")
            if self.device.type == "cuda" and self.team.world == 1:
                self._training_mode()
                self.loss_of = GraphedLoss(self.objective, self.batches.first())
            for batch in self.batches.stream(progress.epoch, progress.batch, settings.epochs):
                loss = self.step(batch)
                progress.seconds = time.monotonic() - started
                if progress.step % LOOK_EVERY == 0:
                    self._look(loss, board)
                if progress.step % settings.save_every == 0:
                    self.save()
                if progress.batch == len(self.batches):
                    self._finish_epoch(started, board)
                if self._asked_to_stop():
                    self.save()
                    raise KeyboardInterrupt
        return progress

    def _asked_to_stop(self) -> bool:
        """Whether any process was; several agree on it now and then only, because that waits for the device."""
        if self.team.world > 1 and self.progress.step % LOOK_EVERY:
            return False
        return self.team.any(self.stop_asked, self.device)

    def step(self, batch: PairBatch) -> Tensor:
        """One step of the optimiser."""
        progress, settings = self.progress, self.config.train
        if not self.model.training:
            self._training_mode()
        scale = rate_scale(progress.step, settings.epochs * len(self.batches), settings.warmup, settings.schedule)
        for group in self.optimiser.param_groups:
            group["lr"] = scale * group["full_lr"]
        loss = self.loss_of(batch)
        if settings.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip)
        self.optimiser.step()
        progress.step += 1
        progress.batch += 1
        if self.average is not None:
            self.average.follow(progress.step)
        self.losses.append(loss)
        return loss

    def _training_mode(self) -> None:
        self.model.train()
        if self.config.train.batch_norm == "frozen" or self.config.train.lr_backbone == 0:
            for module in self.model.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()

    def _collect_losses(self) -> None:
        """Add up what the last steps lost; a loss that is no number ends the run before anything is saved."""
        if not self.losses:
            return
        values = self.team.sum(torch.stack(self.losses).double()) / self.team.world
        self.losses = []
        for back, value in enumerate(reversed(values.tolist())):
            if not math.isfinite(value):
                kept = f"; the last good state is {self.out / LAST}" if (self.out / LAST).exists() else ""
                raise InputError(
                    f"the loss became {value} at step {self.progress.step - back} (learning rates "
                    f"{self.config.train.lr:g} and {self.config.train.lr_backbone:g}): "
                    f"try lower ones, a warm-up or clipping{kept}"
                )
        self.progress.loss_sum += sum(values.tolist())

    def _look(self, loss: Tensor, board: Any) -> None:
        self._collect_losses()
        progress, n = self.progress, self.config.train.batch
        done, total = progress.step * n, self.config.train.epochs * len(self.batches) * n
        mean = progress.loss_sum / max(progress.batch, 1)
        self.report(done, total, f"epoch {progress.epoch + 1}, loss {mean:.4f}, best {max(progress.best, 0):.1f}")
        if board is not None:
            board.add_scalar("loss/step", loss.item(), progress.step)

    def _finish_epoch(self, started: float, board: Any) -> None:
        self._collect_losses()
        progress, settings = self.progress, self.config.train
        scores = self.validate()
        progress.seconds = time.monotonic() - started
        score = float(np.mean([pck[f"{settings.select_alpha:g}"] for pck in scores.values()]))
        row = {
            "epoch": progress.epoch + 1,
            "step": progress.step,
            "pairs": progress.step * settings.batch,
            "loss": progress.loss_sum / max(progress.batch, 1),
            "lr": self.optimiser.param_groups[0]["lr"],
            "score": score,
            "pck": scores,
            "seconds": round(progress.seconds, 1),
        }
        progress.metrics.append(row)
        progress.epoch, progress.batch, progress.loss_sum = progress.epoch + 1, 0, 0.0
        better = score > progress.best
        if better:
            progress.best, progress.best_epoch = score, progress.epoch
        if self.team.leads:
            if better:
                save_checkpoint(self.out / BEST, self.validated, self.config.model)
            write_text(self.out / METRICS, "".join(json.dumps(line) + "\n" for line in progress.metrics))
            if board is not None:
                board.add_scalar("loss/epoch", row["loss"], progress.step)
                for name, pck in scores.items():
                    board.add_scalar(f"pck@0.1/{name}", pck["0.1"], progress.step)
        self.save()
        words = ", ".join(f"{name} {pck['0.05']:.1f} / {pck['0.1']:.1f}" for name, pck in scores.items())
        done = progress.step * settings.batch
        total = settings.epochs * len(self.batches) * settings.batch
        self.report(done, total, f"epoch {progress.epoch}, loss {row['loss']:.4f}, {words}\n")
        last = progress.epoch == settings.epochs
        if progress.epoch == 1 or last:
            self._draw("last" if last else "early")
        if self.team.leads and (last or progress.epoch in (1, 2, 5) or progress.epoch % 10 == 0):
            save_figure(plot_curves(progress.metrics, title=self.out.name), self.out / "curves.png")

    # ------------------------------------------------------------ validation

    def validate(self) -> dict[str, dict[str, float]]:
        """PCK of every validation set, as its publications measure it; pairs are shared among the processes."""
        model = self.validated.eval()
        result = {}
        for validation in self.validations:
            totals = torch.zeros(len(ALPHAS), dtype=torch.float64)
            for batch in validation.batches:
                predictions = list(predict_batch(model, batch, self.device))
                totals += torch.tensor([pair_scores(predictions, validation.kind, alpha).sum() for alpha in ALPHAS])
            means = self.team.sum(totals.to(self.device)) / validation.n_pairs
            result[validation.name] = {f"{alpha:g}": pck for alpha, pck in zip(ALPHAS, means.tolist(), strict=True)}
        return result

    @property
    def validated(self) -> TransforMatcher:
        """The model that counts: the averaged one, where weights are averaged."""
        return self.model if self.average is None else self.average.model

    def _draw(self, name: str) -> None:
        """The first validation pair, as the model sees it now."""
        if not self.team.leads:
            return
        loaded = self.validations[0].batches[0][0]
        (prediction,) = predict_batch(self.validated.eval(), [loaded], self.device)
        found = (prediction.src_kps, prediction.pred_kps, prediction.peak)
        matches = Matches(*(np.array(values, dtype=float) for values in found))
        flips = (loaded.pair.src_flip, loaded.pair.trg_flip)
        src, trg = (read_image(i, orient=loaded.pair.orient) for i in (loaded.pair.src_image, loaded.pair.trg_image))
        src, trg = (image[:, ::-1] if flip else image for image, flip in zip((src, trg), flips, strict=True))
        title = f"{loaded.pair.name} after {self.progress.step} steps"
        save_figure(draw_matches(src, trg, matches, title), self.out / "pictures" / f"{name}.png")

    # ------------------------------------------------------------ stopping and going on

    def save(self) -> None:
        """Put all that is needed to go on into one file, in one stroke."""
        self._collect_losses()
        if not self.team.leads:
            return
        tensors = {f"model.{key}": value for key, value in self.model.state_dict().items()}
        if self.average is not None:
            tensors |= {f"average.{key}": value for key, value in self.average.model.state_dict().items()}
        for index, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{key}": torch.as_tensor(value) for key, value in state.items()}
        write_tensors(self.out / LAST, tensors, {"progress": json.dumps(asdict(self.progress))})

    def load(self) -> None:
        """Go back to what :meth:`save` left."""
        tensors, metadata = read_safetensors(self.out / LAST)
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "average": {}, "optimiser": {}}
        for key, value in tensors.items():
            part, _, name = key.partition(".")
            parts[part][name] = value
        load_strictly(self.model, parts["model"], str(self.out / LAST))
        if self.average is not None:
            load_strictly(self.average.model, parts["average"], str(self.out / LAST))
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in parts["optimiser"].items():
            index, _, key = name.partition(".")
            state.setdefault(int(index), {})[key] = value
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state, "param_groups": groups})
        self.progress = Progress(**json.loads(metadata["progress"]))

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The first Ctrl-C, or a polite kill, lets the step that is going on end; the second does not wait."""

        def ask(_number: int, _: FrameType | None) -> None:
            if self.stop_asked:
                raise KeyboardInterrupt
            self.stop_asked = True

        try:
            before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread, which alone gets signals
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def _board(self) -> Iterator[Any]:
        """A TensorBoard writer where tensorboard is installed."""
        if not self.team.leads or find_spec("tensorboard") is None:
            yield None
            return
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(self.out / "tensorboard"), purge_step=self.progress.step + 1) as writer:
            yield writer


def train(
    config: RunConfig,
    out: Path,
    device: torch.device,
    team: Team | None = None,
    *,
    resume: bool = False,
    report: Report = lambda _done, _total, _words: None,
) -> Progress:
    """Run a config in a new folder, or go on with the run that a folder holds."""
    team = team or Team()
    prepare_folder(out, config, device, resume, write=team.leads)
    team.wait()
    trainer = Trainer(config, out, device, team, report)
    if resume:
        trainer.load()
    return trainer.fit()


def prepare_folder(out: Path, config: RunConfig, device: torch.device, resume: bool, *, write: bool = True) -> None:
    """Make the run's folder, or make sure that it holds the run that is to go on."""
    if resume:
        if not (out / LAST).is_file():
            raise InputError(f"{out}: no {LAST} to resume from; leave --resume out to start")
        old = _flat(read_json(out / RUN)["config"])
        new = _flat(to_plain(config))
        differing = [key for key in sorted({*old, *new} - {*FREE_KEYS}) if old.get(key) != new.get(key)]
        if differing:
            key = differing[0]
            raise InputError(
                f"{out}: the run there has {key} = {old.get(key)!r}, this config {new.get(key)!r}; "
                "resume with the same settings, or choose another --out"
            )
        return
    if (out / LAST).exists() or (out / METRICS).exists():
        raise InputError(f"{out}: holds a run already; give --resume to go on with it, or choose another --out")
    make_folder(out)
    if write:
        versions = {
            "transformatcher": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        }
        run = {"config": to_plain(config), "versions": versions, "seed": config.train.seed}
        write_text(out / RUN, json.dumps(run, indent=2) + "\n")


def _flat(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{table}.{key}": value for table, keys in tables.items() for key, value in keys.items()}


# ---------------------------------------------------------------- parts of a run


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
    if item.benchmark != "coco":
        return Source(load_benchmark(item.benchmark, root, item.split)[: item.limit], item.share)
    objects = load_coco_objects(*find_coco(root, find_split(item.split)))
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


def _side(thing: AnnotatedObject) -> float:
    """The longer side of an object's box in that of its image; 1 where either is unknown."""
    if thing.bbox_px is None or thing.image_size is None:
        return 1.0
    x0, y0, x1, y1 = thing.bbox_px
    return float(max(x1 - x0, y1 - y0) / max(thing.image_size))


def load_validation(item: SourceConfig, config: RunConfig, team: Team, batch: int = 16) -> Validation:
    """Decode the pairs of a validation set, once for the whole run."""
    root = Path(config.data.root) / item.folder
    pairs = load_benchmark(item.benchmark, root, item.split, n_pairs=item.limit or 1000)[: item.limit]
    chunks = [pairs[start : start + batch] for start in range(0, len(pairs), batch)][team.rank :: team.world]
    with ThreadPoolExecutor(config.data.threads) as pool:
        batches = [list(pool.map(partial(load_pair, size=config.model.image_size), chunk)) for chunk in chunks]
    return Validation(f"{item.folder}-{item.split}", PUBLISHED_KIND[item.benchmark], len(pairs), batches)

"""Config → trained matcher: one loop that can be killed at any moment and goes on where it stopped.

A run folder holds run.json (config, versions), metrics.jsonl (a line for each validation), last.safetensors (all that
is needed to go on), best/ (the checkpoint with the highest validation score), curves.png and pictures/.
"""

import json
import math
import platform
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from transformatcher import __version__
from transformatcher.config import RunConfig, run_config, to_plain
from transformatcher.data.image_cache import ImageStore, choose_place
from transformatcher.data.loader import Augmentation, Batches, Draws, TrainingPairs, open_store
from transformatcher.data.pairs import read_pair
from transformatcher.errors import InputError
from transformatcher.evaluation.metrics import ALPHAS
from transformatcher.evaluation.predict import predict_batch
from transformatcher.files import exclusive_lock, read_json, write_text
from transformatcher.inference.checkpoint import save_checkpoint
from transformatcher.models.backbones.resnet import ResNetFeatures
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.models.weights_io import load_strictly, read_safetensors, write_tensors
from transformatcher.schema import Matches, PairBatch, Size
from transformatcher.training.distributed import Team
from transformatcher.training.objective import (
    Average,
    GraphedLoss,
    Objective,
    load_validation,
    loss_and_gradients,
    make_optimiser,
    measure,
    rate_scale,
    rehearse,
    start_model,
    training_source,
)
from transformatcher.viz.pictures import draw_matches, save_figure
from transformatcher.viz.plots import plot_curves

RUN, METRICS, LAST, BEST = "run.json", "metrics.jsonl", "last.safetensors", "best"
# What may differ between a run and its continuation: where things lie and how they are read, not what comes out.
FREE_KEYS = ("data.root", "data.keep", "data.threads", "data.workers", "train.save_every")
LOOK_EVERY = 20  # steps between looks at the loss; each look waits for the device

Report = Callable[[int, int, str], None]  # pairs done, pairs in all, a few words


@dataclass
class Progress:
    """How far a run is. Everything else that changes is in tensors."""

    epoch: int = 0  # that is going on, or comes next
    batch: int = 0  # of that epoch, to come next
    step: int = 0
    loss_sum: float = 0.0  # of the batches since the last validation
    best: float = -math.inf
    best_epoch: int = -1
    seconds: float = 0.0
    metrics: list[dict[str, Any]] = field(default_factory=list)


class Trainer:
    """Everything that a run holds; :meth:`fit` is the loop.

    Args:
        config: the resolved one.
        out: the run's folder.
        device: of this process.
        team: of processes.
        report: called now and then with how far the run is.
        pictures: draw the first validation pair and the curves.
    """

    def __init__(
        self,
        config: RunConfig,
        out: Path,
        device: torch.device,
        team: Team | None = None,
        report: Report = lambda _done, _total, _words: None,
        *,
        pictures: bool = True,
    ) -> None:
        self.pictures = pictures
        self.config, self.out, self.device, self.team, self.report = config, out, device, team or Team(), report
        settings = config.train
        if settings.batch % self.team.world:
            raise InputError(f"train.batch = {settings.batch} cannot be shared by {self.team.world} processes")
        if not settings.select_alphas or not set(settings.select_alphas) <= set(ALPHAS):
            raise InputError(
                f"train.select_alphas = {list(settings.select_alphas)}: choose some of {', '.join(map(str, ALPHAS))}"
            )
        rehearse(config.model, "[model]")
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
        data, size = config.data, config.model.image_size
        self.validations = [load_validation(i, data.root, size, self.team, data.threads) for i in data.validate]
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
        augmentation = Augmentation(data.colour, data.crop, data.focus, data.flip, data.swap)
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
                saved = progress.batch == len(self.batches) and self._finish_epoch(started, board)
                if not saved and progress.step % settings.save_every == 0:
                    self.save()
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
                if isinstance(module, ResNetFeatures):
                    module.frozen_norms = True

    def _collect_losses(self) -> None:
        """Add up what the last steps lost; a loss that is no number ends the run before anything is saved."""
        if not self.losses:
            return
        values = self.team.sum(torch.stack(self.losses).double()) / self.team.world
        self.losses = []
        for step, value in enumerate(values.tolist(), self.progress.step - len(values) + 1):
            if not math.isfinite(value):
                kept = f"; the last good state is {self.out / LAST}" if (self.out / LAST).exists() else ""
                raise InputError(
                    f"the loss became {value} at step {step} (learning rates "
                    f"{self.config.train.lr:g} and {self.config.train.lr_backbone:g}): "
                    f"try lower ones, a warm-up or clipping{kept}"
                )
        self.progress.loss_sum += sum(values.tolist())

    def _mean_loss(self) -> float:
        """Of the batches since the last validation."""
        progress = self.progress
        before = progress.metrics[-1]["step"] if progress.metrics else 0
        return progress.loss_sum / max(progress.step - before, 1)

    def _look(self, loss: Tensor, board: Any) -> None:
        self._collect_losses()
        progress, n = self.progress, self.config.train.batch
        done, total = progress.step * n, self.config.train.epochs * len(self.batches) * n
        self.report(
            done, total, f"epoch {progress.epoch + 1}, loss {self._mean_loss():.4f}, best {max(progress.best, 0):.1f}"
        )
        if board is not None:
            board.add_scalar("loss/step", loss.item(), progress.step)

    def _finish_epoch(self, started: float, board: Any) -> bool:
        """Validate, where this epoch is to be, and save; whether that was done."""
        self._collect_losses()
        progress, settings = self.progress, self.config.train
        progress.epoch, progress.batch = progress.epoch + 1, 0
        last = progress.epoch == settings.epochs
        if progress.epoch % settings.validate_every and not last:
            return False
        scores = self.validate()
        progress.seconds = time.monotonic() - started
        score = float(np.mean([pck[f"{alpha:g}"] for pck in scores.values() for alpha in settings.select_alphas]))
        row = {
            "epoch": progress.epoch,
            "step": progress.step,
            "pairs": progress.step * settings.batch,
            "loss": self._mean_loss(),
            "lr": self.optimiser.param_groups[0]["lr"],
            "score": score,
            "pck": scores,
            "seconds": round(progress.seconds, 1),
        }
        progress.metrics.append(row)
        progress.loss_sum = 0.0
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
        if progress.epoch == 1 or last:
            self._draw("last" if last else "early")
        if self.team.leads and self.pictures and (last or progress.epoch in (1, 2, 5) or progress.epoch % 10 == 0):
            save_figure(plot_curves(progress.metrics, title=self.out.name), self.out / "curves.png")
        return True

    # ------------------------------------------------------------ validation

    def validate(self) -> dict[str, dict[str, float]]:
        """PCK of every validation set, as its publications measure it; pairs are shared among the processes."""
        return measure(self.validated.eval(), self.validations, self.device, self.team)

    @property
    def validated(self) -> TransforMatcher:
        """The model that counts: the averaged one, where weights are averaged."""
        return self.model if self.average is None else self.average.model

    def _draw(self, name: str) -> None:
        """The first validation pair, as the model sees it now."""
        if not self.team.leads or not self.pictures:
            return
        loaded = self.validations[0].batches[0][0]
        (prediction,) = predict_batch(self.validated.eval(), [loaded], self.device)
        found = (prediction.src_kps, prediction.pred_kps, prediction.peak)
        matches = Matches(*(np.array(values, dtype=float) for values in found))
        title = f"{loaded.pair.name} after {self.progress.step} steps"
        save_figure(draw_matches(*read_pair(loaded.pair), matches, title), self.out / "pictures" / f"{name}.png")

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
    pictures: bool = True,
) -> Progress:
    """Run a config in a new folder, or go on with the run that a folder holds."""
    team = team or Team()
    check_folder(out, config, resume)
    team.wait()
    with exclusive_lock(out) if team.leads else nullcontext():
        trainer = Trainer(config, out, device, team, report, pictures=pictures)
        if team.leads and not resume:
            describe_run(out, config, device)
        if resume:
            trainer.load()
        return trainer.fit()


def check_folder(out: Path, config: RunConfig, resume: bool) -> None:
    """Make sure that a folder holds no run, or the run that is to go on."""
    if resume:
        if not (out / LAST).is_file():
            raise InputError(f"{out}: no {LAST} to resume from; leave --resume out to start")
        saved = read_json(out / RUN)
        if not isinstance(saved, dict) or not isinstance(saved.get("config"), dict):
            raise InputError(f"{out / RUN}: does not say how the run there was started; choose another --out")
        before = run_config(saved["config"], str(out / RUN))  # keys it did not know yet: their defaults
        old = flat(to_plain(before))
        new = flat(to_plain(config))
        differing = [key for key in sorted({*old, *new} - {*FREE_KEYS}) if old.get(key) != new.get(key)]
        if differing:
            key = differing[0]
            raise InputError(
                f"{out}: the run there has {key} = {old.get(key)!r}, this config {new.get(key)!r}; "
                "resume with the same settings, or choose another --out"
            )
    elif (out / LAST).exists() or (out / METRICS).exists():
        raise InputError(f"{out}: holds a run already; give --resume to go on with it, or choose another --out")


def describe_run(out: Path, config: RunConfig, device: torch.device) -> None:
    """Write down what a run depends on."""
    versions = {
        "transformatcher": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": version("torchvision"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
    }
    run = {"config": to_plain(config), "versions": versions, "seed": config.train.seed}
    write_text(out / RUN, json.dumps(run, indent=2) + "\n")


def flat(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A config's tables as ``table.key`` → value, as JSON would give them."""
    return {f"{table}.{key}": value for table, keys in tables.items() for key, value in keys.items()}

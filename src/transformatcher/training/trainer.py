"""Config → trained model: one loop that can be killed at any moment and resumed.

A run folder holds run.json (config, versions), metrics.jsonl (one line for each validation, the first for the start),
last.safetensors (the state to resume from), best/ (the checkpoint with the highest validation score), curves.png and
pictures/, and features/ where those of a frozen backbone are kept.
"""

import math
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from transformatcher import __version__
from transformatcher.config import RunConfig, run_config, to_plain
from transformatcher.data.augment import Augmentation
from transformatcher.data.loader import BatchLoader, SampleDataset, TrainingPairs, build_image_cache
from transformatcher.errors import InputError
from transformatcher.evaluation.metrics import ALPHAS
from transformatcher.files import exclusive_lock
from transformatcher.inference.checkpoint import save_checkpoint
from transformatcher.models.backbones.backbone import Backbone
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.run_folder import RUN, Run, check_run_folder, write_run
from transformatcher.schema import PairBatch
from transformatcher.training.distributed import DistributedContext
from transformatcher.training.feature_cache import FeatureCache
from transformatcher.training.model import dry_run, init_model
from transformatcher.training.objective import CudaGraphLoss, Objective, loss_and_gradients
from transformatcher.training.optim import EMA, lr_factor, make_optimizer
from transformatcher.training.run_log import METRICS, RunLog
from transformatcher.training.signals import StopRequest
from transformatcher.training.sources import fingerprint_sources, load_source
from transformatcher.training.state import TrainingState, load_state, save_state
from transformatcher.training.validation import evaluate_pck, load_validation_set

LAST, BEST, FEATURES = "last.safetensors", "best", "features"
# Settings that may change when a run is resumed: where files are and how they are read, but nothing that
# changes the results.
RESUMABLE_KEYS = (
    "data.root",
    "data.image_cache",
    "data.threads",
    "data.workers",
    "train.save_every",
    "train.feature_cache_gb",
)
LOG_EVERY = 20  # steps between readings of the loss; each reading waits for the device

ProgressCallback = Callable[[int, int, str], None]  # pairs done, pairs in total, a message


def no_progress(_done: int, _total: int, _message: str) -> None:
    """A progress callback that shows nothing."""


class Trainer:
    """A training run; :meth:`fit` is the loop.

    Args:
        config: all settings of the run.
        out: the run's folder.
        device: of this process.
        distributed: the processes that train together; None for this one alone.
        on_progress: called now and then with the progress of the run.
        pictures: whether to draw the first validation pair and the curves.
    """

    def __init__(
        self,
        config: RunConfig,
        out: Path,
        device: torch.device,
        distributed: DistributedContext | None = None,
        on_progress: ProgressCallback = no_progress,
        *,
        pictures: bool = True,
    ) -> None:
        self.config, self.out, self.device, self.on_progress = config, out, device, on_progress
        self.distributed = distributed or DistributedContext()
        check_settings(config, self.distributed.world_size)
        settings, data, size = config.train, config.data, config.model.image_size

        torch.manual_seed(settings.seed)
        self.model = init_model(config).to(device)
        self.model.backbone.requires_grad_(settings.lr_backbone > 0)
        if device.type == "cuda":
            self.model.backbone.to(memory_format=torch.channels_last)
            torch.backends.cudnn.benchmark = True  # every batch has the same shape
        self.objective = self._make_objective()
        self.ema = EMA(self.model, settings.ema_decay) if settings.ema_decay else None
        if settings.batch_norm == "frozen" or settings.lr_backbone == 0:
            cast(Backbone, self.model.backbone).freeze_norms()
        self._cache_features()
        self.compute_loss: Callable[[PairBatch], Tensor] = partial(
            loss_and_gradients, self.objective, accumulate=settings.accumulate
        )
        self.optimizer = make_optimizer(self.model, settings, device)

        self.sources = [load_source(item, data, settings.seed) for item in data.train]
        self.validation_sets = [
            load_validation_set(item, data.root, size, self.distributed, data.threads) for item in data.validate
        ]
        self.batches = self._make_batches()
        self.state = TrainingState(pairs=fingerprint_sources(self.sources))
        self.unread_losses: list[Tensor] = []  # on the device, of the steps since the last reading
        self.stop = StopRequest()
        self.log = RunLog(out, enabled=self.distributed.is_main, pictures=pictures)

    def _make_objective(self) -> nn.Module:
        settings, device = self.config.train, self.device
        bfloat16 = settings.precision == "bfloat16" or (settings.precision == "auto" and device.type == "cuda")
        objective = Objective(self.model, settings.w_regression, settings.w_cross_entropy, use_bfloat16=bfloat16)
        if self.distributed.world_size == 1:
            return objective
        if settings.batch_norm == "train" and device.type == "cuda":
            objective = nn.SyncBatchNorm.convert_sync_batchnorm(objective)  # type: ignore[no-untyped-call]
        return DistributedDataParallel(objective, broadcast_buffers=False)

    def _cache_features(self) -> None:
        """Compute each image once, where the backbone and the images stay as they are and computing takes long."""
        settings, data = self.config.train, self.config.data
        varied = data.p_color or data.p_crop or data.p_object_crop
        if settings.lr_backbone or varied or self.device.type != "cpu" or not settings.feature_cache_gb:
            return
        cache = FeatureCache(self.out / FEATURES, int(settings.feature_cache_gb * 1e9))
        self.model.feature_cache = cache
        if self.ema is not None:
            cast(TransforMatcher, self.ema.module).feature_cache = cache

    def _make_batches(self) -> BatchLoader:
        data, batch_size = self.config.data, self.config.train.batch_size
        pairs = TrainingPairs(self.sources, self.config.train.seed, data.pairs_per_epoch)
        if len(pairs) < batch_size:
            raise InputError(
                f"an epoch of {len(pairs)} pairs does not fill one batch of {batch_size}: "
                "lower train.batch_size, or set data.pairs_per_epoch"
            )

        def track(done: int, total: int) -> None:
            self.on_progress(0, 1, f"decoding images: {done} of {total}")

        size = (data.cache_size, data.cache_size)
        cache = build_image_cache(self.sources, size, self.device, data.image_cache, data.threads, track)
        augmentation = Augmentation(data.p_color, data.p_crop, data.p_object_crop, data.p_flip, data.p_swap)
        rank, world_size = self.distributed.rank, self.distributed.world_size
        input_size = self.config.model.image_size
        dataset = SampleDataset(pairs, cache, input_size, augmentation, batch_size, rank, world_size)
        return BatchLoader(dataset, cache, data.workers)

    # ------------------------------------------------------------ the loop

    def fit(self) -> TrainingState:
        """Train to the end, or until interrupted; either way the state that was reached is on disk."""
        state, settings = self.state, self.config.train
        started = time.monotonic() - state.seconds
        with self.stop.catch_signals(), self.log.open(state.step):
            if state.step == 0:
                self._measure_start()
                self._draw_matches("start")
            if self.device.type == "cuda" and self.distributed.world_size == 1:
                self.model.train()
                self.compute_loss = CudaGraphLoss(self.objective, self.batches.first(), self.config.train.accumulate)
            for batch in self.batches.stream(state.epoch, state.batch, settings.epochs):
                loss = self.step(batch)
                state.seconds = time.monotonic() - started
                if state.step % LOG_EVERY == 0:
                    self._log_loss(loss)
                validated = state.batch == len(self.batches) and self._finish_epoch(started)
                if not validated and state.step % settings.save_every == 0:
                    self.save()
                if self._should_stop():
                    self.save()
                    raise KeyboardInterrupt
        return state

    def step(self, batch: PairBatch) -> Tensor:
        """One step of the optimizer; returns the loss, on the device."""
        state, settings = self.state, self.config.train
        if not self.model.training:  # after a validation
            self.model.train()
        factor = lr_factor(state.step, self.total_steps, settings.warmup_steps, settings.lr_schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = factor * group["base_lr"]
        loss = self.compute_loss(batch)
        if settings.max_grad_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), settings.max_grad_norm)
        self.optimizer.step()
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        state.step += 1
        state.batch += 1
        self.unread_losses.append(loss)
        return loss

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.config.train.epochs * len(self.batches)

    def _should_stop(self) -> bool:
        """Whether any process got a signal; several processes compare only now and then, which waits for the device."""
        if self.distributed.world_size > 1 and self.state.step % LOG_EVERY:
            return False
        return self.distributed.any(self.stop.received, self.device)

    # ------------------------------------------------------------ losses and progress

    def _read_losses(self) -> None:
        """Add the losses of the last steps to the epoch's sum; a NaN or infinite one stops the run before a save."""
        if not self.unread_losses:
            return
        values = self.distributed.sum(torch.stack(self.unread_losses).double()) / self.distributed.world_size
        self.unread_losses = []
        for step, value in enumerate(values.tolist(), self.state.step - len(values) + 1):
            if not math.isfinite(value):
                saved = f"; the last good state is {self.out / LAST}" if (self.out / LAST).exists() else ""
                raise InputError(
                    f"the loss became {value} at step {step} (learning rates "
                    f"{self.config.train.lr:g} and {self.config.train.lr_backbone:g}): "
                    f"try lower rates, a warm-up or gradient clipping{saved}"
                )
        self.state.loss_sum += sum(values.tolist())

    def _mean_loss(self) -> float:
        """Over the batches since the last validation."""
        validated_at = self.state.metrics[-1]["step"] if self.state.metrics else 0
        return self.state.loss_sum / max(self.state.step - validated_at, 1)

    def _log_loss(self, loss: Tensor) -> None:
        self._read_losses()
        state = self.state
        self._show(f"epoch {state.epoch + 1}, loss {self._mean_loss():.4f}, best {max(state.best, 0):.1f}")
        self.log.add_loss(state.step, loss.item())

    def _show(self, message: str) -> None:
        batch_size = self.config.train.batch_size
        self.on_progress(self.state.step * batch_size, self.total_steps * batch_size, message)

    # ------------------------------------------------------------ validation

    @property
    def evaluated_model(self) -> TransforMatcher:
        """The model that is validated and kept: the EMA where there is one."""
        return self.model if self.ema is None else cast(TransforMatcher, self.ema.module)

    def validate(self) -> dict[str, dict[str, float]]:
        """PCK of every validation set; the processes share the work."""
        return evaluate_pck(self.evaluated_model.eval(), self.validation_sets, self.device, self.distributed)

    def _measure_start(self) -> None:
        """Validate what the run starts from, so that nobody has to guess whether it gained anything."""
        pck = self.validate()
        self.state.metrics.append({**self._entry(pck), "loss": None})  # written with the first epoch's
        self._show(f"start, {describe_pck(pck)}\n")

    def _finish_epoch(self, started: float) -> bool:
        """Go to the next epoch; validate and save if this one's turn has come. Returns whether it had."""
        self._read_losses()
        state, settings = self.state, self.config.train
        state.epoch, state.batch = state.epoch + 1, 0
        last = state.epoch == settings.epochs
        if state.epoch % settings.validate_every and not last:
            return False
        pck = self.validate()
        state.seconds = time.monotonic() - started
        improved = self._record(pck)
        if improved and self.distributed.is_main:
            save_checkpoint(self.out / BEST, self.evaluated_model, self.config.model)
        self.log.add_validation(state.metrics)
        self.save()

        self._show(f"epoch {state.epoch}, loss {state.metrics[-1]['loss']:.4f}, {describe_pck(pck)}\n")
        if state.epoch == 1 or last:
            self._draw_matches("last" if last else "early")
        if last or state.epoch in (1, 2, 5) or state.epoch % 10 == 0:
            self.log.draw_curves(state.metrics)
        return True

    def _record(self, pck: Mapping[str, Mapping[str, float]]) -> bool:
        """Append a validation to the metrics and start a new mean loss; returns whether it is the best so far."""
        state = self.state
        entry = self._entry(pck)
        state.metrics.append(entry)
        state.loss_sum = 0.0
        score = entry["score"]
        improved = bool(score > state.best)
        if improved:
            state.best, state.best_epoch = score, state.epoch
        return improved

    def _entry(self, pck: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
        """The line of metrics.jsonl for a validation now."""
        state, settings = self.state, self.config.train
        return {
            "epoch": state.epoch,
            "step": state.step,
            "pairs": state.step * settings.batch_size,
            "loss": self._mean_loss(),
            "lr": self.optimizer.param_groups[0]["lr"],
            "score": float(np.mean([at[f"{alpha:g}"] for at in pck.values() for alpha in settings.select_alphas])),
            "pck": pck,
            "seconds": round(state.seconds, 1),
        }

    def _draw_matches(self, name: str) -> None:
        first = self.validation_sets[0].batches[0][0]
        self.log.draw_matches(name, self.evaluated_model, first, self.device, self.state.step)

    # ------------------------------------------------------------ saving and resuming

    def save(self) -> None:
        """Write the state to resume from."""
        self._read_losses()
        if self.distributed.is_main:
            save_state(self.out / LAST, self.state, self.model, self.ema, self.optimizer)

    def load(self) -> None:
        """Return to the state that :meth:`save` wrote."""
        pairs, self.state = self.state.pairs, load_state(self.out / LAST, self.model, self.ema, self.optimizer)
        if self.state.pairs not in ("", pairs):
            raise InputError(
                f"{self.out}: its lists of pairs, or their annotations, have changed since this run was started; "
                "put them back, or choose another --out"
            )
        self.state.pairs = pairs


def describe_pck(pck: Mapping[str, Mapping[str, float]]) -> str:
    """PCK of validation sets at 0.05 and 0.1 → ``PF-PASCAL-val 41.9 / 57.7``."""
    return ", ".join(f"{name} {at['0.05']:.1f} / {at['0.1']:.1f}" for name, at in pck.items())


def check_settings(config: RunConfig, world_size: int) -> None:
    """Raise an InputError for settings that fail later, before anything is loaded."""
    settings = config.train
    if settings.batch_size % world_size:
        raise InputError(f"train.batch_size = {settings.batch_size} cannot be divided among {world_size} processes")
    share = settings.batch_size // world_size
    if share % settings.accumulate:
        raise InputError(
            f"train.batch_size = {settings.batch_size}: the {share} pairs of a process cannot be "
            f"divided into train.accumulate = {settings.accumulate} equal parts"
        )
    if not settings.select_alphas or not set(settings.select_alphas) <= set(ALPHAS):
        raise InputError(
            f"train.select_alphas = {list(settings.select_alphas)}: choose some of {', '.join(map(str, ALPHAS))}"
        )
    dry_run(config.model, "[model]")


def train(
    config: RunConfig,
    out: Path,
    device: torch.device,
    distributed: DistributedContext | None = None,
    *,
    resume: bool = False,
    on_progress: ProgressCallback = no_progress,
    pictures: bool = True,
) -> TrainingState:
    """Start a run in a new folder, or resume the run that a folder holds; the other arguments are the Trainer's."""
    distributed = distributed or DistributedContext()
    run = describe_run(config, device)
    check_folder(out, run, resume)
    distributed.barrier()
    with exclusive_lock(out) if distributed.is_main else nullcontext():
        trainer = Trainer(config, out, device, distributed, on_progress, pictures=pictures)
        if distributed.is_main and not resume:
            write_run(out, run)
        if resume:
            trainer.load()
        return trainer.fit()


def check_folder(out: Path, run: Run, resume: bool) -> None:
    """Raise an InputError unless the folder holds no run, or the run to be resumed."""
    if resume and not (out / LAST).is_file():
        raise InputError(f"{out}: no {LAST} to resume from; leave --resume out to start")
    if not resume and ((out / LAST).exists() or (out / METRICS).exists()):
        raise InputError(f"{out}: holds a run already; give --resume to continue it, or choose another --out")

    def add_defaults(arguments: Mapping[str, Any]) -> dict[str, Any]:
        return to_plain(run_config(arguments, str(out / RUN)))

    way_out = "resume with the same settings, or choose another --out"
    check_run_folder(out, run, [LAST], way_out=way_out, ignore=RESUMABLE_KEYS, upgrade=add_defaults)


def describe_run(config: RunConfig, device: torch.device) -> Run:
    """The config of a run, and the versions it was started with."""
    versions = {
        "transformatcher": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": version("torchvision"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
    }
    return Run("train", to_plain(config), {"versions": versions})

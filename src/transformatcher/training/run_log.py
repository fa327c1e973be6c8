"""Losses and validations of a run → metrics.jsonl, curves.png, pictures and TensorBoard events in its folder."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transformatcher.data.pairs import LoadedPair, file_names, read_pair
from transformatcher.evaluation.predict import predict_batch
from transformatcher.files import write_text
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.schema import Matches
from transformatcher.viz.matches import draw_matches
from transformatcher.viz.pictures import save_figure
from transformatcher.viz.plots import plot_curves

METRICS = "metrics.jsonl"


class RunLog:
    """Writes the log files of a run.

    Args:
        out: the run's folder.
        enabled: false in all processes but the main one, where every method does nothing.
        pictures: whether to draw matches and curves.
    """

    def __init__(self, out: Path, *, enabled: bool = True, pictures: bool = True) -> None:
        self.out = out
        self.enabled = enabled
        self.pictures = enabled and pictures
        self.tensorboard: Any = None

    @contextmanager
    def open(self, step: int) -> Iterator[None]:
        """Write TensorBoard events, where tensorboard is installed, from after ``step`` on."""
        if not self.enabled or find_spec("tensorboard") is None:
            yield
            return
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(self.out / "tensorboard"), purge_step=step + 1) as self.tensorboard:
            yield
        self.tensorboard = None

    def add_loss(self, step: int, loss: float) -> None:
        """The loss of one batch."""
        if self.tensorboard is not None:
            self.tensorboard.add_scalar("loss/step", loss, step)

    def add_validation(self, metrics: Sequence[Mapping[str, Any]]) -> None:
        """The entries of all validations so far, of which the last is new."""
        if not self.enabled:
            return
        write_text(self.out / METRICS, "".join(json.dumps(entry) + "\n" for entry in metrics))
        if self.tensorboard is not None:
            entry = metrics[-1]
            if entry["loss"] is not None:
                self.tensorboard.add_scalar("loss/epoch", entry["loss"], entry["step"])
            for name, pck in entry["pck"].items():
                self.tensorboard.add_scalar(f"pck@0.1/{name}", pck["0.1"], entry["step"])

    def draw_curves(self, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Losses and scores of all validations so far → curves.png."""
        if self.pictures:
            save_figure(plot_curves(metrics, title=self.out.name), self.out / "curves.png")

    def draw_matches(
        self, name: str, model: TransforMatcher, loaded: LoadedPair, device: torch.device, step: int
    ) -> None:
        """The matches that a model finds on one pair after ``step`` steps → pictures/NAME.png."""
        if not self.pictures:
            return
        (prediction,) = predict_batch(model.eval(), [loaded], device)
        points = (prediction.src_kps, prediction.pred_kps, prediction.peak)
        matches = Matches(*(np.array(values, dtype=float) for values in points))
        title, names = f"{loaded.pair.name} after {step} steps", file_names(loaded.pair)
        figure = draw_matches(*read_pair(loaded.pair), matches, title, names=names)
        save_figure(figure, self.out / "pictures" / f"{name}.png")

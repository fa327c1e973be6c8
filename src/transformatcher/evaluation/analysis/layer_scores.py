"""Model without a refiner, annotated pairs → PCK of the raw correlation of each layer, and of each two layers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from transformatcher.coords import norm_to_px
from transformatcher.data.benchmarks import PckThreshold
from transformatcher.data.pairs import LoadedPair, collate
from transformatcher.evaluation.metrics import bootstrap_ci95, bootstrap_weights
from transformatcher.evaluation.predict import Prediction, truth
from transformatcher.evaluation.scores import pair_scores
from transformatcher.models.transformatcher import TransforMatcher


@dataclass(frozen=True)
class LayerScores:
    """PCK of every choice of layers.

    Args:
        layers: numbers of the layers, as in the config.
        pck: row i, column j: PCK in percent of layers i and j together; on the diagonal, of one alone.
        ci95: of the same, (low, high).
        all_layers: PCK of the mean of all of them, as ``--refiner none`` matches.
        n_pairs: of photos.
    """

    layers: Sequence[int]
    pck: Float[np.ndarray, "l l"]
    ci95: Float[np.ndarray, "l l 2"]
    all_layers: float
    n_pairs: int

    def ranked(self) -> list[tuple[tuple[int, ...], float, tuple[float, float]]]:
        """Every choice of one or two layers with its PCK and interval, best first."""
        rows = []
        for i, j in _choices(len(self.layers)):
            chosen = (self.layers[i],) if i == j else (self.layers[i], self.layers[j])
            rows.append((chosen, float(self.pck[i, j]), (float(self.ci95[i, j, 0]), float(self.ci95[i, j, 1]))))
        return sorted(rows, key=lambda row: -row[1])


def score_layers(
    model: TransforMatcher,
    pairs: Iterable[LoadedPair],
    pck_threshold: PckThreshold,
    alpha: float,
    device: torch.device,
    track: Callable[[int], None] = lambda _done: None,
) -> LayerScores:
    """Encode each pair once, and read out the raw correlation of every choice of layers.

    Args:
        model: in evaluation mode, on ``device``; its refiner is not used.
        pairs: decoded.
        pck_threshold, alpha: of the PCK, in the published frame.
        device: of the model.
        track: called with the number of pairs done.
    """
    layers = list(getattr(model.backbone, "layers", ()))
    choices = [*_choices(len(layers)), None]  # None: all layers
    found: dict[Any, list[float]] = {choice: [] for choice in choices}
    for done, item in enumerate(pairs, 1):
        batch = collate([item])
        with torch.inference_mode():
            src, trg = model.encode_pair(batch.src.to(device), batch.trg.to(device))
            corr = model.correlation(src, trg)  # (1, l, hs, ws, ht, wt)
            for choice in choices:
                chosen = corr if choice is None else corr[:, sorted(set(choice))]
                flow = model.readout(chosen.mean(dim=1))
                points = model.transfer(flow, batch.src_kps_norm.to(device))[0].double().cpu().numpy()
                index = np.flatnonzero(item.pair.visible)
                predicted = norm_to_px(points[index], item.trg_size).round(4).tolist()
                prediction = Prediction(**truth(item), pred_kps=predicted, peak=[1.0] * len(index))
                found[choice].append(float(pair_scores([prediction], pck_threshold, alpha)[0]))
        track(done)
    n, count = len(found[None]), len(layers)
    weights = bootstrap_weights(n)
    pck, ci95 = np.zeros((count, count)), np.zeros((count, count, 2))
    for i, j in _choices(count):
        values = np.array(found[i, j])
        pck[i, j] = pck[j, i] = values.mean()
        ci95[i, j] = ci95[j, i] = bootstrap_ci95(values, weights)
    return LayerScores(layers, pck, ci95, float(np.mean(found[None])), n)


def _choices(count: int) -> list[tuple[int, int]]:
    """Each layer alone, as (i, i), then each two."""
    return [(i, i) for i in range(count)] + list(combinations(range(count), 2))

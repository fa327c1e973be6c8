"""Model and pairs → nonlocality of every layer and head on disk, pair by pair → a summary over all pairs."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import TypeAdapter
from scipy.stats import spearmanr

from transformatcher.data.pairs import collate, load_pair
from transformatcher.errors import InputError
from transformatcher.evaluation.analysis.attention_hooks import AttentionRecord, record_attention
from transformatcher.evaluation.analysis.nonlocality import (
    bounded_convolution_nonlocality,
    convolution_nonlocality,
    convolution_offsets,
    nonlocality_of_weights,
    pairwise_nonlocality,
    uniform_nonlocality,
)
from transformatcher.evaluation.predict import LEVELS, fingerprint
from transformatcher.files import write_text
from transformatcher.models.rotary import Grid4
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.run_folder import LineFile, Run, open_run_folder
from transformatcher.schema import ImagePair, Size

LINES, SUMMARY = "nonlocality.jsonl", "nonlocality.json"
FORMS = ("pairwise", "query", "key")
GROUPS = 20  # of rising nonlocality, as in the paper's Figure 7
FACTORS = ("viewpoint", "scale", "truncation", "occlusion")
CONVOLUTIONS = [(dims, kernel) for dims in (4, 6) for kernel in (3, 5, 7, 9, 11)]
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class PairNonlocality:
    """Φ of one pair: a row for each layer, in it a number for each head."""

    name: str
    category: str
    difficulty: dict[str, int]
    annotation: str  # fingerprint of the keypoints: another dataset may have a pair of the same name
    grid: list[int]
    pairwise: list[list[float]]
    query: list[list[float]]
    key: list[list[float]]


def compute_nonlocality(
    model: TransforMatcher,
    pairs: Sequence[ImagePair],
    out: Path,
    run: Run,
    *,
    image_size: Size,
    device: torch.device,
    track: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[PairNonlocality]:
    """Compute Φ of every pair and append it to ``out/nonlocality.jsonl``; pairs already there are skipped.

    Args:
        model: with additive attention, on ``device``.
        pairs: whose photos are read.
        out: the folder of the run; one that holds another run is refused.
        run: everything that the numbers depend on besides the pair.
        image_size: (h, w) that the photos are resized to.
        device: where the model is.
        track: called with (pairs done, all pairs).

    Returns:
        Φ of each pair, in the order of ``pairs``.
    """
    by_name = {pair.name: pair for pair in pairs}

    def compute(names: Sequence[str]) -> Iterator[PairNonlocality]:
        return (pair_nonlocality(model, by_name[name], image_size, device) for name in names)

    lines = LineFile(out / LINES, TypeAdapter(PairNonlocality).validate_python, "the nonlocality of a pair")
    with open_run_folder(out, run, [LINES], way_out="choose another --out"):
        for name, line in lines.read().items():
            if name in by_name and line.annotation != fingerprint([by_name[name]]):
                raise InputError(f"{out}: holds nonlocality of another pair {name}; choose another --out")
        measured = lines.complete(list(by_name), compute, track)
    return [measured[name] for name in by_name]


def pair_nonlocality(
    model: TransforMatcher, pair: ImagePair, image_size: Size, device: torch.device
) -> PairNonlocality:
    """Φ of one pair in each layer and head, in all three forms."""
    tensors = collate([load_pair(pair, image_size)])
    with torch.inference_mode():
        corr = model.correlation(*model.encode_pair(tensors.src.to(device), tensors.trg.to(device)))
        _, layers = record_attention(model.refiner, corr, layer_nonlocality)
    numbers = {form: [layer[form] for layer in layers] for form in FORMS}
    return PairNonlocality(
        pair.name, pair.category, dict(pair.difficulty), fingerprint([pair]), list(corr.shape[2:]), **numbers
    )


def layer_nonlocality(record: AttentionRecord) -> dict[str, list[float]]:
    """Φ of each head of one layer, for the first pair of its batch."""
    alpha, beta = record.alpha[0], record.beta[0]
    return {
        "pairwise": pairwise_nonlocality(alpha, record.queries[0], record.keys[0], record.grid).tolist(),
        "query": nonlocality_of_weights(alpha, record.grid).tolist(),
        "key": nonlocality_of_weights(beta, record.grid).tolist(),
    }


# ---------------------------------------------------------------- summary over all pairs


def summarise(results: Sequence[PairNonlocality]) -> dict[str, Any]:
    """Φ of all pairs → the numbers of the figures: by layer and form, for convolutions, by groups of pairs."""
    grids = {tuple(pair.grid) for pair in results}
    if len(grids) != 1:
        raise InputError(f"pairs with {len(grids)} different grids cannot be compared")
    hs, ws, ht, wt = grids.pop()
    grid: Grid4 = (hs, ws, ht, wt)
    numbers = {form: np.array([getattr(pair, form) for pair in results]) for form in FORMS}  # (pairs, layers, heads)
    levels = {
        factor: np.array([pair.difficulty[factor] for pair in results])
        for factor in FACTORS
        if all(factor in pair.difficulty for pair in results)
    }
    return {
        "n_pairs": len(results),
        "grid": list(grid),
        "uniform": uniform_nonlocality(grid),
        "layers": {form: [_layer_statistics(values[:, index]) for index in range(values.shape[1])]
                   for form, values in numbers.items()},
        "convolutions": [_convolution(dims, kernel, min(grid)) for dims, kernel in CONVOLUTIONS],
        "difficulty": {form: {factor: _by_difficulty(values.mean(axis=2).sum(axis=1), level)
                              for factor, level in levels.items()}
                       for form, values in numbers.items()},
    }  # fmt: skip


def _layer_statistics(values: Float[np.ndarray, "pairs heads"]) -> dict[str, Any]:
    """Statistics of one layer: the mean Φ, the mean of each head, and quantiles over pairs and heads."""
    return {
        "mean": float(values.mean()),
        "heads": values.mean(axis=0).tolist(),
        "quantiles": np.quantile(values, QUANTILES).tolist(),
    }


def _convolution(dims: int, kernel: int, side: int) -> dict[str, Any]:
    squares, shares = convolution_offsets(dims, kernel)
    indices = np.searchsorted(shares.cumsum(), np.array(QUANTILES) - 1e-12)
    return {
        "dims": dims,
        "kernel": kernel,
        "phi": convolution_nonlocality(dims, kernel),
        "phi_bounded": bounded_convolution_nonlocality(dims, kernel, side),
        "quantiles": squares[indices].tolist(),
    }


def _by_difficulty(phi: Float[np.ndarray, " n"], level: Int[np.ndarray, " n"]) -> dict[str, Any]:
    """Shares of easy, medium and hard pairs in groups of rising Φ, and the rank correlation of Φ and difficulty."""
    groups = np.array_split(np.argsort(phi, kind="stable"), min(GROUPS, len(phi)))
    trend = spearmanr(phi, level) if min(np.ptp(phi), np.ptp(level)) > 0 else None
    return {
        "phi": [float(phi[group].mean()) for group in groups],
        "shares": [[float((level[group] == index).mean()) for index in range(len(LEVELS))] for group in groups],
        "rank_correlation": None if trend is None else float(trend.statistic),
        "p_value": None if trend is None else float(trend.pvalue),
    }


def write_summary(out: Path, summary: Mapping[str, Any]) -> Path:
    """The summary → a JSON file in the run's folder."""
    write_text(out / SUMMARY, json.dumps(summary, indent=2) + "\n")
    return out / SUMMARY

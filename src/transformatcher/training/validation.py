"""Validation sets and model → PCK."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from transformatcher.config import PairSource
from transformatcher.data.benchmarks import PckThreshold, find_benchmark, load_benchmark
from transformatcher.data.pairs import LoadedPair, load_pair
from transformatcher.evaluation.metrics import ALPHAS
from transformatcher.evaluation.predict import predict_batch
from transformatcher.evaluation.scores import pair_scores
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.schema import Size
from transformatcher.training.distributed import DistributedContext


@dataclass(frozen=True)
class ValidationSet:
    """The decoded pairs of one set, in batches. Each process holds every ``world_size``-th batch."""

    name: str
    pck_threshold: PckThreshold
    n_pairs: int  # of all processes
    batches: Sequence[Sequence[LoadedPair]]


def load_validation_set(
    item: PairSource,
    root: str,
    size: Size,
    distributed: DistributedContext | None = None,
    threads: int = 4,
    batch_size: int = 16,
) -> ValidationSet:
    """Decode the pairs of a set, once for the whole run.

    Args:
        item: which set.
        root: the folder that ``item.folder`` is in.
        size: (h, w) of the network's input.
        distributed: decides which batches this process holds.
        threads: that decode.
        batch_size: pairs in a batch.
    """
    distributed = distributed or DistributedContext()
    folder = Path(root) / item.folder
    pairs = load_benchmark(item.benchmark, folder, item.split, limit=item.limit)
    chunks = [pairs[start : start + batch_size] for start in range(0, len(pairs), batch_size)]
    with ThreadPoolExecutor(threads) as pool:
        batches = [
            list(pool.map(partial(load_pair, size=size), chunk))
            for chunk in chunks[distributed.rank :: distributed.world_size]
        ]
    return ValidationSet(set_name(item), find_benchmark(item.benchmark).pck_threshold, len(pairs), batches)


def set_name(item: PairSource) -> str:
    """The name of a set of pairs in metrics and tables: its folder and split."""
    return f"{item.folder}-{item.split}"


def evaluate_pck(
    model: TransforMatcher,
    sets: Sequence[ValidationSet],
    device: torch.device,
    distributed: DistributedContext | None = None,
) -> dict[str, dict[str, float]]:
    """PCK in percent of every set at every α, as ``{set: {α: PCK}}``, each with its published threshold.

    Args:
        model: in evaluation mode, on ``device``.
        sets: as loaded by this process.
        device: to predict on.
        distributed: the processes that hold the other batches; all of them get the same result.
    """
    distributed = distributed or DistributedContext()
    result = {}
    for validation_set in sets:
        totals = torch.zeros(len(ALPHAS), dtype=torch.float64)
        for batch in validation_set.batches:
            predictions = list(predict_batch(model, batch, device))
            totals += torch.tensor(
                [pair_scores(predictions, validation_set.pck_threshold, alpha).sum() for alpha in ALPHAS]
            )
        means = distributed.sum(totals.to(device)) / validation_set.n_pairs
        result[validation_set.name] = {f"{alpha:g}": pck for alpha, pck in zip(ALPHAS, means.tolist(), strict=True)}
    return result

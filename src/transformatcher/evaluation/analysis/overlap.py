"""Predictions and a training list → PCK by how much of a pair is in the list, and so could have been memorised."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from transformatcher.data.benchmarks import benchmark_title, load_benchmark
from transformatcher.data.pairs import image_stems
from transformatcher.errors import InputError
from transformatcher.evaluation.analysis.paper_tables import PROTOCOL
from transformatcher.evaluation.analysis.run_folders import EvalRun, pairs_of
from transformatcher.evaluation.analysis.tables import NOTHING, Section, Table
from transformatcher.evaluation.scores import pair_scores
from transformatcher.schema import ImagePair
from transformatcher.viz.canvas import SEQUENTIAL, no_math

LISTED = ("the pair itself", "both images, not as a pair", "one image", "neither image")
ALL, FEW = "all pairs", "at most one image"  # of LISTED, the last two together
PARTS = (ALL, *LISTED, FEW)
ALPHAS = (0.05, 0.1)


@dataclass(frozen=True)
class TrainingList:
    """The list of pairs that a model was trained on."""

    benchmark: str
    root: Path
    split: str = "trn"

    @property
    def title(self) -> str:
        """The benchmark and its split, such as ``PF-PASCAL trn``."""
        return benchmark_title(self.benchmark, self.split)


@dataclass(frozen=True)
class Overlap:
    """How the pairs of one split overlap with a training list, and the PCK of runs on each part."""

    data: str  # the benchmark and split of the pairs
    training: str  # the benchmark and split of the list
    pck_threshold: str
    photos: tuple[int, int]  # how many photos of the pairs are in the list, and how many there are
    counts: Mapping[str, int]  # of PARTS
    scores: Mapping[str, Mapping[str, tuple[float, ...] | None]]  # run → PARTS → PCK in percent at ALPHAS


def measure_overlap(runs: Sequence[EvalRun], root: Path, training: TrainingList) -> Overlap:
    """Divide the pairs of some runs by how much of each pair is in a training list.

    Photos are identified by the names of their files, which benchmarks made from PASCAL VOC keep. Mirrored and swapped
    pairs count as the same pair.

    Args:
        runs: predictions of the same pairs by different models.
        root: the folder of their benchmark.
        training: the list.
    """
    first = runs[0]
    if first.data == training.title:
        raise InputError(
            f"{first.folder}: its pairs are {first.data}, the training list itself; choose another with --train-split"
        )
    pairs = _common_pairs(runs, root)
    listed = {image_stems(pair) for pair in load_benchmark(training.benchmark, training.root, training.split)}
    seen = frozenset[str]().union(*listed)
    photos = frozenset[str]().union(*map(image_stems, pairs.values()))
    scores: dict[str, Mapping[str, tuple[float, ...] | None]] = {}
    for run in runs:
        groups = np.array([_group(image_stems(pairs[p.name]), listed, seen) for p in run.predictions])
        masks = {ALL: groups != "", **{name: groups == name for name in LISTED}, FEW: np.isin(groups, LISTED[2:])}
        pck = np.stack([pair_scores(run.predictions, run.pck_threshold, alpha) for alpha in ALPHAS], axis=1)
        label = run.folder.name if run.folder.name not in scores else str(run.folder)
        scores[label] = {
            name: tuple(pck[mask].mean(axis=0).tolist()) if mask.any() else None for name, mask in masks.items()
        }
    counts = {name: int(mask.sum()) for name, mask in masks.items()}  # the same for every run
    return Overlap(first.data, training.title, first.pck_threshold, (len(photos & seen), len(photos)), counts, scores)


def _common_pairs(runs: Sequence[EvalRun], root: Path) -> dict[str, ImagePair]:
    """The pairs that all runs predicted, by name; an error if the runs differ in their pairs."""
    first = runs[0]
    names = {prediction.name for prediction in first.predictions}
    for run in runs[1:]:
        if (run.benchmark, run.arguments.get("split")) != (first.benchmark, first.arguments.get("split")):
            raise InputError(f"{run.folder}: is of {run.data}, {first.folder} of {first.data}; name runs of one split")
        if {prediction.name for prediction in run.predictions} != names:
            raise InputError(
                f"{run.folder}: its {len(run.predictions)} pairs are not the {len(names)} of {first.folder}"
            )
    pairs = pairs_of(first, root)
    missing = sorted(names - set(pairs))
    if missing:
        raise InputError(
            f"{first.folder}: pair {missing[0]} is not in {root}; name the folder that these predictions are of"
        )
    return {name: pairs[name] for name in names}


def _group(photos: frozenset[str], listed: set[frozenset[str]], seen: frozenset[str]) -> str:
    if photos in listed:
        return LISTED[0]
    return LISTED[3 - len(photos & seen)]


def overlap_table(overlap: Overlap, commands: Sequence[str] = ()) -> Table:
    """One row for each part, one column for each run."""
    rows = []
    for name in PARTS:
        cells = [at[name] for at in overlap.scores.values()]
        shown = [" / ".join(f"{value:.1f}" for value in cell) if cell else NOTHING for cell in cells]
        rows.append([name, str(overlap.counts[name]), *shown])
    return Table(
        "overlap",
        f"{overlap.data} by overlap with {overlap.training}",
        ["in the training list", "pairs", *overlap.scores],
        [Section(rows)],
        [
            f"{PROTOCOL} Threshold {overlap.pck_threshold}, α = {' / '.join(map(str, ALPHAS))}.",
            f"{overlap.photos[0]} of the {overlap.photos[1]} photos are in the list. Photos are identified by their "
            "file names; a pair counts as the same in either order, mirrored or not.",
        ],
        commands,
    )


def plot_overlap(overlap: Overlap) -> Figure:
    """Bars of each part for each run, a panel for each tolerance."""
    figure = Figure(figsize=(10, 3.8), dpi=110, layout="constrained")
    axes = figure.subplots(1, len(ALPHAS), sharey=True)
    colours = mpl.colormaps[SEQUENTIAL](np.linspace(0, 0.85, len(LISTED)))
    width = 0.8 / len(LISTED)
    for number, (axis, alpha) in enumerate(zip(axes, ALPHAS, strict=True)):
        for index, (name, colour) in enumerate(zip(LISTED, colours, strict=True)):
            cells = [at[name] for at in overlap.scores.values()]
            positions = np.arange(len(cells)) + width * (index - (len(LISTED) - 1) / 2)
            heights = [cell[number] if cell else 0.0 for cell in cells]
            label = f"{name} ({overlap.counts[name]} pairs)" if number == 0 else None
            bars = axis.bar(positions, heights, width, color=colour, label=label)
            axis.bar_label(bars, [f"{cell[number]:.0f}" if cell else NOTHING for cell in cells], fontsize=7)
        axis.set_xticks(range(len(overlap.scores)), [no_math(name) for name in overlap.scores], fontsize=8)
        axis.set(title=f"α = {alpha}", ylim=(0, 105))
    axes[0].set_ylabel(f"PCK (%), {overlap.pck_threshold}")
    figure.legend(loc="outside lower center", ncols=len(LISTED), fontsize=8, frameon=False)
    figure.suptitle(f"{overlap.data} by overlap with {overlap.training}", fontsize=10)
    return figure

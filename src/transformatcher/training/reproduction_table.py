"""What is measured of a table of the paper → our numbers beside its own, with differences and intervals."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformatcher.data.benchmarks import BENCHMARKS, benchmark_title
from transformatcher.evaluation.analysis.run_folders import read_eval
from transformatcher.evaluation.analysis.tables import NOTHING, Section, Table, number
from transformatcher.evaluation.predict import PREDICTIONS, Prediction
from transformatcher.evaluation.scores import pair_scores
from transformatcher.files import read_json
from transformatcher.run_folder import format_command
from transformatcher.training.reproduction import PaperCost, PaperItem, PaperNumber
from transformatcher.training.reproduction_plan import Setting, Step

HEADER = ("", "measured as", "the paper", "ours", "95 % interval", "difference")
MIN_POINTS = 5  # of a pair that is warped
GOOD_PCK = 80.0  # of a pair that is shown
COSTS = (("ms", "ms_per_pair"), ("GB", "peak_gib"), ("GFLOP", "gflops"))


def paper_table(item: PaperItem, setting: Setting, steps: list[Step]) -> Table:
    """The item's numbers; a dash where nothing was measured."""
    rows = [_number_row(entry, setting) for entry in item.numbers]
    costs = [row for entry in item.costs for row in _cost_rows(entry, setting)]
    notes = [f"cannot be had: {what}" for what in item.missing]
    if setting.weights:
        name = "the model in the package" if setting.weights == "shipped" else setting.weights
        notes.append(f"All of our numbers are of {name}, in place of the models that the paper trained.")
    if setting.split != "test" and any(entry.benchmark == "spair" for entry in item.numbers):
        notes.append(f"The paper's numbers on SPair-71k are of its test split, ours of {setting.split}.")
    obstacles = dict.fromkeys(step.obstacle for step in steps if step.obstacle and not step.done)
    notes += [f"not measured: {obstacle}" for obstacle in obstacles if not obstacle.startswith("it waits")]
    sections = [Section(rows), *([Section(costs, "costs; the paper does not name its device")] if costs else [])]
    return Table(item.name.lower(), item.title, HEADER, sections, notes, [reproduce_command(item.name, setting)])


def reproduce_command(name: str, setting: Setting) -> str:
    """The command that makes a table or figure, as it may stand in a document."""
    options = {
        "data": "DATA", "split": None if setting.split == "test" else setting.split, "weights": setting.weights,
        "set": {key: Path(str(value)).name if "weights" in key else value for key, value in setting.settings.items()},
    }  # fmt: skip
    return format_command(["reproduce", name], options)


def _number_row(entry: PaperNumber, setting: Setting) -> list[str]:
    split = setting.split if entry.benchmark == "spair" else "test"
    title = BENCHMARKS[entry.benchmark].title + (f" {split}" if split != "test" else "")
    protocol = f"{title}, {entry.pck_threshold} @ {entry.alpha}" + (f", {entry.category}" if entry.category else "")
    found = measured(entry, setting)
    if found is None:
        return [entry.row, protocol, number(entry.value), *[NOTHING] * 3]
    low, high = found["ci95"]
    published = BENCHMARKS[entry.benchmark].n_pairs.get(split)
    if found["n_pairs"] != published:
        protocol += f" ({found['n_pairs']} pairs of {published})"
    difference = f"{found['per_pair'] - entry.value:+.1f}"
    return [entry.row, protocol, number(entry.value), number(found["per_pair"]), f"{low:.1f} – {high:.1f}", difference]


def measured(entry: PaperNumber, setting: Setting) -> Mapping[str, Any] | None:
    """Our PCK for a number of the paper, with its interval and the number of pairs; None if it was not measured."""
    split = setting.split if entry.benchmark == "spair" else "test"
    out = setting.folder("eval", entry.model, f"-{entry.benchmark}-{split}")
    if not (out / PREDICTIONS).is_file():
        return None
    scores = _scores(out, (out / PREDICTIONS).stat().st_mtime_ns)
    table = scores["per_category"].get(entry.category) if entry.category else scores["pck"]
    cell = (table or {}).get(entry.pck_threshold, {}).get(entry.alpha)
    return None if cell is None else {**cell, "n_pairs": scores["n_pairs"]}


@lru_cache(maxsize=64)
def _scores(out: Path, _changed: int) -> dict[str, Any]:
    """PCK in the published frame, from the predictions: an eval in another protocol changes nothing here."""
    return read_eval(out).scores


def _cost_rows(entry: PaperCost, setting: Setting) -> list[list[str]]:
    path = setting.folder("cost", entry.model) / "cost.json"
    ours = read_json(path) if path.is_file() else {}
    rows = []
    for (unit, key), value in zip(COSTS, entry.value, strict=True):
        printed = NOTHING if value is None else f"{value:g}"
        mine = ours.get(key)
        if mine is not None and unit == "GB":
            mine *= 2**30 / 1e9
        difference = NOTHING if mine is None or value is None else f"{mine - value:+.3g}"
        shown = NOTHING if mine is None else f"{mine:.3g}"
        rows.append([entry.row, f"{unit} of a pair", printed, shown, NOTHING, difference])
    return rows


def figure_title(step: Step, setting: Setting) -> str:
    """What a picture shows."""
    return f"{step.kind} on {benchmark_title('spair', setting.split)}: {step.out}"


def best_pairs(predictions: Sequence[Prediction], factor: str, alpha: float = 0.1) -> list[Prediction]:
    """The pairs with the highest PCK and points enough for a warp: first one of each category, then the others.

    Args:
        predictions: of SPair-71k.
        factor: of difficulty: the hardest pairs first; empty: all pairs alike.
        alpha: a point within this tolerance is right.
    """
    scores = pair_scores(predictions, "bbox", alpha)
    wide = [index for index, item in enumerate(predictions) if len(item.src_kps) >= MIN_POINTS]
    order = sorted(
        wide,
        key=lambda i: (
            -predictions[i].difficulty.get(factor, 0),
            -scores[i],
            -len(predictions[i].src_kps),
            predictions[i].name,
        ),
    )
    good = [index for index in order if scores[index] >= GOOD_PCK] or order
    first: dict[str, int] = {}
    for index in good:
        first.setdefault(predictions[index].category, index)
    chosen = [*first.values(), *(index for index in good if index not in first.values())]
    return [predictions[index] for index in chosen]

"""A study (rows of settings on one base) → every row trained with several seeds, measured alike, in one table and plot.

A study is a .toml file: the tables of a run ([model], [data], [train]), ``title``, ``question``, ``measure`` (sets of
pairs), ``seeds``, and ``[[row]]`` entries: a ``label`` and the settings (``set``) in which each differs. ``base`` names
another file for what is not said. Those that come with the package are in ``ablations/``.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transformatcher.config import (
    REFINERS,
    PairSource,
    RunConfig,
    check_keys,
    chosen_refiner,
    merged,
    nested,
    pair_source,
    read_tables,
    run_config,
    to_plain,
)
from transformatcher.data.benchmarks import find_benchmark, load_benchmark
from transformatcher.errors import InputError
from transformatcher.evaluation.speed import inference_cost
from transformatcher.files import exclusive_lock, read_json, write_text
from transformatcher.inference.checkpoint import load_checkpoint
from transformatcher.run_folder import flatten
from transformatcher.training.model import dry_run, init_model
from transformatcher.training.trainer import BEST, LAST, RESUMABLE_KEYS, ProgressCallback, no_progress, train
from transformatcher.training.validation import ValidationSet, evaluate_pck, load_validation_set, set_name

LISTS = {
    "row": "no [[row]]; a study needs one or more",
    "measure": "no measure = [{ benchmark = …, folder = …, split = … }]; a study needs one set or more",
}
RESULT, COST, TABLE, ABLATION = "result.json", "cost.json", "table.md", "ablation.json"
STUDIES = Path(__file__).parent / "studies"
ALPHAS_SHOWN = ("0.05", "0.1")
COSTS_SHOWN = {"ms_per_pair": "ms/pair", "peak_gib": "GiB", "gflops": "GFLOP"}


@dataclass(frozen=True)
class StudyRow:
    """One line of the table: what it is called, and the run it stands for."""

    label: str
    config: RunConfig


@dataclass(frozen=True)
class Study:
    """Rows that differ in what is asked about, and in nothing else."""

    name: str
    title: str
    question: str
    rows: Sequence[StudyRow]
    measure: Sequence[PairSource]
    seeds: Sequence[int]


@dataclass(frozen=True)
class Task:
    """One row with one seed."""

    row: StudyRow
    seed: int
    out: Path

    @property
    def config(self) -> RunConfig:
        """The row's, with this seed."""
        return replace(self.row.config, train=replace(self.row.config.train, seed=self.seed))

    @property
    def done(self) -> bool:
        """Whether it was measured already."""
        return (self.out / RESULT).is_file()


def known_studies() -> list[str]:
    """The names of those that come with the package."""
    return sorted(path.stem for path in STUDIES.glob("*.toml") if path.stem != "base")


def read_study(name: str, settings: Mapping[str, Any] | None = None, seeds: Sequence[int] | None = None) -> Study:
    """A name among :func:`known_studies`, or a .toml file; ``settings`` (``table.key``) change the base of all rows."""
    path = Path(name) if name.endswith(".toml") else STUDIES / f"{name}.toml"
    if not path.is_file():
        raise InputError(f"{name}: no such study; there are {', '.join(known_studies())}, or name a .toml file")
    data = read_tables(path)
    if "base" in data:
        data = merged(read_tables(_find_base(data.pop("base"), path)), data)
    check_keys(data, ["title", "question", "measure", "seeds", "row", "model", "data", "train"], str(path))
    for key, kind in {"title": str, "question": str, "model": dict, "data": dict, "train": dict}.items():
        if not isinstance(data.get(key, kind()), kind):
            raise InputError(f"{path}: {key} = {data[key]!r} is no {'text' if kind is str else 'table of keys'}")
    rows, sets = (_tables(data.get(key), f"{path}: {words}") for key, words in LISTS.items())
    tables = {key: data.get(key, {}) for key in ("model", "data", "train")}
    made: dict[str, StudyRow] = {}
    for number, row in enumerate(rows, 1):
        source = f"{path}, row {number}"
        check_keys(row, ["label", "set"], source)
        label, changes = row.get("label"), row.get("set", {})
        if not isinstance(label, str) or not isinstance(changes, dict):
            raise InputError(f'{source}: expected label = "…" and set = {{ "table.key" = … }}')
        if slug(label) in made:
            raise InputError(
                f"{source}: {label!r} and {made[slug(label)].label!r} have one name as folders, {slug(label)}"
            )
        made[slug(label)] = StudyRow(label, _row_config(tables, changes, settings or {}, source))
    for key in settings or {}:
        refiner = key.removeprefix("model.").partition(".")[0]
        if refiner in REFINERS and all(row.config.model.refiner != refiner for row in made.values()):
            raise InputError(f"--set {key}: no row of {path.stem} has the refiner {refiner!r}")
    seeds = seeds or data.get("seeds", [0])
    if not isinstance(seeds, Sequence) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise InputError(f"{path}: seeds = {seeds}: expected a list of whole numbers from 0")
    measure = [pair_source(item, f"{path}, measure") for item in sets]
    if len({set_name(item) for item in measure}) < len(measure):
        raise InputError(f"{path}: measure names one set twice")
    title, question = data.get("title", path.stem), data.get("question", "")
    return Study(path.stem, title, question, list(made.values()), measure, list(dict.fromkeys(seeds)))


def _find_base(name: object, path: Path) -> Path:
    """Beside the study, or among those of the package."""
    if not isinstance(name, str):
        raise InputError(f"{path}: base = {name!r}: expected the name of a .toml file")
    beside = path.parent / name
    return beside if beside.is_file() or not (STUDIES / name).is_file() else STUDIES / name


def _tables(value: object, missing: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise InputError(missing)
    return value


def _row_config(
    tables: Mapping[str, Any], changes: Mapping[str, Any], settings: Mapping[str, Any], source: str
) -> RunConfig:
    """The run of one row: its ``changes`` win over ``settings``, of which those of other refiners do not concern it."""
    model = nested({**tables, **settings, **changes}, source)["model"]
    refiner = chosen_refiner(model) if isinstance(model, Mapping) else None
    unused = tuple(f"model.{name}." for name in REFINERS if name != refiner)
    wanted = {key: value for key, value in settings.items() if key not in changes and not key.startswith(unused)}
    return run_config({**tables, **changes}, source, wanted)


def slug(label: str) -> str:
    """A label as the name of a folder."""
    return "".join(c if c.isalnum() else "-" for c in label.lower()).strip("-")


# ---------------------------------------------------------------- running


def run_study(
    study: Study,
    out: Path,
    device: torch.device,
    *,
    keep_weights: bool = False,
    only: Sequence[str] | None = None,
    command: str = "",
    on_progress: ProgressCallback = no_progress,
) -> dict[str, Any]:
    """Train and measure what is neither in ``out`` nor in a study beside it; then the table of all that is.

    What can be known to fail fails before anything is trained.

    Args:
        study: what to do.
        out: a folder for each row and seed goes here, and the table.
        device: for one run at a time: two trainings on one GPU take turns, and lose more by that than they gain.
        keep_weights: keep the best checkpoint of each run.
        only: labels of the rows to run; None for all.
        command: what does all this again, for the table.
        on_progress: called after each run.
    """
    labels = [row.label for row in study.rows]
    for label in only or []:
        if label not in labels:
            raise InputError(f"{study.name}: no row {label!r}; there are {', '.join(map(repr, labels))}")
    wanted = [row for row in study.rows if only is None or row.label in only]
    out = out.resolve()
    for row in study.rows:
        for path in _results(row, out):
            _check_same(row, path, study.measure)
    _check_inputs(study.name, wanted, study.measure)
    tasks = [Task(row, seed, out / slug(row.label) / f"seed-{seed}") for seed in study.seeds for row in wanted]
    todo = [task for task in tasks if not task.done and not _borrow(task, study.measure)]
    on_progress(len(tasks) - len(todo), len(tasks), "")
    for number, task in enumerate(todo, len(tasks) - len(todo) + 1):
        run_task(task, study.measure, device, keep_weights)
        on_progress(number, len(tasks), _summary(task))
    for row in wanted:
        path, model = out / slug(row.label) / COST, to_plain(row.config.model)
        if not path.is_file() or read_json(path).get("model") != model:
            write_text(path, json.dumps({"model": model, **inference_cost(row.config.model, device)}) + "\n")
    return gather(study, out, command)


def _check_inputs(name: str, rows: Sequence[StudyRow], sets: Sequence[PairSource]) -> None:
    """Refuse models that cannot work, and weights or pairs that are not there."""
    starts: dict[Any, RunConfig] = {}
    for row in rows:
        dry_run(row.config.model, f"{name}, row {row.label!r}")
        settings = row.config.train
        starts[settings.backbone_weights, settings.init_from, row.config.model.backbone] = row.config
    for config in starts.values():
        init_model(config)
    for root in {row.config.data.root for row in rows}:
        for item in sets:
            load_benchmark(item.benchmark, Path(root) / item.folder, item.split)


def _results(row: StudyRow, out: Path) -> list[Path]:
    """Of all seeds that were measured."""
    return sorted((out / slug(row.label)).glob(f"seed-*/{RESULT}"))


def _check_same(row: StudyRow, path: Path, sets: Sequence[PairSource]) -> None:
    """A result of another study, or of the same before it was changed, is not taken for this one's."""
    result = _read_result(path)
    if result is None:
        raise InputError(
            f"{path}: not what ablate writes now; choose another --out, or remove it to have it done again"
        )
    for key, before, now in _differing(result, row.config, sets):
        raise InputError(
            f"{path.parent}: was run with {key} = {before!r}, this study says {now!r}; choose another --out"
        )


def _read_result(path: Path) -> dict[str, Any] | None:
    """None for a file of the same name that something else wrote."""
    result = read_json(path)
    return result if isinstance(result, dict) and {"config", "measured", "pck"} <= set(result) else None


def _differing(result: Mapping[str, Any], config: RunConfig, sets: Sequence[PairSource]) -> list[tuple[str, Any, Any]]:
    """(setting, its value there, its value here) of all that change what comes out.

    Settings that an older run did not know yet are left aside.
    """
    before, now = flatten(result["config"]), flatten(to_plain(config))
    for tables in (before, now):  # where a file lies is of no account
        tables["train.backbone_weights"] = Path(tables.get("train.backbone_weights") or "").name
    free = (*RESUMABLE_KEYS, "train.seed")
    found = [(k, before.get(k, v), v) for k, v in now.items() if k not in free and before.get(k, v) != v]
    lacking = [item for item in map(to_plain, sets) if item not in result["measured"]]
    return found + ([("measure", result["measured"], lacking)] if lacking else [])


def _borrow(task: Task, sets: Sequence[PairSource]) -> bool:
    """Take the result of the same run in another study beside this one, if there is one."""
    for path in sorted(task.out.parents[2].glob(f"*/*/seed-{task.seed}/{RESULT}")):
        other = _read_result(path)
        if other is not None and not _differing(other, task.config, sets):
            write_text(task.out / RESULT, json.dumps(other | {"label": task.row.label}, indent=2) + "\n")
            return True
    return False


def run_task(task: Task, sets: Sequence[PairSource], device: torch.device, keep_weights: bool) -> None:
    """Train one row with one seed, measure its best checkpoint, write RESULT."""
    config = task.config
    resume = (task.out / LAST).is_file()
    if not resume and task.out.exists():  # killed before its first checkpoint
        with exclusive_lock(task.out):  # or still at work, in another process
            shutil.rmtree(task.out)
    state = train(config, task.out, device, resume=resume, pictures=False)
    model, _ = load_checkpoint(task.out / BEST)
    pck = evaluate_pck(model.to(device), [_load_set(item, config) for item in sets], device)
    result = {
        "label": task.row.label,
        "seed": task.seed,
        "pck": pck,
        "best_epoch": state.best_epoch,
        "train_seconds": round(state.seconds, 1),
        "measured": [to_plain(item) for item in sets],
        "config": to_plain(config),
    }
    write_text(task.out / RESULT, json.dumps(result, indent=2) + "\n")
    (task.out / LAST).unlink(missing_ok=True)
    if not keep_weights:
        shutil.rmtree(task.out / BEST)


def _load_set(item: PairSource, config: RunConfig) -> ValidationSet:
    """Rows of a study mostly share their sets' decoded images."""
    return _decoded(item, config.data.root, config.model.image_size, config.data.threads)


@lru_cache(maxsize=4)  # the sets of one size of images: they may take gigabytes
def _decoded(item: PairSource, root: str, size: tuple[int, int], threads: int) -> ValidationSet:
    return load_validation_set(item, root, size, threads=threads)


def _summary(task: Task) -> str:
    pck = read_json(task.out / RESULT)["pck"]
    scores = [f"{name} {' / '.join(f'{at[alpha]:.1f}' for alpha in ALPHAS_SHOWN)}" for name, at in pck.items()]
    return f"{task.row.label}, seed {task.seed}: {', '.join(scores)}"


# ---------------------------------------------------------------- the table


def gather(study: Study, out: Path, command: str = "") -> dict[str, Any]:
    """Mean and spread of every finished row → ABLATION and TABLE in ``out``."""
    rows = []
    for row in study.rows:
        folder = out / slug(row.label)
        results = [read_json(path) for path in _results(row, out)]
        if not results:
            continue
        cells = {}
        for item in study.measure:
            name = set_name(item)
            for alpha in ALPHAS_SHOWN:
                cells[f"{name} @ {alpha}"] = _mean_spread([result["pck"][name][alpha] for result in results])
        costs = read_json(folder / COST) if (folder / COST).is_file() else {}
        rows.append(
            {"label": row.label, "seeds": len(results), **cells, **{k: costs[k] for k in COSTS_SHOWN if k in costs}}
        )
    table = {
        "name": study.name,
        "title": study.title,
        "question": study.question,
        "command": command or f"transformatcher ablate {study.name}",
        "columns": [f"{set_name(item)} @ {alpha}" for item in study.measure for alpha in ALPHAS_SHOWN],
        "pck_thresholds": {set_name(item): find_benchmark(item.benchmark).pck_threshold for item in study.measure},
        "rows": rows,
    }
    write_text(out / ABLATION, json.dumps(table, indent=2) + "\n")
    write_text(out / TABLE, markdown(table))
    return table


def _mean_spread(values: Sequence[float]) -> dict[str, float]:
    """Mean and standard deviation over seeds (of the sample; 0 for one)."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": round(float(np.mean(values)), 2), "spread": round(spread, 2)}


def markdown(table: Mapping[str, Any]) -> str:
    """The table for a document: PCK @ 0.05 / 0.1 of each set in a cell, ± the spread at 0.1; costs where known."""
    names = list(table["pck_thresholds"])
    units = {key: unit for key, unit in COSTS_SHOWN.items() if any(key in row for row in table["rows"])}
    head = ["", *(f"{name} (`{table['pck_thresholds'][name]}`)" for name in names), "seeds", *units.values()]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in table["rows"]:
        cells = []
        for name in names:
            fine, coarse = (row.get(f"{name} @ {alpha}") for alpha in ALPHAS_SHOWN)
            spread = f" ± {coarse['spread']:.1f}" if coarse and row["seeds"] > 1 else ""
            cells.append(f"{fine['mean']:.1f} / {coarse['mean']:.1f}{spread}" if fine and coarse else "–")
        costs = [f"{row[key]:.3g}" if key in row else "–" for key in units]
        lines.append(f"| {row['label']} | {' | '.join([*cells, str(row['seeds']), *costs])} |")
    fine, coarse = ALPHAS_SHOWN
    note = f"PCK in percent @ {fine} / {coarse}, averaged over pairs, then over seeds, ± their deviation @ {coarse}."
    if units:
        note += " Costs are of inference with batches of 16; on a CPU, memory is all that the process holds."
    return "\n".join([*lines, "", note, ""])

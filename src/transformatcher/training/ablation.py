"""A study → every row trained with several seeds and evaluated alike, in one table.

The study's folder holds ROW/seed-N/result.json for every run, ROW/cost.json, table.md and ablation.json.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from transformatcher.config import PairSource, RunConfig, run_config, to_plain
from transformatcher.data.benchmarks import load_benchmark
from transformatcher.errors import InputError
from transformatcher.evaluation.speed import inference_cost
from transformatcher.files import exclusive_lock, read_json, write_text
from transformatcher.inference.checkpoint import load_checkpoint
from transformatcher.run_folder import Difference, describe_differences, differences
from transformatcher.schema import Size
from transformatcher.training.ablation_table import ALPHAS_SHOWN, COST, RESULT, find_results, write_table
from transformatcher.training.model import dry_run, init_model
from transformatcher.training.study import Study, StudyRow
from transformatcher.training.trainer import BEST, LAST, RESUMABLE_KEYS, ProgressCallback, no_progress, train
from transformatcher.training.validation import ValidationSet, evaluate_pck, load_validation_set


@dataclass(frozen=True)
class Task:
    """One training run of a study: a row with one seed, in its own folder."""

    row: StudyRow
    seed: int
    out: Path

    @property
    def config(self) -> RunConfig:
        """The row's config with this seed."""
        return replace(self.row.config, train=replace(self.row.config.train, seed=self.seed))

    @property
    def done(self) -> bool:
        """Whether the run has a result."""
        return (self.out / RESULT).is_file()


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
    """Do the runs of a study that have no result yet, and write the table of all results.

    Results of the same run in another study beside ``out`` are copied. Models, weights and pairs of all rows are
    checked before anything is trained.

    Args:
        study: the rows, seeds and sets.
        out: the study's folder.
        device: for one run at a time, since two trainings on one GPU only slow each other down.
        keep_weights: keep the best checkpoint of each run.
        only: labels of the rows to run; None for all.
        command: that repeats the study, for the table.
        on_progress: called after each run with the numbers of runs done and in all.

    Returns:
        The table, as :func:`write_table` makes it.
    """
    labels = [row.label for row in study.rows]
    for label in only or []:
        if label not in labels:
            raise InputError(f"{study.name}: no row {label!r}; there are {', '.join(map(repr, labels))}")
    wanted = [row for row in study.rows if only is None or row.label in only]
    out = out.resolve()
    for row in study.rows:
        for path in find_results(row, out):
            _check_result(row, path, study.measure)
    _check_inputs(study.name, wanted, study.measure)

    tasks = [Task(row, seed, out / row.folder / f"seed-{seed}") for seed in study.seeds for row in wanted]
    todo = [task for task in tasks if not task.done and not _copy_result(task, study.measure)]
    on_progress(len(tasks) - len(todo), len(tasks), "")
    for number, task in enumerate(todo, len(tasks) - len(todo) + 1):
        run_task(task, study.measure, device, keep_weights)
        on_progress(number, len(tasks), _describe_result(task))
    for row in wanted:
        measure_cost(row, out / row.folder / COST, device)
    return write_table(study, out, command)


def run_task(task: Task, sets: Sequence[PairSource], device: torch.device, keep_weights: bool) -> None:
    """Train one row with one seed, evaluate its best checkpoint, and write RESULT."""
    config = task.config
    resume = (task.out / LAST).is_file()
    if not resume and task.out.exists():  # killed before its first checkpoint
        with exclusive_lock(task.out):  # unless another process is still training there
            shutil.rmtree(task.out)
    state = train(config, task.out, device, resume=resume, pictures=False)
    model, _ = load_checkpoint(task.out / BEST)
    loaded = [_load_set(item, config.data.root, config.model.image_size, config.data.threads) for item in sets]
    result = {
        "label": task.row.label,
        "seed": task.seed,
        "pck": evaluate_pck(model.to(device), loaded, device),
        "best_epoch": state.best_epoch,
        "train_seconds": round(state.seconds, 1),
        "measured": [to_plain(item) for item in sets],
        "config": to_plain(config),
    }
    write_text(task.out / RESULT, json.dumps(result, indent=2) + "\n")
    (task.out / LAST).unlink(missing_ok=True)
    if not keep_weights:
        shutil.rmtree(task.out / BEST)


@lru_cache(maxsize=4)  # rows share their decoded sets, which may take gigabytes
def _load_set(item: PairSource, root: str, size: Size, threads: int) -> ValidationSet:
    return load_validation_set(item, root, size, threads=threads)


def _describe_result(task: Task) -> str:
    pck = read_json(task.out / RESULT)["pck"]
    scores = [f"{name} {' / '.join(f'{at[alpha]:.1f}' for alpha in ALPHAS_SHOWN)}" for name, at in pck.items()]
    return f"{task.row.label}, seed {task.seed}: {', '.join(scores)}"


def measure_cost(row: StudyRow, path: Path, device: torch.device) -> None:
    """Time, memory and operations of a row's model, unless they were measured before."""
    model = to_plain(row.config.model)
    if not path.is_file() or read_json(path).get("model") != model:
        write_text(path, json.dumps({"model": model, **inference_cost(row.config.model, device)}) + "\n")


def _check_inputs(name: str, rows: Sequence[StudyRow], sets: Sequence[PairSource]) -> None:
    """Raise an InputError for a model that cannot work, and for weights or pairs that are missing."""
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


# ---------------------------------------------------------------- results that are there already


def _check_result(row: StudyRow, path: Path, sets: Sequence[PairSource]) -> None:
    """Raise an InputError for a result of another study, or of this one with other settings."""
    result = _read_result(path)
    if result is None:
        raise InputError(f"{path}: not a result of this version of ablate; choose another --out, or delete the file")
    if found := _differences(result, row.config, sets):
        raise InputError(
            f"{path.parent}: holds another run, which differs in {describe_differences(found)}; choose another --out"
        )


def _read_result(path: Path) -> dict[str, Any] | None:
    """A result, its config completed with the defaults of newer settings; None for any other file."""
    result = read_json(path)
    kinds = {"config": dict, "measured": list, "pck": dict}
    if not isinstance(result, dict) or not all(isinstance(result.get(key), kind) for key, kind in kinds.items()):
        return None
    try:
        return result | {"config": to_plain(run_config(result["config"], str(path)))}
    except InputError:
        return None


def _differences(result: Mapping[str, Any], config: RunConfig, sets: Sequence[PairSource]) -> list[Difference]:
    """The settings that make a result differ from that of a config, and the sets that were not evaluated."""

    def comparable(plain: Mapping[str, Any]) -> dict[str, Any]:
        weights = Path(plain["train"]["backbone_weights"] or "").name  # wherever the file is
        return {**plain, "train": {**plain["train"], "backbone_weights": weights}}

    ignore = (*RESUMABLE_KEYS, "train.seed")
    found = differences(comparable(result["config"]), comparable(to_plain(config)), ignore)
    missing = [item for item in map(to_plain, sets) if item not in result["measured"]]
    return found + ([Difference("measure", result["measured"], missing)] if missing else [])


def _copy_result(task: Task, sets: Sequence[PairSource]) -> bool:
    """Copy the result of the same run in another study beside this one; returns whether there is one."""
    for path in sorted(task.out.parents[2].glob(f"*/*/seed-{task.seed}/{RESULT}")):
        other = _read_result(path)
        if other is not None and not _differences(other, task.config, sets):
            write_text(task.out / RESULT, json.dumps(other | {"label": task.row.label}, indent=2) + "\n")
            return True
    return False

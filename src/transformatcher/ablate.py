"""A study (rows of settings on one base) → every row trained with several seeds, measured alike, in one table and plot.

A study is a .toml file: the tables of a run ([model], [data], [train]) as its base, ``title``, ``question``,
``measure`` (sets of pairs), ``seeds``, and ``[[row]]`` entries: a ``label`` and the settings (``set``) in which each
differs. Those that come with the package are in ``ablations/``.
"""

import json
import shutil
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transformatcher.benchmark import cost
from transformatcher.checkpoint import load_checkpoint
from transformatcher.config import RunConfig, SourceConfig, check_keys, run_config, source_config, to_plain
from transformatcher.distributed import Team
from transformatcher.errors import InputError
from transformatcher.evaluate import PUBLISHED_KIND
from transformatcher.files import alone_in, read_json, write_text
from transformatcher.recipe import Validation, load_validation, measure, rehearse, set_name
from transformatcher.train import BEST, FREE_KEYS, LAST, flat, train

RESULT, TABLE, ABLATION = "result.json", "table.md", "ablation.json"
STUDIES = Path(__file__).parent / "ablations"
ALPHAS_SHOWN = ("0.05", "0.1")
COSTS_SHOWN = {"ms_per_pair": "ms/pair", "peak_gib": "GiB", "gflops": "GFLOP"}


@dataclass(frozen=True)
class Row:
    """One line of the table: what it is called, and the run it stands for."""

    label: str
    config: RunConfig


@dataclass(frozen=True)
class Study:
    """Rows that differ in what is asked about, and in nothing else."""

    name: str
    title: str
    question: str
    rows: Sequence[Row]
    measure: Sequence[SourceConfig]
    seeds: Sequence[int]


@dataclass(frozen=True)
class Task:
    """One row with one seed."""

    row: Row
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
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        if "base" in data:
            base = tomllib.loads((path.parent / data.pop("base")).read_text(encoding="utf-8"))
            data = _merged(base, data)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}") from error
    check_keys(data, ["title", "question", "measure", "seeds", "row", "model", "data", "train"], str(path))
    rows = data.get("row")
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{path}: no [[row]]; a study needs one or more")
    tables = {key: dict(data.get(key, {})) for key in ("model", "data", "train")}
    tables = changed(tables, settings or {}, "--set")
    made = []
    for number, row in enumerate(rows, 1):
        check_keys(row, ["label", "set"], f"{path}, row {number}")
        source = f"{path}, row {number}"
        if not isinstance(row.get("label"), str):
            raise InputError(f"{source}: it has no label")
        made.append(Row(row["label"], run_config(changed(tables, row.get("set", {}), source), source)))
    seeds = list(seeds or data.get("seeds", [0]))
    if not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise InputError(f"{path}: seeds = {seeds}: expected whole numbers from 0")
    labels = [row.label for row in made]
    if len({slug(label) for label in labels}) < len(labels):
        raise InputError(f"{path}: two rows have the same label")
    return Study(
        path.stem,
        data.get("title", path.stem),
        data.get("question", ""),
        made,
        [source_config(item, f"{path}, measure") for item in data.get("measure", [])],
        seeds,
    )


def _merged(base: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(base)
    for key, value in data.items():
        both[key] = both.get(key, {}) | value if isinstance(value, dict) else value
    return both


def changed(tables: Mapping[str, Any], settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Tables of a run with some ``table.key`` set anew."""
    copy = {name: dict(table) for name, table in tables.items()}
    for key, value in settings.items():
        table, _, name = key.partition(".")
        if table not in copy or not name:
            raise InputError(f"{source}: {key!r} should be model.KEY, data.KEY or train.KEY")
        copy[table][name] = value
    return copy


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
    rows: Sequence[str] | None = None,
    report: Callable[[int, int, str], None] = lambda _done, _total, _words: None,
) -> dict[str, Any]:
    """Train and measure what is neither in ``out`` nor in a study beside it; then the table of all that is.

    Args:
        study: what to do.
        out: a folder for each row and seed goes here, and the table.
        device: for one run at a time: two trainings on one GPU take turns, and lose more by that than they gain.
        keep_weights: keep the best checkpoint of each run.
        rows: labels; None for all.
        report: called after each run.
    """
    wanted = [row for row in study.rows if rows is None or row.label in rows]
    if rows is not None and len(wanted) < len(rows):
        missing = next(label for label in rows if label not in [row.label for row in study.rows])
        raise InputError(f"{study.name}: no row {missing!r}; there are {', '.join(row.label for row in study.rows)}")
    tasks = [Task(row, seed, out / slug(row.label) / f"seed-{seed}") for seed in study.seeds for row in wanted]
    for task in tasks:
        _check_same(task)
    for row in wanted:
        rehearse(row.config.model, f"{study.name}, row {row.label!r}")
    todo = [task for task in tasks if not task.done and not _borrow(task, study.measure)]
    report(len(tasks) - len(todo), len(tasks), "")
    for number, task in enumerate(todo, len(tasks) - len(todo) + 1):
        run_task(task, study.measure, device, keep_weights)
        report(number, len(tasks), _summary(task))
    for row in wanted:
        path = out / slug(row.label) / "cost.json"
        if not path.is_file():
            write_text(path, json.dumps(cost(row.config.model, device)) + "\n")
    return gather(study, out)


def _check_same(task: Task) -> None:
    """A folder of another study, or of the same before its settings changed, is not taken for this one's result."""
    if task.done:
        before, now = (flat(config) for config in (read_json(task.out / RESULT)["config"], to_plain(task.config)))
        for key in _differing(before, now):
            raise InputError(
                f"{task.out}: was run with {key} = {before[key]!r}, this study says {now[key]!r}; choose another --out"
            )


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Settings that change what comes out; those that an older run did not know yet are left aside."""
    free = (*FREE_KEYS, "train.backbone_weights")
    return [key for key, value in now.items() if key not in free and before.get(key, value) != value]


def _borrow(task: Task, sets: Sequence[SourceConfig]) -> bool:
    """Take the result of the same run in another study beside this one, if there is one."""
    now = flat(to_plain(task.config))
    for path in sorted(task.out.parents[2].glob(f"*/*/seed-{task.seed}/{RESULT}")):
        other = read_json(path)
        if not _differing(flat(other["config"]), now) and {set_name(item) for item in sets} <= set(other["pck"]):
            write_text(task.out / RESULT, json.dumps(other | {"label": task.row.label}, indent=2) + "\n")
            return True
    return False


def run_task(task: Task, sets: Sequence[SourceConfig], device: torch.device, keep_weights: bool) -> None:
    """Train one row with one seed, measure its best checkpoint, write RESULT last of all."""
    config = task.config
    resume = (task.out / LAST).is_file()
    if not resume and task.out.exists():  # killed before its first checkpoint
        with alone_in(task.out):  # or still at work, in another process
            shutil.rmtree(task.out)
    progress = train(config, task.out, device, resume=resume, pictures=False)
    model, _ = load_checkpoint(task.out / BEST)
    pck = measure(model.to(device), [_load_set(item, config) for item in sets], device)
    result = {
        "label": task.row.label,
        "seed": task.seed,
        "pck": pck,
        "best_epoch": progress.best_epoch,
        "train_seconds": round(progress.seconds, 1),
        "config": to_plain(config),
    }
    (task.out / LAST).unlink(missing_ok=True)
    if not keep_weights:
        shutil.rmtree(task.out / BEST)
    write_text(task.out / RESULT, json.dumps(result, indent=2) + "\n")


def _load_set(item: SourceConfig, config: RunConfig) -> Validation:
    """Rows of a study mostly share their sets' decoded images."""
    return _decoded(item, config.data.root, config.model.image_size, config.data.threads)


@cache
def _decoded(item: SourceConfig, root: str, size: tuple[int, int], threads: int) -> Validation:
    return load_validation(item, root, size, Team(), threads)


def _summary(task: Task) -> str:
    pck = read_json(task.out / RESULT)["pck"]
    scores = [f"{name} {' / '.join(f'{at[alpha]:.1f}' for alpha in ALPHAS_SHOWN)}" for name, at in pck.items()]
    return f"{task.row.label}, seed {task.seed}: {', '.join(scores)}"


# ---------------------------------------------------------------- the table


def gather(study: Study, out: Path) -> dict[str, Any]:
    """Mean and spread of every finished row → ABLATION and TABLE in ``out``."""
    rows = []
    for row in study.rows:
        folder = out / slug(row.label)
        results = [read_json(path) for path in sorted(folder.glob(f"seed-*/{RESULT}"))]
        if not results:
            continue
        cells = {}
        for item in study.measure:
            name = set_name(item)
            for alpha in ALPHAS_SHOWN:
                values = [result["pck"][name][alpha] for result in results if name in result["pck"]]
                if values:
                    cells[f"{name} @ {alpha}"] = _mean_spread(values)
        costs = read_json(folder / "cost.json") if (folder / "cost.json").is_file() else {}
        rows.append({"label": row.label, "seeds": len(results), **cells, **costs})
    table = {
        "name": study.name,
        "title": study.title,
        "question": study.question,
        "command": f"transformatcher ablate {study.name}",
        "columns": [f"{set_name(item)} @ {alpha}" for item in study.measure for alpha in ALPHAS_SHOWN],
        "kinds": {set_name(item): PUBLISHED_KIND[item.benchmark] for item in study.measure},
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
    names = list(table["kinds"])
    units = {key: unit for key, unit in COSTS_SHOWN.items() if any(key in row for row in table["rows"])}
    head = ["", *(f"{name} (`{table['kinds'][name]}`)" for name in names), "seeds", *units.values()]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in table["rows"]:
        cells = []
        for name in names:
            fine, coarse = (row.get(f"{name} @ {alpha}") for alpha in ALPHAS_SHOWN)
            spread = f" ± {coarse['spread']:.1f}" if coarse and row["seeds"] > 1 else ""
            cells.append(f"{fine['mean']:.1f} / {coarse['mean']:.1f}{spread}" if fine and coarse else "–")
        costs = [f"{row[key]:.3g}" if key in row else "–" for key in units]
        lines.append(f"| {row['label']} | {' | '.join([*cells, str(row['seeds']), *costs])} |")
    return "\n".join(lines) + "\n"

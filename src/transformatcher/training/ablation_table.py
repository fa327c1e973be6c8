"""Results of a study's runs → mean and spread of every row, as JSON and as a Markdown table."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformatcher.data.benchmarks import find_benchmark
from transformatcher.files import read_json, write_text
from transformatcher.training.study import Study, StudyRow
from transformatcher.training.validation import set_name

RESULT, COST = "result.json", "cost.json"  # of a run, and of a row
TABLE, ABLATION = "table.md", "ablation.json"
ALPHAS_SHOWN = ("0.05", "0.1")
COSTS_SHOWN = {"ms_per_pair": "ms/pair", "peak_gib": "GiB", "gflops": "GFLOP"}


def find_results(row: StudyRow, out: Path) -> list[Path]:
    """The result files of a row, one for each seed that is done."""
    return sorted((out / row.folder).glob(f"seed-*/{RESULT}"))


def write_table(study: Study, out: Path, command: str = "") -> dict[str, Any]:
    """Summarise every row that has results and write ABLATION and TABLE to ``out``.

    Args:
        study: with the rows in the order of the table.
        out: the study's folder.
        command: that repeats the study; by default without options.

    Returns:
        The content of ABLATION.
    """
    rows = [summary for row in study.rows if (summary := _summarise(row, study, out)) is not None]
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
    write_text(out / TABLE, to_markdown(table))
    return table


def _summarise(row: StudyRow, study: Study, out: Path) -> dict[str, Any] | None:
    """Mean and spread of a row over its seeds, with its costs; None without results."""
    results = [read_json(path) for path in find_results(row, out)]
    if not results:
        return None
    summary: dict[str, Any] = {"label": row.label, "seeds": len(results)}
    for name in map(set_name, study.measure):
        for alpha in ALPHAS_SHOWN:
            summary[f"{name} @ {alpha}"] = _mean_and_spread([result["pck"][name][alpha] for result in results])
    path = out / row.folder / COST
    costs = read_json(path) if path.is_file() else {}
    return summary | {key: costs[key] for key in COSTS_SHOWN if key in costs}


def _mean_and_spread(values: Sequence[float]) -> dict[str, float]:
    """Mean and standard deviation over seeds (of the sample; 0 for one)."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": round(float(np.mean(values)), 2), "spread": round(spread, 2)}


def to_markdown(table: Mapping[str, Any]) -> str:
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
        note += " Costs are of inference with batches of 16; on a CPU, memory is that of the whole process."
    return "\n".join([*lines, "", note, ""])

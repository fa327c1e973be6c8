"""Scores and timings → the paper's tables, with its own numbers beside ours."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformatcher.data.benchmarks import BENCHMARKS, benchmark_title
from transformatcher.evaluation.analysis.nonlocality_figures import NAMES, departure
from transformatcher.evaluation.analysis.nonlocality_run import FACTORS, FORMS
from transformatcher.evaluation.analysis.paper import SHORT_NAMES, SPAIR_05, TABLE_1, TABLE_3, class_wise
from transformatcher.evaluation.analysis.run_folders import EvalRun, bench_command
from transformatcher.evaluation.analysis.tables import NOTHING, Section, Table, number
from transformatcher.evaluation.predict import LEVELS

PROTOCOL = "PCK in percent, mean over pairs, in the published frame of 240 × 240 pixels."
ALPHA = "0.1"  # of the tables by category and by difficulty


def result_tables(runs: Sequence[EvalRun], benches: Sequence[Mapping[str, Any]] = ()) -> list[Table]:
    """All tables that these runs and timings have numbers for."""
    tables = [benchmark_table(runs)] if runs else []
    for benchmark in dict.fromkeys(run.benchmark for run in runs):
        same = [run for run in runs if run.benchmark == benchmark]
        tables.append(class_table(same))
        with_levels = [run for run in same if run.scores["difficulty"]]
        if with_levels:
            tables.append(difficulty_table(with_levels))
    return tables + ([cost_table(benches)] if benches else [])


def benchmark_table(runs: Sequence[EvalRun]) -> Table:
    """Table 1: one row for each model, with all benchmarks that it was run on."""
    columns = {
        "SPair-71k bbox 0.05": ("spair", "bbox", "0.05"),
        "SPair-71k bbox 0.1": ("spair", "bbox", "0.1"),
        "PF-PASCAL img 0.05": ("pfpascal", "img", "0.05"),
        "PF-PASCAL img 0.1": ("pfpascal", "img", "0.1"),
        "PF-WILLOW bbox-kp 0.1": ("pfwillow", "bbox-kp", "0.1"),
        "PF-WILLOW bbox-padded 0.1": ("pfwillow", "bbox-padded", "0.1"),
    }
    rows: dict[tuple[str, str], dict[str, list[str]]] = {}
    for run in runs:
        cells = rows.setdefault((run.model, str(run.arguments.get("weights_hash", ""))), {name: [] for name in columns})
        split = run.arguments.get("split")
        for name, (benchmark, pck_threshold, alpha) in columns.items():
            if run.benchmark == benchmark and pck_threshold in run.scores["pck"]:
                value = number(run.scores["pck"][pck_threshold][alpha]["per_pair"])
                count = run.scores["n_pairs"]
                notes = [str(split)] if split != "test" else []
                notes += [f"{count} pairs"] if count != BENCHMARKS[benchmark].n_pairs.get(str(split)) else []
                cells[name].append(f"{value} ({', '.join(notes)})" if notes else value)
    labels = [label for label, _ in rows]
    ours = [
        [
            f"{label} [{weights[:6]}]" if labels.count(label) > 1 else label,
            *(", ".join(dict.fromkeys(values)) or NOTHING for values in cells.values()),
        ]
        for (label, weights), cells in rows.items()
    ]
    printed = []
    for name, row in TABLE_1.items():
        spair = f"{number(row.spair_f)} / {number(row.spair_t)}"
        values = (row.pascal_05, row.pascal_10, row.willow_kp, row.willow_padded)
        printed.append([name, number(SPAIR_05.get(name)), spair, *map(number, values)])
    return Table(
        "benchmarks",
        "Benchmarks, beside the paper's Table 1",
        ["model", *columns],
        [Section(printed, "the paper, Table 1 (ResNet-101, test splits)"), Section(ours, "measured here")],
        [
            PROTOCOL,
            "SPair-71k in the paper: trained on SPair-71k / on PF-PASCAL; at 0.05 from Table 2. †: trained with "
            "augmentation. What the paper calls bbox on PF-WILLOW is called bbox-padded here.",
        ],
        [run.command for run in runs],
    )


def class_table(runs: Sequence[EvalRun]) -> Table:
    """Table A1: PCK of each category of one benchmark."""
    first = runs[0]
    paper = class_wise() if first.benchmark == "spair" else {}
    found: set[str] = {name for run in runs for name in run.scores["per_category"]}
    categories = [name for name in SHORT_NAMES if name in found] + sorted(found - set(SHORT_NAMES))
    sections = []
    if paper:
        printed = [[name, *(number(row.get(key)) for key in ["all", *categories])] for name, row in paper.items()]
        sections.append(Section(printed, "the paper, Table A1 (ResNet-101, trained on SPair-71k, test split)"))
    ours = []
    for run in runs:
        cells = {
            name: table[run.pck_threshold][ALPHA]["per_pair"] for name, table in run.scores["per_category"].items()
        }
        cells["all"] = run.scores["pck"][run.pck_threshold][ALPHA]["per_pair"]
        ours.append([_row_name(run), *(number(cells.get(name)) for name in ["all", *categories])])
    sections.append(Section(ours, "measured here" if paper else ""))
    data = benchmark_title(first.benchmark)
    beside = ", beside the paper's Table A1" if paper else ""
    return Table(
        f"classes-{first.benchmark or 'unknown'}",
        f"{data} by category{beside}",
        ["model", "all", *(SHORT_NAMES.get(name, name) for name in categories)],
        sections,
        [f"{PROTOCOL} Threshold {first.pck_threshold}, α = {ALPHA}."],
        [run.command for run in runs],
    )


def difficulty_table(runs: Sequence[EvalRun]) -> Table:
    """PCK of easy, medium and hard pairs, for each factor of difficulty."""
    first = runs[0]
    groups = [
        (factor, level)
        for factor in FACTORS
        for level in LEVELS
        if any(level in run.scores["difficulty"].get(factor, {}) for run in runs)
    ]
    counts = [
        str(sum(prediction.difficulty.get(factor) == LEVELS.index(level) for prediction in first.predictions))
        for factor, level in groups
    ]
    rows = []
    for run in runs:
        levels = run.scores["difficulty"]
        cells = (levels.get(factor, {}).get(level) for factor, level in groups)
        values = [None if cell is None else cell[run.pck_threshold][ALPHA]["per_pair"] for cell in cells]
        rows.append([_row_name(run), *(number(value) for value in values)])
    return Table(
        f"difficulty-{first.benchmark or 'unknown'}",
        f"{benchmark_title(first.benchmark)} by difficulty",
        ["model", *(f"{factor} {level}" for factor, level in groups)],
        [Section([[f"pairs ({first.data})", *counts]]), Section(rows, "PCK")],
        [
            f"{PROTOCOL} Threshold {first.pck_threshold}, α = {ALPHA}.",
            "The paper prints no PCK by difficulty; its Figure 7 shows the shares of these levels by nonlocality.",
        ],
        [run.command for run in runs],
    )


def cost_table(benches: Sequence[Mapping[str, Any]]) -> Table:
    """Time, memory and operations of one pair, beside Tables 1 and 3."""
    header = ["model", "device", "batch", "input", "ms/pair", "memory (GB)", "GFLOP"]
    paper = []
    for name, row in TABLE_1.items():
        if "†" not in name and row.ms is not None:
            size = "240" if name == "TransforMatcher" else NOTHING  # the paper does not name the size of the others
            paper.append([name, NOTHING, NOTHING, size, number(row.ms, 0), number(row.gb), number(row.gflops)])
    other = []
    for name, (ms, gb, gflops) in TABLE_3.items():
        memory = "out of memory" if ms is None else number(gb)
        other.append([name, NOTHING, NOTHING, "240", number(ms, 0), memory, number(gflops)])
    ours = [
        [
            f"{row['variant']}, {row['backbone']}, {row['backend']}" + (", training" * (row["mode"] == "train")),
            str(bench["device"]),
            str(row["batch"]),
            str(row["size"]),
            f"{row['ms_per_pair']:.3g}",
            number(row["peak_gib"] * 2**30 / 1e9, 2),
            number(row["gflops"]),
        ]
        for bench in benches
        for row in bench["rows"]
    ]
    return Table(
        "costs",
        "Time, memory and operations, beside the paper's Tables 1 and 3",
        header,
        [
            Section(paper, "the paper, Table 1"),
            Section(other, "the paper, Table 3: the same model with other kinds of attention"),
            Section(ours, "measured here"),
        ],
        [
            "The paper does not name its device. Memory on a CPU is the peak of the whole process.",
            "Operations are those of one pair, forward.",
        ],
        [bench_command(bench) for bench in benches],
    )


def ablation_table(data: Mapping[str, Any]) -> Table:
    """The table of a study: mean over seeds ± spread, and the cost of a pair where it was measured."""
    columns = [str(column) for column in data["columns"]]
    costs = {"ms_per_pair": "ms/pair", "peak_gib": "GiB", "gflops": "GFLOP"}
    shown = {key: name for key, name in costs.items() if any(key in row for row in data["rows"])}
    rows = []
    for row in data["rows"]:
        cells = [_spread(row.get(column), row.get("seeds")) for column in columns]
        rows.append([str(row["label"]), *cells, str(row.get("seeds", NOTHING)), *(_cost(row.get(k)) for k in shown)])
    name = str(data["name"])
    return Table(
        f"ablation-{name}",
        str(data.get("title", name)),
        [name, *columns, "seeds", *shown.values()],
        [Section(rows)],
        [str(data["question"])] if data.get("question") else [],
        [str(data["command"])] if data.get("command") else [],
    )


def _spread(cell: Any, seeds: int | None) -> str:
    """Mean ± spread; without the spread where there is only one seed."""
    if not isinstance(cell, Mapping) or "mean" not in cell:
        return NOTHING
    shown = "spread" in cell and (seeds or 1) > 1
    return number(cell["mean"]) + (f" ± {cell['spread']:.1f}" if shown else "")


def _cost(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else NOTHING


def nonlocality_tables(summary: Mapping[str, Any]) -> list[Table]:
    """Φ of every layer in every form, and of convolutions with and without borders."""
    commands = [str(summary["command"])] if summary.get("command") else []
    layers = summary["layers"]
    rows = []
    for index in range(len(layers["pairwise"])):
        means = [layers[form][index]["mean"] for form in FORMS]
        ranges = [(min(heads), max(heads)) for heads in (layers[form][index]["heads"] for form in FORMS[1:])]
        spans = [f"{low:.2f} – {high:.2f}" for low, high in ranges]
        cells = [number(means[0], 4), number(means[1], 2), spans[0], number(means[2], 2), spans[1]]
        rows.append([str(index + 1), number(means[0] ** 0.5, 3), *cells])
    uniform = summary["uniform"]
    layer_table = Table(
        "nonlocality-layers",
        "Nonlocality Φ of every layer (squared cells), mean over heads and pairs",
        ["layer", "√Φ pairs", "Φ pairs", "Φ global query", "… heads", "Φ global key", "… heads"],
        [Section(rows), Section([["uniform", number(uniform**0.5, 3), number(uniform, 4), *[NOTHING] * 4]])],
        [
            "Pairs: the supplement's pairwise form, softmax(Q̂Kᵀ), its queries scaled by weights that sum to one over "
            f"all matches. Heads differ from uniform attention by {departure(summary, 'pairwise'):.1g} % at most.",
            "The paper speaks of about 12.5 cells on grids of 15 cells a side, where uniform attention has "
            "√Φ = 12.2; its numbers fit roots of Φ, not Φ itself.",
        ],
        commands,
    )
    kernels = [
        [f"{row['kernel']}^{row['dims']}", number(row["phi"], 3), number(row["phi"] ** 0.5, 3),
         number(row["phi_bounded"], 3)]
        for row in summary["convolutions"]
    ]  # fmt: skip
    convolution_table = Table(
        "nonlocality-convolutions",
        "Nonlocality Φ of convolutions written as attention",
        ["kernel", "Φ = d (K² − 1)/12", "√Φ", f"Φ on {min(summary['grid'])} cells a side"],
        [Section(kernels)],
        ["Each offset of a kernel is a head. In the last column, offsets that lead outside the grid are left out."],
    )
    return [layer_table, convolution_table, *_trend_tables(summary)]


def _trend_tables(summary: Mapping[str, Any]) -> list[Table]:
    """Whether harder pairs have a larger Φ, as the paper's Figure 7 suggests."""
    trends = summary["difficulty"]
    factors = list(trends["pairwise"])
    if not factors:
        return []
    rows = [[NAMES[form], *(_trend(trends[form][factor]) for factor in factors)] for form in FORMS]
    return [
        Table(
            "nonlocality-difficulty",
            "Does Φ rise with difficulty? Rank correlation, and its p-value",
            ["Φ of", *factors],
            [Section(rows)],
            [f"Of {len(rows) * len(factors)} tests, one in twenty falls below 0.05 by chance alone."],
        )
    ]


def _trend(cell: Mapping[str, Any]) -> str:
    if cell["rank_correlation"] is None:
        return NOTHING
    return f"{cell['rank_correlation']:+.2f} ({cell['p_value']:.2g})"


def _row_name(run: EvalRun) -> str:
    return f"{run.model} ({run.arguments.get('split') or run.data}, {len(run.predictions)} pairs)"

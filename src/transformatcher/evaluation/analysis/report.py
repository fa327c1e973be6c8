"""Results that other commands saved → one self-contained HTML report with the command behind every number."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from transformatcher import __version__
from transformatcher.errors import InputError
from transformatcher.evaluation.analysis import failures
from transformatcher.evaluation.analysis.html import (
    Block,
    Code,
    Commands,
    Folded,
    PageSection,
    Paragraph,
    TableBlock,
    embed_file,
    embed_plot,
    render_page,
    slug,
)
from transformatcher.evaluation.analysis.nonlocality_figures import plot_difficulty, plot_nonlocality
from transformatcher.evaluation.analysis.nonlocality_run import SUMMARY
from transformatcher.evaluation.analysis.paper_tables import PROTOCOL, ablation_table, nonlocality_tables, result_tables
from transformatcher.evaluation.analysis.run_folders import (
    EvalRun,
    bench_command,
    check_bench,
    is_bench,
    is_checkpoint,
    is_eval,
    read_eval,
)
from transformatcher.evaluation.analysis.tables import Section, Table, number
from transformatcher.evaluation.compare import is_comparison, verdict
from transformatcher.evaluation.groups import describe_levels
from transformatcher.evaluation.scores import primary_metric, score_warnings
from transformatcher.evaluation.stored import Ablation, Nonlocality, checked
from transformatcher.files import read_json
from transformatcher.run_folder import format_command, read_arguments
from transformatcher.viz.plots import (
    plot_ablation,
    plot_comparison,
    plot_costs,
    plot_curves,
    plot_groups,
    plot_scores,
)

METRICS, ABLATION = "metrics.jsonl", "ablation.json"
PICTURES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass
class ReportInputs:
    """Saved results by kind; a name is that of the folder or file."""

    evals: list[EvalRun] = field(default_factory=list)
    benches: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    trainings: list[Path] = field(default_factory=list)
    ablations: list[Mapping[str, Any]] = field(default_factory=list)
    nonlocalities: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    comparisons: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    galleries: list[tuple[str, failures.Gallery]] = field(default_factory=list)
    pictures: list[Path] = field(default_factory=list)


def collect_inputs(paths: Sequence[Path]) -> ReportInputs:
    """Read folders and files that commands wrote; a folder of another kind is searched one level down."""
    inputs = ReportInputs()
    for path in {path.resolve(): path for path in paths}.values():  # each once
        if not path.exists():
            raise InputError(f"{path}: no such file or folder")
        if path.is_file():
            known = _add_file(path, inputs)
        else:
            known = _add_folder(path, inputs)
            if not known and not is_checkpoint(path):
                inside = [_add_inside(p, inputs) for p in sorted(path.iterdir())]
                known = any(inside)
        if not known:
            raise InputError(
                f"{path}: holds nothing to report; name folders that eval, train, ablate or analyse wrote, what "
                "bench --json printed, or pictures"
            )
    return inputs


def _add_folder(path: Path, inputs: ReportInputs) -> bool:
    before = _count(inputs)
    if is_eval(path):
        inputs.evals.append(read_eval(path))
    if (path / METRICS).is_file():
        inputs.trainings.append(path)
    for file in [*(path / name for name in (ABLATION, SUMMARY, failures.PAGE)), *sorted(path.glob("*against-*.json"))]:
        if file.is_file():
            _add_file(file, inputs)
    return _count(inputs) > before


def _add_inside(path: Path, inputs: ReportInputs) -> bool:
    """Add a file or folder that the user did not name; one that cannot be read is skipped."""
    if path.is_dir():
        return _add_folder(path, inputs)
    try:
        return _add_file(path, inputs)
    except InputError:
        return False


def _add_file(path: Path, inputs: ReportInputs) -> bool:
    """Add a file; returns whether it holds something to report."""
    before, suffix = _count(inputs), path.suffix.lower()
    if suffix == ".json":
        data = read_json(path)
        if is_bench(data):
            inputs.benches.append((path.stem, check_bench(data, path)))
        elif isinstance(data, dict) and {"name", "columns", "rows"} <= set(data):
            inputs.ablations.append(checked(Ablation, data, path, "run transformatcher ablate again"))
        elif isinstance(data, dict) and {"layers", "convolutions", "uniform"} <= set(data):
            summary = checked(Nonlocality, data, path, "run transformatcher analyse nonlocality again")
            inputs.nonlocalities.append((path.parent.name, summary))
        elif is_comparison(data):
            inputs.comparisons.append((path.stem, data))
    elif suffix == ".html":
        gallery = failures.read_gallery(path)
        if gallery is not None:
            name = path.resolve().parent.name if path.name == failures.PAGE else path.stem
            inputs.galleries.append((name, gallery))
    elif (
        suffix in PICTURES and not path.with_name(SUMMARY).is_file()
    ):  # the report draws the figures of a nonlocality run itself
        inputs.pictures.append(path)
    return _count(inputs) > before


def _count(inputs: ReportInputs) -> int:
    return sum(len(values) for values in vars(inputs).values())


def render_report(
    inputs: ReportInputs, command: str, title: str, track: Callable[[int, int], None] = lambda _done, _total: None
) -> str:
    """The page, as HTML.

    Args:
        inputs: what goes into it.
        command: the command that makes this page.
        title: of the page.
        track: called with (sections done, all sections).
    """
    jobs: list[Callable[[], PageSection]] = []
    jobs += [partial(_table, table) for table in result_tables(inputs.evals, [bench for _, bench in inputs.benches])]
    jobs += [partial(_evaluation, run) for run in inputs.evals]
    jobs += [partial(_comparison, name, data) for name, data in inputs.comparisons]
    jobs += [partial(_costs, name, bench) for name, bench in inputs.benches]
    jobs += [partial(_training, folder) for folder in inputs.trainings]
    jobs += [partial(_ablation, data) for data in inputs.ablations]
    jobs += [partial(_nonlocality, name, summary) for name, summary in inputs.nonlocalities]
    jobs += [partial(_gallery, index, *gallery) for index, gallery in enumerate(inputs.galleries, 1)]
    jobs += [partial(_picture, path) for path in inputs.pictures]
    sections: list[PageSection] = []
    for job in jobs:
        track(len(sections), len(jobs))
        sections.append(job())
    track(len(jobs), len(jobs))
    lead = Paragraph(
        f"Made by transformatcher {__version__} from results that other commands saved. The command below a table or "
        "figure computes its numbers again; it names the folders of benchmarks as they are usually called."
    )
    return render_page(title, [lead, Commands([command])], _with_unique_anchors(sections))


def _with_unique_anchors(sections: Sequence[PageSection]) -> list[PageSection]:
    """Anchors that occur twice, from folders of one name, get -2, -3, … behind them."""
    unique: dict[str, PageSection] = {}
    for section in sections:
        candidates = (f"{section.anchor}-{count}" for count in range(2, len(sections) + 2))
        anchor = next(name for name in chain([section.anchor], candidates) if name not in unique)
        unique[anchor] = replace(section, anchor=anchor)
    return list(unique.values())


def _table(table: Table) -> PageSection:
    return PageSection(f"table-{table.name}", table.title, [TableBlock(table, caption=False)])


def _evaluation(run: EvalRun) -> PageSection:
    scores, pck_threshold, name = run.scores, run.pck_threshold, run.folder.name
    rows = []
    for threshold, cells in scores["pck"].items():
        for alpha, cell in cells.items():
            intervals = [f"{low:.1f} – {high:.1f}" for low, high in (cell["ci95"], cell["per_point_ci95"])]
            values = [number(cell[key]) for key in ("per_pair", "per_point")]
            rows.append([threshold, alpha, values[0], intervals[0], values[1], intervals[1]])
    table = Table(
        slug(name),
        f"PCK of {run.model} on {run.data}",
        ["threshold", "α", "per pair", "95 % interval", "per point", "95 % interval"],
        [Section(rows)],
        [
            f"{scores['n_pairs']} pairs, {scores['n_points']} points. {PROTOCOL}",
            *score_warnings(run.predictions, run.arguments),
        ],
    )
    alpha = "0.1" if "0.1" in scores["pck"][pck_threshold] else next(iter(scores["pck"][pck_threshold]))
    alt = f"PCK against tolerance, and by category at {alpha} ({pck_threshold}), of {name}"
    where = (
        f"PCK at {alpha} ({pck_threshold}) of groups of pairs, and where points with a left or right twin go, of {name}"
    )
    levels = [describe_levels(factor) for factor in scores["groups"]]
    blocks: list[Block] = [
        embed_plot(plot_scores(scores, pck_threshold, alpha, title=name), alt),
        embed_plot(plot_groups(scores, pck_threshold, alpha, title=name), where, "; ".join(levels)),
        Folded("All numbers", [TableBlock(table)]),
        Commands([run.command]),
    ]
    return PageSection(f"eval-{slug(name)}", f"Evaluation: {name}", blocks)


def _comparison(name: str, data: Mapping[str, Any]) -> PageSection:
    chosen, alpha = primary_metric(data, {"benchmark": data.get("benchmark", "")})
    a, b = str(data["a"]), str(data["b"])
    alt = f"PCK of every pair by {a} and by {b}; differences by group with 95 % intervals"
    rows = []
    for threshold, cells in data["pck"].items():
        for at, cell in cells.items():
            for average, values in (("per pair", cell), ("per point", cell["per_point"])):
                low, high = values["ci95"]
                numbers = [number(values["a"]), number(values["b"]), f"{values['difference']:+.1f}"]
                rows.append([f"{threshold} @ {at}, {average}", *numbers, f"{low:+.1f} to {high:+.1f}"])
    table = Table(slug(name), f"{a} against {b}", ["PCK", a, b, "difference", "95 % interval"], [Section(rows)])
    worst = [[row["name"], number(row["a"], 0), number(row["b"], 0)] for row in data["pairs"][chosen][alpha][:10]]
    pairs = Table(
        f"{slug(name)}-pairs", f"The pairs that differ most @ {alpha}, {chosen}", ["pair", a, b], [Section(worst)]
    )
    blocks: list[Block] = [
        Paragraph(verdict(data, chosen, alpha)),
        embed_plot(plot_comparison(data, chosen, alpha), alt),
        TableBlock(pairs),
        Folded("All numbers", [TableBlock(table)]),
    ]
    return PageSection(f"compare-{slug(name)}", f"Comparison: {a} against {b}", blocks)


def _costs(name: str, bench: Mapping[str, Any]) -> PageSection:
    image = embed_plot(plot_costs(bench), f"time and memory of each backend on {bench['device']}")
    return PageSection(f"bench-{slug(name)}", f"Time and memory: {name}", [image, Commands([bench_command(bench)])])


def _training(folder: Path) -> PageSection:
    name = folder.name
    try:
        metrics = [json.loads(line) for line in (folder / METRICS).read_text(encoding="utf-8").splitlines()]
        trained = [row for row in metrics if row["epoch"]]
        last, best = metrics[-1], max(trained, key=lambda row: row["score"])
        sets, start = (
            ", ".join(f"{data} {pck['0.05']:.1f} / {pck['0.1']:.1f}" for data, pck in row["pck"].items())
            for row in (best, metrics[0])
        )
        summary = (
            f"{last['epoch']} epochs, {last['pairs']} pairs, {last['seconds'] / 60:.1f} minutes. "
            f"Best is epoch {best['epoch']}: {sets} (PCK at 0.05 / 0.1 on validation sets)."
        )
        if trained != metrics:
            summary += f" The start had {start}."
            summary += " The run is worse than its start." * (best["score"] < metrics[0]["score"])
        figure = plot_curves(metrics, title=name)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / METRICS}: not the metrics of a training run ({error})") from error
    config = read_arguments(folder)
    blocks: list[Block] = [Paragraph(summary), embed_plot(figure, f"training loss and validation PCK of {name}")]
    if config:
        blocks.append(Folded(f"{name}.json, the whole config", [Code(json.dumps(config, indent=1))]))
    blocks.append(Commands([format_command(["train", f"{name}.json"], {"out": f"runs/{name}"})]))
    return PageSection(f"train-{slug(name)}", f"Training: {name}", blocks)


def _ablation(data: Mapping[str, Any]) -> PageSection:
    blocks: list[Block] = [TableBlock(ablation_table(data), caption=False)]
    if data.get("pck_thresholds") and data["rows"]:
        blocks.insert(0, embed_plot(plot_ablation(data), f"PCK of every row of the study {data['name']}"))
    title = f"Ablation: {data.get('title', data['name'])}"
    return PageSection(f"ablation-{slug(str(data['name']))}", title, blocks)


def _nonlocality(name: str, summary: Mapping[str, Any]) -> PageSection:
    model = str(summary.get("model", ""))
    alt = "box plots of nonlocality: convolutions by kernel size, attention layers, and their difference from uniform"
    caption = "The paper's Figure 6 for this model. Boxes hold half of the values, whiskers nine tenths."
    blocks: list[Block] = [embed_plot(plot_nonlocality(summary, model), alt, caption)]
    shares = plot_difficulty(summary, model)
    if shares is not None:
        alt = "stacked bars: shares of easy, medium and hard pairs in groups of rising nonlocality, for each factor"
        blocks.append(embed_plot(shares, alt, "The paper's Figure 7 for this model."))
    blocks += [TableBlock(table) for table in nonlocality_tables(summary)]
    return PageSection(f"nonlocality-{slug(name)}", f"Nonlocality: {name}", blocks)


def _gallery(index: int, name: str, gallery: failures.Gallery) -> PageSection:
    blocks = failures.gallery_blocks(gallery, f"failures-{index}")  # galleries may have one name: number them
    return PageSection(f"gallery-{slug(name)}", f"Failures: {name}", [Folded("Show the pairs", blocks)])


def _picture(path: Path) -> PageSection:
    return PageSection(f"picture-{slug(path.name)}", f"Picture: {path.name}", embed_file(path))

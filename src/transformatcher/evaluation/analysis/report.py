"""Everything that other commands left on disk → one self-contained HTML report, every number with its command."""

import html
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from transformatcher import __version__
from transformatcher.errors import InputError
from transformatcher.evaluation.analysis import failures
from transformatcher.evaluation.analysis.html import heading, page, paragraph, picture, plot, slug
from transformatcher.evaluation.analysis.nonlocality_figures import plot_difficulty, plot_nonlocality
from transformatcher.evaluation.analysis.nonlocality_run import SUMMARY
from transformatcher.evaluation.analysis.paper_tables import PROTOCOL, ablation_table, nonlocality_tables, result_tables
from transformatcher.evaluation.analysis.run_folders import (
    EvalRun,
    bench_command,
    is_bench,
    is_checkpoint,
    is_eval,
    read_eval,
)
from transformatcher.evaluation.analysis.tables import Section, Table, commands_html, number, to_html
from transformatcher.evaluation.scores import remarks
from transformatcher.files import read_json
from transformatcher.viz.plots import plot_ablation, plot_costs, plot_curves, plot_scores

METRICS, ABLATION = "metrics.jsonl", "ablation.json"
PICTURES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass
class ReportInputs:
    """What was found, kind by kind."""

    evals: list[EvalRun] = field(default_factory=list)
    benches: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    trainings: list[Path] = field(default_factory=list)
    ablations: list[Mapping[str, Any]] = field(default_factory=list)
    nonlocalities: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    galleries: list[tuple[str, str]] = field(default_factory=list)
    pictures: list[Path] = field(default_factory=list)


def gather(paths: Sequence[Path]) -> ReportInputs:
    """Folders and files that commands wrote; a folder that is none of them is searched one level down."""
    found = ReportInputs()
    for path in {path.resolve(): path for path in paths}.values():  # each once
        if not path.exists():
            raise InputError(f"{path}: no such file or folder")
        if path.is_file():
            known = _add_file(path, found)
        else:
            known = _add_folder(path, found)
            if not known and not is_checkpoint(path):
                inside = [_add_inside(p, found) for p in sorted(path.iterdir())]
                known = any(inside)
        if not known:
            raise InputError(
                f"{path}: holds nothing to report; name folders that eval, train, ablate or analyse wrote, what "
                "bench --json printed, or pictures"
            )
    return found


def _add_folder(path: Path, found: ReportInputs) -> bool:
    before = _count(found)
    if is_eval(path):
        found.evals.append(read_eval(path))
    if (path / METRICS).is_file():
        found.trainings.append(path)
    for name in (ABLATION, SUMMARY, failures.PAGE):
        if (path / name).is_file():
            _add_file(path / name, found)
    return _count(found) > before


def _add_inside(path: Path, found: ReportInputs) -> bool:
    """Of what was not named, a file that cannot be read is not of use."""
    if path.is_dir():
        return _add_folder(path, found)
    try:
        return _add_file(path, found)
    except InputError:
        return False


def _add_file(path: Path, found: ReportInputs) -> bool:
    """Whether the file was of use."""
    before, suffix = _count(found), path.suffix.lower()
    if suffix == ".json":
        data = read_json(path)
        if is_bench(data):
            found.benches.append((path.stem, data))
        elif isinstance(data, dict) and {"name", "columns", "rows"} <= set(data):
            rows = data["rows"]
            if not isinstance(rows, list) or not all(isinstance(row, dict) and "label" in row for row in rows):
                raise InputError(f"{path}: a row of this ablation has no label; run transformatcher ablate again")
            found.ablations.append(data)
        elif isinstance(data, dict) and {"layers", "convolutions", "uniform"} <= set(data):
            found.nonlocalities.append((path.parent.name, data))
    elif suffix == ".html":
        text = path.read_text(encoding="utf-8", errors="replace")
        if failures.BEGIN in text and failures.END in text:
            name = path.resolve().parent.name if path.name == failures.PAGE else path.stem
            found.galleries.append((name, text.split(failures.BEGIN)[1].split(failures.END)[0]))
    elif suffix in PICTURES and not path.with_name(SUMMARY).is_file():  # its figures are drawn anew
        found.pictures.append(path)
    return _count(found) > before


def _count(found: ReportInputs) -> int:
    return sum(len(values) for values in vars(found).values())


Part = tuple[str, str, str]  # anchor, title, HTML


def report(
    found: ReportInputs, command: str, title: str, track: Callable[[int, int], None] = lambda _done, _total: None
) -> str:
    """The page."""
    jobs: list[Callable[[], Part]] = []
    jobs += [partial(_table, table) for table in result_tables(found.evals, [bench for _, bench in found.benches])]
    jobs += [partial(_evaluation, run) for run in found.evals]
    jobs += [partial(_costs, name, bench) for name, bench in found.benches]
    jobs += [partial(_training, folder) for folder in found.trainings]
    jobs += [partial(_ablation, data) for data in found.ablations]
    jobs += [partial(_nonlocality, name, summary) for name, summary in found.nonlocalities]
    jobs += [partial(_gallery, name, text) for name, text in found.galleries]
    jobs += [partial(_picture, path) for path in found.pictures]
    parts: list[Part] = []
    taken: Counter[str] = Counter()
    for job in jobs:
        track(len(parts), len(jobs))
        anchor, name, text = job()
        taken[anchor] += 1  # two folders may have the same name
        parts.append((anchor if taken[anchor] == 1 else f"{anchor}-{taken[anchor]}", name, text))
    track(len(jobs), len(jobs))
    lead = paragraph(
        f"Made by transformatcher {__version__} from what other commands saved. The command under a table or figure "
        "makes its numbers again; folders of benchmarks have their usual names in it."
    ) + commands_html([command])
    body = "\n".join(f"<section>{heading(2, name, anchor)}{text}</section>" for anchor, name, text in parts)
    return page(title, lead, [(anchor, name) for anchor, name, _ in parts], body)


def _table(table: Table) -> Part:
    return f"table-{table.name}", table.title, to_html(table, caption=False)


def _evaluation(run: EvalRun) -> Part:
    scores, kind = run.scores, run.kind
    rows = []
    for name, cells in scores["pck"].items():
        for alpha, cell in cells.items():
            low, high = cell["ci95"]
            interval = f"{low:.1f} – {high:.1f}"
            rows.append([name, alpha, number(cell["per_pair"]), interval, number(cell["per_point"])])
    table = Table(
        slug(run.folder.name),
        f"PCK of {run.model} on {run.data}",
        ["threshold", "α", "per pair", "95 % interval", "per point"],
        [Section(rows)],
        [f"{scores['n_pairs']} pairs, {scores['n_points']} points. {PROTOCOL}", *remarks(run.predictions, run.folder)],
    )
    alpha = "0.1" if "0.1" in scores["pck"][kind] else next(iter(scores["pck"][kind]))
    figure = plot_scores(scores, kind, alpha, title=run.folder.name)
    alt = f"PCK against tolerance, and by category at {alpha} ({kind}), of {run.folder.name}"
    numbers = f"<details><summary>All numbers</summary>{to_html(table)}</details>"
    text = plot(figure, alt) + numbers + commands_html([run.command])
    return f"eval-{slug(run.folder.name)}", f"Evaluation: {run.folder.name}", text


def _costs(name: str, bench: Mapping[str, Any]) -> Part:
    figure = plot(plot_costs(bench), f"time and memory of each path on {bench['device']}")
    return f"bench-{slug(name)}", f"Time and memory: {name}", figure + commands_html([bench_command(bench)])


def _training(folder: Path) -> Part:
    try:
        metrics = [json.loads(line) for line in (folder / METRICS).read_text(encoding="utf-8").splitlines()]
        best = max(metrics, key=lambda row: row["score"])
        figure = plot_curves(metrics, title=folder.name)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / METRICS}: not the metrics of a training run ({error})") from error
    run = read_json(folder / "run.json") if (folder / "run.json").is_file() else {}
    config = run.get("config") if isinstance(run, dict) else None
    sets = ", ".join(f"{name} {pck['0.05']:.1f} / {pck['0.1']:.1f}" for name, pck in best["pck"].items())
    words = (
        f"{metrics[-1]['epoch']} epochs, {metrics[-1]['pairs']} pairs, {metrics[-1]['seconds'] / 60:.1f} minutes. "
        f"Best is epoch {best['epoch']}: {sets} (PCK at 0.05 / 0.1 on validation sets)."
    )
    text = paragraph(words) + plot(figure, f"training loss and validation PCK of {folder.name}")
    if config is not None:
        text += f"<details><summary>{html.escape(folder.name)}.json, the whole config</summary>"
        text += f"<pre><code>{html.escape(json.dumps(config, indent=1))}</code></pre></details>"
    command = f"transformatcher train {folder.name}.json --out runs/{folder.name}"
    return f"train-{slug(folder.name)}", f"Training: {folder.name}", text + commands_html([command])


def _ablation(data: Mapping[str, Any]) -> Part:
    table = ablation_table(data)
    figure = ""
    if data.get("kinds") and data["rows"]:
        figure = plot(plot_ablation(data), f"PCK of every row of the study {data['name']}")
    return (
        f"ablation-{slug(str(data['name']))}",
        f"Ablation: {data.get('title', data['name'])}",
        figure + to_html(table, caption=False),
    )


def _nonlocality(name: str, summary: Mapping[str, Any]) -> Part:
    text = plot(
        plot_nonlocality(summary, str(summary.get("model", ""))),
        "box plots of nonlocality: convolutions by kernel size, attention layers, and their difference from uniform",
        "The paper's Figure 6 for this model. Boxes hold half of the values, whiskers nine tenths.",
    )
    shares = plot_difficulty(summary, str(summary.get("model", "")))
    if shares is not None:
        alt = "stacked bars: shares of easy, medium and hard pairs in groups of rising nonlocality, for each factor"
        text += plot(shares, alt, "The paper's Figure 7 for this model.")
    text += "".join(to_html(table) for table in nonlocality_tables(summary))
    return f"nonlocality-{slug(name)}", f"Nonlocality: {name}", text


def _gallery(name: str, text: str) -> Part:
    folded = f"<details><summary>Show the pairs</summary>{text}</details>"
    return f"gallery-{slug(name)}", f"What goes wrong: {name}", folded


def _picture(path: Path) -> Part:
    return f"picture-{slug(path.name)}", f"Picture: {path.name}", picture(path)

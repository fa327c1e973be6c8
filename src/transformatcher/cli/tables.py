"""Results → tables on standard output."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from transformatcher.cli.output import STDOUT
from transformatcher.errors import printable

if TYPE_CHECKING:
    from transformatcher.evaluation.analysis.tables import Table as ResultTable
    from transformatcher.evaluation.pair_list_cost import ListCost
    from transformatcher.inference.matched_pair import MatchedPoints

WIDE = 115  # columns of a terminal that the table of costs needs; in a narrower one it is transposed


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Print rows of cells; the first ``left`` columns are aligned left, the others right."""
    table = Table(title=printable(title))
    for index, name in enumerate(header):
        table.add_column(printable(name), justify="left" if index < left else "right")
    for row in rows:
        table.add_row(*map(printable, row))
    STDOUT.print(table)


def print_matches(matches: MatchedPoints, src: str, trg: str, names: Sequence[str], most: int = 20) -> None:
    """All points that have names; of the many found automatically, the most confident. Notes on the pair follow."""
    n = len(matches.keypoints0)
    order = range(n) if names else [i for i in np.argsort(-matches.confidence).tolist() if matches.is_match[i]][:most]
    rows = []
    for index in order:
        (x0, y0), (x1, y1) = matches.keypoints0[index], matches.keypoints1[index]
        label = names[index] if names else str(index + 1)
        position = f"{x1:.1f}, {y1:.1f}" if matches.is_match[index] else f"no match ({x1:.1f}, {y1:.1f})"
        rows.append((label, f"{x0:.1f}, {y0:.1f}", position, f"{matches.confidence[index]:.3f}"))
    src, trg = printable(src), printable(trg)
    title = f"{n} points of {src} on {trg}" + (f", the {len(order)} most confident" if len(order) < n else "")
    header = ("point", f"{src} x, y", f"{trg} x, y", "confidence" if matches.calibrated else "sharpness")
    if rows:
        print_table(title, header, rows, left=0)
    else:
        print(f"no point of {src} has a match on {trg}; with --keypoints, the best guess for each point is printed")
    print_pair_notes(matches, src, trg)


def print_pair_notes(matches: MatchedPoints, src: str, trg: str) -> None:
    """Say that the objects face opposite ways, or that the photos probably show different kinds of things, if so."""
    if matches.mirrored:
        print(
            f"mirrored: the objects face opposite ways, so the mirror image of {src} was matched; left and right of "
            "the object are exchanged"
        )
    if matches.other_kind:
        print(
            f"{src} and {trg} probably do not show the same kind of thing: the probability that they do is "
            f"{matches.same_kind:.2f}"
        )


def print_cost(cost: ListCost, workers: int | None) -> None:
    """What a list of pairs takes: time of each stage, memory, disk."""
    hours = {stage.name: stage.count * stage.seconds / 3600 for stage in cost.stages}
    rows = [
        (
            stage.name,
            stage.unit,
            f"{stage.count:,}",
            format_number(1e3 * stage.seconds),
            format_number(hours[stage.name]),
        )
        for stage in cost.stages
    ]
    rows.append(("together", "", "", "", format_number(cost.hours)))
    title = f"{cost.pairs:,} pairs of {cost.photos:,} photos, from {cost.sampled} pairs that were matched here"
    print_table(title, ("stage", "for each", "number", "ms", "worker-hours"), rows, left=2)
    if workers:
        print(f"hours with {workers} workers: {format_number(cost.hours / workers)}")
    print(f"memory of each worker: {format_bytes(cost.worker_bytes)}")
    print(f"photos to be read: {format_bytes(cost.read_bytes)}")
    print(f"results: {format_bytes(cost.out_bytes)} in {cost.shards:,} Parquet files")
    print(f"features of all photos (--features): {format_bytes(cost.photos * cost.photo_bytes)}")
    if cost.failed:
        print(f"{cost.failed} of the {cost.sampled} pairs could not be matched", file=sys.stderr)


def format_number(value: float) -> str:
    """Two digits of a small number, all before the point of a large one."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def format_bytes(value: float) -> str:
    """In the largest unit that it has at least one of."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if value >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value / 1e3:,.1f} kB"


def print_scores(scores: Mapping[str, Any], pck_threshold: str) -> None:
    """PCK for each threshold and α, then by category, difficulty and other groups for one threshold; twins."""
    total = Table(title=f"PCK (%), {scores['n_pairs']} pairs, {scores['n_points']} points, frame {scores['frame']}")
    for name in ("threshold", "α", "per pair", "95 % interval", "per point", "95 % interval"):
        total.add_column(name, justify="left" if name == "threshold" else "right")
    for name, cells in scores["pck"].items():
        for alpha, cell in cells.items():
            intervals = (f"{low:.1f} – {high:.1f}" for low, high in (cell["ci95"], cell["per_point_ci95"]))
            per_pair, per_point = (f"{cell[key]:.1f}" for key in ("per_pair", "per_point"))
            total.add_row(name, alpha, per_pair, next(intervals), per_point, next(intervals))
        total.add_section()
    STDOUT.print(total)
    groups = {**scores["per_category"]}
    for factor, levels in scores["difficulty"].items():
        groups |= {f"{factor}: {level}": table for level, table in levels.items()}
    for factor, levels in scores["groups"].items():
        groups |= {f"{factor}: {level} ({cell['n_pairs']} pairs)": cell["pck"] for level, cell in levels.items()}
    alphas = list(scores["pck"][pck_threshold])
    cells = {name: table[pck_threshold] for name, table in groups.items()}
    rows = [(name, *(f"{cell[alpha]['per_pair']:.1f}" for alpha in alphas)) for name, cell in cells.items()]
    title = f"PCK (%) per pair, {pck_threshold}, by category and difficulty"
    print_table(title, ("group", *(f"@ {alpha}" for alpha in alphas)), rows)
    if scores["twins"] is not None:
        _print_twins(scores["twins"], pck_threshold, alphas)


def _print_twins(twins: Mapping[str, Any], pck_threshold: str, alphas: Sequence[str]) -> None:
    labels = {
        "correct": "on the true point",
        "on_twin": "on its twin",
        "elsewhere": "elsewhere",
        "without_twin_correct": "points without a twin: on the true point",
    }
    cells = [twins["pck"][pck_threshold][alpha] for alpha in alphas]
    rows = []
    for key, label in labels.items():
        rows.append((label, *("–" if cell[key] is None else f"{cell[key]:.1f}" for cell in cells)))
    title = f"where points go whose left or right twin is visible too (%), {twins['n_points']} points, {pck_threshold}"
    print_table(title, ("predicted", *(f"@ {alpha}" for alpha in alphas)), rows)


def print_comparison(comparison: Mapping[str, Any], pck_threshold: str, alpha: str, most: int = 10) -> None:
    """Differences for each threshold and α, then by group, and the pairs that differ most, for one threshold and α."""
    a, b = comparison["a"], comparison["b"]
    header = (a, b, "difference", "95 % interval")

    def cells(cell: Mapping[str, Any]) -> tuple[str, ...]:
        low, high = cell["ci95"]
        return f"{cell['a']:.1f}", f"{cell['b']:.1f}", f"{cell['difference']:+.1f}", f"{low:+.1f} to {high:+.1f}"

    rows = [
        (f"{name} @ {at}, {average}", *cells(value))
        for name, table in comparison["pck"].items()
        for at, cell in table.items()
        for average, value in (("per pair", cell), ("per point", cell["per_point"]))
    ]
    print_table(f"{a} against {b}, {comparison['n_pairs']} pairs, frame {comparison['frame']}", ("PCK", *header), rows)
    groups = [
        (f"{name} ({group['n_pairs']} pairs)", *cells(group[pck_threshold][alpha]))
        for name, group in comparison["groups"].items()
    ]
    print_table(f"per pair @ {alpha}, {pck_threshold}, by group", ("group", *header), groups)
    pairs = comparison["pairs"][pck_threshold][alpha][:most]
    differing = [(row["name"], f"{row['a']:.0f}", f"{row['b']:.0f}") for row in pairs if row["a"] != row["b"]]
    if differing:
        print_table("the pairs that differ most", ("pair", a, b), differing)


def print_costs(report: Mapping[str, Any]) -> None:
    """Time, memory and operations of every timed combination."""
    from transformatcher.evaluation.timing import STAGES

    first = report["rows"][0]
    title = f"ms/pair, {first['mode']}, {first['backbone']}, {first['variant']}, on {report['device']}"
    lines = [
        {
            "backend": row["backend"],
            "backbone in": row["dtype"],
            "batch": str(row["batch"]),
            "size": str(row["size"]),
            "matches": str(row["matches"]),
            **{name: _with_floor(row["stages_ms"][name], row["stages_floor_ms"][name]) for name in STAGES},
            "in all": _with_floor(row["ms_per_pair"], row["floor_ms"]),
            "floor": f"{row['floor_ms']:.3f}",
            "GFLOP": f"{row['gflops']:.1f}",
            "GiB": f"{row['peak_gib']:.2f}",
        }
        | ({"× compared": f"{row['ms_per_pair'] / row['compared_ms_per_pair']:.2f}"} if "compared" in report else {})
        for row in report["rows"]
    ]
    if STDOUT.width >= WIDE:
        print_table(title, list(lines[0]), [list(line.values()) for line in lines], left=0)
    else:
        header = ["", *(str(number) for number in range(1, len(lines) + 1))]
        print_table(title, header, [[name, *(line[name] for line in lines)] for name in lines[0]], left=0)
    peaks = report["device_peaks"]
    rates = f"{peaks['bytes_per_s'] / 1e9:.0f} GB/s copied, " + " and ".join(
        f"{peaks[key] / 1e12:.2f} TFLOP/s in {name} products"
        for key, name in (("flops_per_s", "float32"), ("bfloat16_flops_per_s", "bfloat16"))
    )
    print(f"floor: bytes and operations of one pair at this device's measured peak rates, {rates}")
    print("in brackets: as a multiple of the floor")
    if "compared" in report:
        times = ", ".join(dict.fromkeys(f"{row['compared_ms_per_pair']:.1f}" for row in report["rows"]))
        print(f"× compared: as a multiple of {report['compared']}, which takes {times} ms a pair")


def _with_floor(ms: float, floor: float) -> str:
    return f"{ms:.3f} ({ms / floor:.1f})"


def print_match_speed(report: Mapping[str, Any]) -> None:
    """Time of each way to match, for each number of targets."""
    rows = report["rows"]
    counts = list(dict.fromkeys(row["targets"] for row in rows))
    by_way: dict[str, list[str]] = {}
    for row in rows:
        cells = by_way.setdefault(row["way"], [row["way"]])
        cells += [f"{row['ms_per_pair']:.1f}", f"{row['of_one_pass']:.2f}"]
        if "compared" in report:
            cells.append(f"{row['ms_per_pair'] / report['compared_ms_per_pair']:.2f}")
    header = ["way to match"]
    for count in counts:
        header += [f"ms/pair, {count} target{'s' * (count > 1)}", "× one pass"]
        header += ["× compared"] if "compared" in report else []
    print_table(f"Matcher.match, model in the package, on {report['device']}", header, list(by_way.values()))
    if "compared" in report:
        print(f"× compared: as a multiple of {report['compared']}, which takes {report['compared_ms_per_pair']:.1f} ms")


def print_result_table(result: ResultTable) -> None:
    """A table of an analysis, with its notes."""
    table = Table(title=printable(result.title))
    for index, name in enumerate(result.header):
        table.add_column(printable(name), justify="right" if index else "left")
    for section in result.sections:
        for row in section.rows:
            table.add_row(*map(printable, row))
        table.add_section()
    STDOUT.print(table)
    for note in result.notes:
        print(printable(note))

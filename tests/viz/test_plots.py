"""Plots: every number has its line or bar, and no name becomes a formula."""

import math
from pathlib import Path

from matplotlib.axes import Axes
from PIL import Image

from transformatcher.viz.pictures import save_figure
from transformatcher.viz.plots import plot_ablation, plot_confidence, plot_costs, plot_curves, plot_scores


def metrics(epoch: int, *names: str) -> dict[str, object]:
    pck = {name: {"0.05": 10.0 * epoch + i, "0.1": 20.0 * epoch + i} for i, name in enumerate(names)}
    return {"pairs": 100 * epoch, "loss": 1 / epoch, "pck": pck}


def lines(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {str(line.get_label()): tuple(map(list, line.get_data())) for line in axes.lines}


def test_the_start_has_a_point_and_a_dotted_line_but_no_loss(tmp_path: Path):
    """Its PCK is what every later one is compared with."""
    start = {"pairs": 0, "loss": None, "pck": {"a": {"0.05": 5.0, "0.1": 30.0}}}
    figure = plot_curves([start, metrics(1, "a")])
    left, right = figure.axes
    ((pairs, loss),) = lines(left).values()
    assert pairs == [0, 100]
    assert math.isnan(loss[0])
    assert lines(right)["a @ 0.1"] == ([0, 100], [30, 20])
    assert [line.get_ydata()[0] for line in right.lines if line.get_linestyle() == ":"] == [30, 5]
    save_figure(figure, tmp_path / "curves.png")


def test_every_set_and_threshold_has_its_line(tmp_path: Path):
    figure = plot_curves([metrics(1, "a", "b"), metrics(2, "a", "b")], title="run")
    left, right = figure.axes
    (loss,) = lines(left).values()
    assert loss == ([100, 200], [1, 0.5])
    curves = lines(right)
    assert curves.keys() == {"a @ 0.1", "a @ 0.05", "b @ 0.1", "b @ 0.05"}
    assert curves["b @ 0.1"] == ([100, 200], [21, 41])
    assert curves["a @ 0.05"] == ([100, 200], [10, 20])
    legend = right.get_legend()
    assert legend is not None
    assert len(legend.get_texts()) == 4
    save_figure(figure, tmp_path / "curves.png")
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.size[0] > 2 * picture.size[1]


def test_a_run_of_no_epochs_has_empty_curves(tmp_path: Path):
    figure = plot_curves([])
    save_figure(figure, tmp_path / "curves.png")
    assert lines(figure.axes[1]) == {}


def test_confidence_with_absent_points_is_dashed():
    half, line = [0.0, 1.0], [0.0, 0.5, 1.0]
    curves = (half, half, line, line)
    figure = plot_confidence({"a": curves, "b": curves}, {"b": (line, line)})
    labels = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    assert labels == ["a", "b"]
    alone, solid, dashed, _ = figure.axes[1].lines
    assert [drawn.get_linestyle() for drawn in (alone, solid, dashed)] == ["-", "-", "--"]
    assert alone.get_color() != solid.get_color() == dashed.get_color()


def cost(backend: str, batch: int, matches: int, ms: float) -> dict[str, object]:
    what = {"mode": "infer", "backbone": "resnet50", "variant": "paper", "backend": backend, "batch": batch}
    return what | {"matches": matches, "ms_per_pair": ms, "peak_gib": 2 * ms, "floor_ms": 0.1}


def test_costs_of_one_size_are_bars_and_of_several_lines():
    """A line through a single number of matches shows nothing."""
    one = {"device": "cpu", "rows": [cost("fused", 1, 625, 2.0), cost("eager", 1, 625, 5.0)]}
    left, right = plot_costs(one).axes
    assert [bar.get_width() for bar in left.patches] == [2.0, 5.0]
    assert [bar.get_width() for bar in right.patches] == [4.0, 10.0]
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["fused, batch 1", "eager, batch 1"]
    left, _ = plot_costs(one | {"rows": [*one["rows"], cost("fused", 1, 1296, 3.0)]}).axes
    assert not left.patches
    assert [list(line.get_xdata()) for line in left.lines] == [[625, 1296], [625], [625, 1296]]  # fused, eager, floor


def scores(*categories: str) -> dict[str, object]:
    cells = {"0.05": {"per_pair": 40.0, "ci95": [35.0, 45.0]}, "0.1": {"per_pair": 60.0, "ci95": [50.0, 70.0]}}
    return {
        "pck": {"img": cells, "bbox": cells}, "per_category": {name: {"img": cells} for name in categories},
        "frame": "240 × 240", "n_pairs": 3, "n_points": 12,
    }  # fmt: skip


def test_scores_by_tolerance_and_by_category():
    figure = plot_scores(scores("cat", "dog"), "img", "0.1", title="mine")
    curve, bars = figure.axes
    assert lines(curve)["bbox"] == ([0.05, 0.1], [40, 60])
    assert [bar.get_height() for bar in bars.patches] == [60, 60]
    assert [tick.get_text() for tick in bars.get_xticklabels()] == ["cat", "dog"]
    assert figure.get_suptitle() == "mine  (3 pairs, 12 points)"


def study(name: str, label: str) -> dict[str, object]:
    cells = {f"{name} @ {alpha}": {"mean": mean, "spread": 1.0} for alpha, mean in (("0.05", 40.0), ("0.1", 60.0))}
    return {"pck_thresholds": {name: "img"}, "rows": [{"label": label, **cells}, {"label": "not run"}]}


def test_a_study_has_a_panel_for_each_set_and_tolerance():
    fine, coarse = plot_ablation(study("val", "axial")).axes
    assert (fine.get_title(), coarse.get_title()) == ("val (img) @ 0.05", "val (img) @ 0.1")
    assert coarse.lines[0].get_xdata()[0] == 60
    assert [tick.get_text() for tick in fine.get_yticklabels()] == ["axial", "not run"]


def test_names_are_never_formulas(tmp_path: Path):
    name = r"$\bad{$"
    for index, figure in enumerate((
        plot_curves([metrics(1, name)], title=name), plot_scores(scores(name), "img", "0.1", title=name),
        plot_ablation(study(name, name)), plot_costs({"device": name, "rows": [cost(name, 1, 625, 2.0)]}),
        plot_costs({"device": name, "rows": [cost(name, 1, 625, 2.0), cost(name, 1, 1296, 3.0)]}),
    )):  # fmt: skip
        save_figure(figure, tmp_path / f"{index}.png")

"""Plots: every number has its line."""

from pathlib import Path

from matplotlib.axes import Axes
from PIL import Image

from transformatcher.viz.pictures import save_figure
from transformatcher.viz.plots import plot_confidence, plot_curves


def row(epoch: int, *names: str) -> dict[str, object]:
    pck = {name: {"0.05": 10.0 * epoch + i, "0.1": 20.0 * epoch + i} for i, name in enumerate(names)}
    return {"pairs": 100 * epoch, "loss": 1 / epoch, "pck": pck}


def lines(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {str(line.get_label()): tuple(map(list, line.get_data())) for line in axes.lines}


def test_every_set_and_threshold_has_its_line(tmp_path: Path):
    figure = plot_curves([row(1, "a", "b"), row(2, "a", "b")], title="run")
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

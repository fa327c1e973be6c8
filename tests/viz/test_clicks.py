"""Curves of clicks: one for each way of work, labelled at its end."""

from itertools import pairwise
from pathlib import Path
from typing import Any

from PIL import Image

from transformatcher.viz.clicks import plot_clicks
from transformatcher.viz.pictures import save_figure


def row(category: str, first: str, tolerance: float, clicks: list[int]) -> dict[str, Any]:
    return {
        "category": category, "first": first, "tolerance": tolerance, "photos": 3, "clicks": clicks,
        "by_hand": [5, 10, 15], "share": clicks[-1] / 15, "unreviewed": [{"clicks": 5, "found_share": 0.6}],
    }  # fmt: skip


def test_every_run_has_its_curve_and_label(tmp_path: Path):
    runs = [row("c$at$", "suggested", 0.1, [5, 6, 7]), row("c$at$", "random", 0.1, [5, 6, 7])]
    runs += [
        row("c$at$", "suggested", 0.05, [5, 8, 12]),
        *(row(f"k{i}", "suggested", 0.1, [5, 6, 9]) for i in range(4)),
    ]
    figure = plot_clicks({"runs": runs, "means": []}, "title")
    cat = figure.axes[0]
    assert [list(line.get_ydata()) for line in cat.lines] == [[0, 5, 10, 15], [0, 5, 6, 7], [0, 5, 6, 7], [0, 5, 8, 12]]
    assert len(figure.axes) == 8
    texts = {text.get_text() for text in cat.texts}
    assert {"by hand", "47% suggested ±0.1", "47% random ±0.1", "80% suggested ±0.05"} <= texts
    assert "one reference, no review: 5 clicks, finds 60%" in texts
    heights = sorted(text.xy[1] for text in cat.texts if hasattr(text, "xy"))
    assert min(b - a for a, b in pairwise(heights)) > 0.05  # no label covers another
    assert max(heights) <= 1.0
    save_figure(figure, tmp_path / "clicks.png")
    with Image.open(tmp_path / "clicks.png") as picture:
        assert picture.size[0] > picture.size[1]


def test_one_tolerance_needs_no_label_and_no_reference_no_note(tmp_path: Path):
    run = row("cat", "least_like", 0.1, [5, 6, 7]) | {"unreviewed": []}
    figure = plot_clicks({"runs": [run], "means": []})
    assert {text.get_text() for text in figure.axes[0].texts} == {"by hand", "47% least like"}
    save_figure(figure, tmp_path / "clicks.svg")

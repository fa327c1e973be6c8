"""The layout of photos and legends."""

import numpy as np
import pytest
from helpers.rendered import plain, rendered, words

from transformatcher.viz.canvas import (
    Canvas,
    Entry,
    arrange_rows,
    figure_width,
    fit_text,
    legend_height,
    mark_sample,
    number_colour,
    outline,
    place_labels,
    text_width,
)


def test_rows():
    assert arrange_rows([1.0, 1.5]) == [[1.0, 1.5]]
    assert arrange_rows([10.0, 18.0]) == [[10.0], [18.0]]  # panoramas, one below the other
    assert arrange_rows([1.0, 1.0, 1.0, 1.0]) == [[1.0] * 4]


def test_text_is_cut_to_its_room():
    assert fit_text("cat_a.jpg", 3.0) == "cat_a.jpg"
    cut = fit_text("a very long name of a photo that goes on and on.jpeg", 1.5)
    assert cut.startswith("a very")
    assert cut.endswith(".jpeg")
    assert text_width(cut) <= 1.5
    assert fit_text("two\nlines", 3.0) == "two lines"
    assert len(fit_text("anything", 0.01)) == 3
    assert text_width("猫") > text_width("c")


def test_widths_are_not_underestimated():
    """Names are placed by an estimate of their width; real ones must not be much wider."""
    canvas = Canvas(["a", "b"], [plain(10, 10)] * 2, strip=0.5)
    samples = ("left eye · 0.98", "IMG_20230401_123456.JPG", "WWWMMM", "no match (< 0.5): 4 of 60")
    for text in samples:
        canvas.text(1.0, 1.0, text)
    rendered(canvas.figure)
    for text in canvas.figure.texts[-len(samples) :]:
        real = text.get_window_extent().width / canvas.figure.dpi
        assert real <= text_width(text.get_text()) * (1.75 if text.get_text() == "WWWMMM" else 1.08)


class TestLabels:
    BOUNDS = (0.0, 0.0, 400.0, 300.0)
    NONE = np.zeros((0, 2))

    def test_sides(self):
        points = np.array([[200.0, 150.0]])
        for side, sign in (("left", -1), ("right", 1)):
            (label,) = place_labels(points, ["nose"], self.BOUNDS, radius=5.0, side=side, avoid=self.NONE)
            assert sign * (label.x - 200) == 7
            assert label.y == 150
            assert label.ha != side  # the text begins or ends at the mark

    def test_at_the_border_the_other_side(self):
        point = np.array([[5.0, 150.0]])
        (label,) = place_labels(point, ["nose"], self.BOUNDS, radius=5.0, side="left", avoid=self.NONE)
        assert label.x > 5

    def test_lines_are_avoided(self):
        line = np.stack([np.linspace(200, 400, 50), np.full(50, 150.0)], axis=1)
        point = np.array([[200.0, 150.0]])
        (label,) = place_labels(point, ["nose"], self.BOUNDS, radius=5.0, side="right", avoid=line)
        assert (label.ha, label.x) == ("right", 193)

    def test_no_room(self):
        crowd = np.random.default_rng(0).uniform(190, 210, (20, 2))
        assert place_labels(crowd, ["a name"] * 20, self.BOUNDS, radius=5.0, side="left", avoid=self.NONE) is None


def test_legend_flows_into_columns():
    entries = [Entry(f"entry {index}", mark_sample("o", "red"), str(index)) for index in range(20)]
    width = figure_width([plain(100, 100)] * 2)
    height = legend_height(entries, width)
    assert height < legend_height(entries, width / 2)
    assert legend_height([], width) == 0
    canvas = Canvas(["a", "b"], [plain(100, 100)] * 2, strip=height)
    canvas.legend(entries)
    _, pixels = rendered(canvas.figure).shape[:2]
    boxes = [text.get_window_extent() for text in canvas.figure.texts if text.get_text().startswith("entry")]
    assert len(boxes) == 20
    assert all(box.x0 >= 0 and box.x1 <= pixels and box.y0 >= 0 and box.y1 <= height * 110 for box in boxes)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_contrast():
    assert number_colour("yellow") == "black"
    assert number_colour("navy") == number_colour("none") == "white"
    assert [outline(colour, 1.0)[0]._gc["foreground"] for colour in ("yellow", "navy")] == ["black", "white"]


def test_points_of_the_figure():
    canvas = Canvas(["a", "b"], [plain(100, 200), plain(100, 100)], strip=0.5)
    left, bottom, right, top = canvas.bounds(canvas.axes[0])
    corners = canvas.to_points(canvas.axes[0], np.array([[0.0, 100.0], [200.0, 0.0]]))
    np.testing.assert_allclose(corners, [[left, bottom], [right, top]], atol=1e-6)
    assert (right - left) / (top - bottom) == pytest.approx(2)
    assert words(canvas.figure) == "a | b"

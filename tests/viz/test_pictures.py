"""Pictures of errors, flow, heat maps and warps: what is drawn is what was measured, at any size of image."""

import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from helpers.rendered import colour_at, marks_at, near, plain, rendered, some_matches, words
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Ellipse

from transformatcher.errors import InputError
from transformatcher.viz.canvas import QUALITATIVE
from transformatcher.viz.matches import draw_matches
from transformatcher.viz.pictures import (
    draw_errors,
    draw_flow,
    draw_heatmap,
    draw_warp,
    position_colours,
    save_figure,
)


def test_errors_join_prediction_and_truth_in_the_keypoints_colour():
    src, trg = plain(100, 100), plain(200, 200)
    keypoints = np.array([[20.0, 20.0], [50.0, 50.0], [80.0, 30.0]])
    true = 2 * keypoints
    predicted = true + np.array([[30.0, 0.0], [0.0, 21.0], [0.0, 0.0]])
    figure = draw_errors(src, trg, keypoints, predicted, true, radius_px=21.0)
    left, right = figure.axes
    for index in range(3):
        colour = tuple(255 * np.array(to_rgb(QUALITATIVE[index])))
        assert near(colour_at(figure, left, tuple(keypoints[index]), (-5.5, 0)), colour)
        line = right.lines[index]
        assert line.get_xydata().tolist() == [predicted[index].tolist(), true[index].tolist()]
        assert near(255 * np.array(to_rgb(line.get_color())), colour, 0)
    assert near(colour_at(figure, right, (70, 40)), tuple(255 * np.array(to_rgb(QUALITATIVE[0]))))  # the cross
    middle = colour_at(figure, right, (53.5, 40))
    assert near(middle, tuple(255 * np.array(to_rgb(QUALITATIVE[0]))))  # the line
    assert {patch.get_radius() for patch in right.patches if isinstance(patch, Circle)} == {21}
    assert "within 21 pixels: 2 of 3" in words(figure)
    stretched = draw_errors(src, trg, keypoints, predicted, true, radius_px=(31.0, 20.0))
    assert "within 31 × 20 pixels: 2 of 3" in words(stretched)
    rings = {(patch.width, patch.height) for patch in stretched.axes[1].patches if isinstance(patch, Ellipse)}
    assert rings == {(62, 40)}
    without = draw_errors(src, trg, keypoints, predicted, true)
    assert not without.axes[1].patches
    assert "within" not in words(without)


def test_more_keypoints_than_colours_change_shape():
    points = np.stack([np.linspace(5, 95, 10), np.linspace(5, 95, 10)], axis=1)
    figure = draw_errors(plain(100, 100), plain(100, 100), points, points, points)
    shapes = [marks_at(figure, figure.axes[0], point)[0].get_marker() for point in points]
    assert shapes == ["o"] * 7 + ["s"] * 3


def test_flow_paints_the_source_with_the_colours_of_the_places_it_goes_to():
    src, trg = plain(60, 90), plain(120, 80)
    cells = np.stack(np.meshgrid(np.linspace(-1, 1, 9), np.linspace(-1, 1, 7)), axis=-1)
    figure = draw_flow(src, trg, -cells)  # turned by half a circle
    left, right = figure.axes
    for x, y in ((0.15, 0.13), (0.15, 0.87), (0.85, 0.13), (0.67, 0.33)):  # off the lines
        here = colour_at(figure, left, (90 * (1 - x), 60 * (1 - y)))
        there = colour_at(figure, right, (80 * x, 120 * y))
        assert near(here, tuple(there), 6)
        expected = 0.7 * 255 * position_colours(np.array([2 * x - 1, 2 * y - 1])) + 0.3 * 120
        assert near(there, tuple(expected), 6)


def test_flow_fades_where_it_is_unsure():
    cells = np.stack(np.meshgrid(np.linspace(-1, 1, 9), np.linspace(-1, 1, 9)), axis=-1)
    confidence = np.repeat(np.linspace(0, 0.5, 9)[None], 9, axis=0)
    image = plain(100, 100, 0)
    relative = draw_flow(image, image, cells, confidence)
    absolute = draw_flow(image, image, cells, confidence, calibrated=True)
    assert "white: low confidence" in words(relative)
    pale, full, half = (
        colour_at(figure, figure.axes[0], (x, 86)) for figure, x in ((relative, 2), (relative, 99), (absolute, 99))
    )
    assert pale.min() > 200
    assert near(full, tuple(colour_at(relative, relative.axes[1], (99, 86))))
    assert full.min() + 50 < half.min() < 200
    rendered(draw_flow(image, image, np.zeros((5, 5, 2)), np.zeros((5, 5))))  # nothing moves, nothing is sure


@pytest.mark.parametrize(
    "seen_as",
    [
        np.eye(3),
        # Machado, Oliveira and Fernandes (2009): deuteranopia, protanopia; in linear light
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    ],
)
def test_places_differ_in_colour_for_every_kind_of_eyes(seen_as):
    rng = np.random.default_rng(0)
    one, other = rng.uniform(-1, 1, (2, 2000, 2))
    apart = np.linalg.norm(one - other, axis=1)
    linear = [position_colours(places) ** 2.2 @ np.array(seen_as).T for places in (one, other)]
    seen = [colours.clip(0, 1) ** (1 / 2.2) for colours in linear]
    difference = np.linalg.norm(seen[0] - seen[1], axis=1)
    assert (difference / apart).min() > 0.12
    assert np.median(difference / apart) > 0.3


def test_heat_lies_where_the_probability_is():
    src, trg = plain(50, 50), plain(100, 200)
    distribution = np.zeros((11, 21))
    distribution[8, 4], distribution[8, 10] = 0.75, 0.25  # at (40, 80) and (100, 80)
    figure = draw_heatmap(src, trg, (25.0, 10.0), distribution)
    left, right, bar = figure.axes
    assert near(colour_at(figure, left, (25, 10)), tuple(255 * np.array(to_rgb(QUALITATIVE[1]))))
    assert [mark.get_marker() for mark in marks_at(figure, right, (40, 80))] == ["X"] * 2  # the peak, with two rims
    assert [mark.get_marker() for mark in marks_at(figure, right, (55, 80))] == ["o"] * 2  # the expectation
    assert colour_at(figure, right, (100, 80)).sum() > 1.3 * colour_at(figure, right, (150, 30)).sum()
    assert colour_at(figure, right, (150, 30)).max() < 100  # cold: the photo, darkened
    assert bar.get_xlim()[1] == pytest.approx(0.75)
    assert "point | peak | expectation" in words(figure)


def test_warp_shows_four_pictures_and_their_blend():
    src, trg, warped = plain(30, 40, 10), plain(60, 60, 50), plain(60, 60, 150)
    mask = np.zeros((60, 60), dtype=bool)
    mask[:, :30] = True
    figure = draw_warp(src, trg, warped, mask, "title")
    assert words(figure) == "source | target | source, warped | blend | title"
    values = [[colour_at(figure, axis, (x, 15))[0] for x in (10, 35)] for axis in figure.axes]
    assert values == [[10, 10], [50, 50], [150, 232], [100, 50]]
    whole = draw_warp(src, trg, warped)
    assert colour_at(whole, whole.axes[3], (45, 15))[0] == 100


SIZES = {
    "tiny": ((32, 32), (32, 32)),
    "one pixel": ((1, 1), (2, 3)),
    "huge": ((4000, 6000), (40, 30)),
    "panoramas": ((100, 1000), (50, 900)),
    "crossed": ((100, 2000), (2000, 100)),
    "towers": ((900, 30), (900, 30)),
}


def all_pictures(src: np.ndarray, trg: np.ndarray) -> dict[str, Callable[[], Figure]]:
    matches = some_matches(src, trg, [0.2, 0.5, 0.9])
    flow = np.zeros((4, 6, 2)) + np.linspace(-1, 1, 6)[None, :, None]
    return {
        "matches": lambda: draw_matches(src, trg, matches, "title", threshold=0.3),
        "errors": lambda: draw_errors(src, trg, matches.keypoints0, matches.keypoints1 * 0.9, matches.keypoints1),
        "flow": lambda: draw_flow(src, trg, flow, np.full((4, 6), 0.5)),
        "heatmap": lambda: draw_heatmap(src, trg, matches.keypoints0[0], np.full((3, 5), 1 / 15)),
        "warp": lambda: draw_warp(src, trg, trg),
    }


@pytest.mark.parametrize("kind", ["matches", "errors", "flow", "heatmap", "warp"])
@pytest.mark.parametrize("name", SIZES)
def test_any_size_makes_a_picture_of_a_sensible_size(name: str, kind: str):
    src, trg = (plain(*size) for size in SIZES[name])
    figure = all_pictures(src, trg)[kind]()
    height, width = rendered(figure).shape[:2]
    assert 500 <= width <= 1200
    assert 200 <= height <= 1200
    panels = figure.axes[: 4 if kind == "warp" else 2]
    boxes = [axis.get_window_extent() for axis in panels]
    for box, image in zip(boxes, (src, trg, trg, trg), strict=False):
        assert box.width / box.height == pytest.approx(image.shape[1] / image.shape[0], rel=0.02)  # nothing squeezed
        assert box.x0 >= 0
        assert box.x1 <= width
        assert box.y0 >= 0
        assert box.y1 <= height
        assert max(box.width, box.height) >= 100
    extents = [text.get_window_extent() for text in figure.texts]
    assert not any(a.overlaps(b) for i, a in enumerate(extents) for b in extents[:i]), [
        text.get_text() for text in texts
    ]
    assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in extents)


def test_a_picture_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(InputError, match=r"taken\.png: cannot be written"):
        save_figure(Figure(), tmp_path / "taken.png")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.png"]


def test_names_in_any_script_are_drawn_without_a_warning(tmp_path: Path):
    figure = draw_warp(plain(40, 40), plain(40, 40), plain(40, 40), names=("猫.jpg", "$\\bad{$.jpg"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(figure, tmp_path / "a.png")


def test_an_interruption_leaves_the_old_picture(tmp_path: Path):
    class Interrupted(Figure):
        def savefig(self, file: BytesIO, **_: object) -> None:
            file.write(b"half of")
            raise KeyboardInterrupt

    path = tmp_path / "picture.png"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        save_figure(Interrupted(), path)
    assert [(left.name, left.read_bytes()) for left in tmp_path.iterdir()] == [("picture.png", b"old")]

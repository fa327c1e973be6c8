"""Pictures: what is drawn is what was found or measured, at any size of image."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, ConnectionPatch, Ellipse

from transformatcher.errors import InputError
from transformatcher.schema import Matches
from transformatcher.viz.pictures import (
    QUALITATIVE,
    draw_errors,
    draw_flow,
    draw_heatmap,
    draw_matches,
    draw_warp,
    position_colours,
    save_figure,
)

YELLOW, NAVY = (254, 232, 56), (0, 34, 78)  # the ends of cividis


def plain(h: int, w: int, value: int = 120) -> np.ndarray:
    return np.full((h, w, 3), value, dtype=np.uint8)


@lru_cache(maxsize=4)
def rendered(figure: Figure) -> np.ndarray:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def colour_at(
    figure: Figure, axis: Axes, point: tuple[float, float], shift: tuple[float, float] = (0, 0)
) -> np.ndarray:
    """Of the rendered figure, at a point of an image, moved by some pixels of the figure (x, y upwards)."""
    picture = rendered(figure)
    x, y = axis.transData.transform(point) + shift
    return picture[int(picture.shape[0] - y), int(x)].astype(int)


def near(colour: np.ndarray, expected: tuple[float, ...], tolerance: int = 12) -> bool:
    return bool(np.abs(colour - np.array(expected)).max() <= tolerance)


def some_matches(src: np.ndarray, trg: np.ndarray, confidence: list[float]) -> Matches:
    shares = np.stack([np.linspace(0.2, 0.8, len(confidence)), np.linspace(0.3, 0.7, len(confidence))], axis=1)
    sides = [np.array([image.shape[1], image.shape[0]]) for image in (src, trg)]
    return Matches(shares * sides[0], shares * sides[1], np.array(confidence))


def lines_of(figure: Figure) -> list[ConnectionPatch]:
    return [artist for artist in figure.artists + figure.patches if isinstance(artist, ConnectionPatch)]


def words(figure: Figure) -> str:
    texts = [text for legend in figure.legends for text in legend.get_texts()]
    return " | ".join(text.get_text() for text in texts + figure.texts)


def test_matches_are_coloured_on_the_scale_of_their_kind():
    src, trg = plain(100, 150), plain(80, 60)
    matches = some_matches(src, trg, [0.0, 0.25, 0.5])
    for calibrated, label, end in ((True, "confidence", 1.0), (False, "sharpness of the match", 0.475)):
        figure = draw_matches(src, trg, matches, "title", calibrated=calibrated)
        left, right, bar = figure.axes
        assert bar.get_xlabel() == label
        assert bar.get_xlim()[1] == pytest.approx(end)  # absolute, or the 95th percentile
        assert len(lines_of(figure)) == 3
        for axis, points in ((left, matches.keypoints0), (right, matches.keypoints1)):
            assert near(colour_at(figure, axis, tuple(points[0]), (-4, 0)), NAVY)  # beside the number, within the rim
        surest = colour_at(figure, right, tuple(matches.keypoints1[2]), (-4, 0))
        assert near(surest, YELLOW) == (not calibrated)


def test_less_sure_than_the_threshold_is_no_match():
    src, trg = plain(100, 150), plain(80, 60)
    matches = some_matches(src, trg, [0.9, 0.1, 0.3])
    figure = draw_matches(src, trg, matches, calibrated=True, threshold=0.3)
    left, right = figure.axes[:2]
    assert len(lines_of(figure)) == 2
    assert "no match: 1 of 3 under 0.3" in words(figure)
    lost0, lost1 = tuple(matches.keypoints0[1]), tuple(matches.keypoints1[1])
    rims = [c for c in left.collections if tuple(c.get_offsets()[0]) == lost0]
    assert len(rims) == 2
    assert not any(np.asarray(c.get_facecolor())[:, 3:].any() for c in rims)  # hollow: the photo shows
    x, y = left.transData.transform(lost0).astype(int)
    picture = rendered(figure)
    assert picture[-y - 12 : -y + 12, x - 12 : x + 12].min() < 20  # with a rim, black and white
    assert picture[-y - 12 : -y + 12, x - 12 : x + 12].max() > 240
    assert near(colour_at(figure, right, lost1), (120, 120, 120))


def test_many_or_no_matches():
    src = plain(90, 90)
    assert len(lines_of(draw_matches(src, src, some_matches(src, src, [0.5] * 40)))) == 40
    rendered(draw_matches(src, src, Matches(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0)), threshold=0.5))


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
    axis = draw_errors(plain(100, 100), plain(100, 100), points, points, points).axes[0]
    shapes = [len(collection.get_paths()[0].vertices) for collection in axis.collections]
    assert shapes[0] != shapes[7]


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
    assert "pale: unsure" in words(relative)
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
    marks = {tuple(np.round(c.get_offsets()[0], 6)) for c in right.collections}
    assert marks == {(40, 80), (55, 80)}  # the peak and the expectation
    assert colour_at(figure, right, (100, 80)).sum() > 1.3 * colour_at(figure, right, (150, 30)).sum()
    assert colour_at(figure, right, (150, 30)).max() < 100  # cold: the photo, darkened
    assert bar.get_xlim()[1] == pytest.approx(0.75)
    assert "peak | expectation" in words(figure)


def test_warp_shows_four_pictures_and_their_blend():
    src, trg, warped = plain(30, 40, 10), plain(60, 60, 50), plain(60, 60, 150)
    mask = np.zeros((60, 60), dtype=bool)
    mask[:, :30] = True
    figure = draw_warp(src, trg, warped, mask, "title")
    assert [axis.get_title() for axis in figure.axes] == ["source", "target", "warped", "both"]
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
    names = [axis.title.get_window_extent() for axis in panels]
    assert not any(a.overlaps(b) for i, a in enumerate(names) for b in names[:i])


def test_mirrored_views_of_an_image_are_drawn():
    image = plain(2000, 1500)[:, ::-1]
    rendered(draw_matches(image, image, some_matches(image, image, [0.5])))


def test_a_picture_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(InputError, match=r"taken\.png: cannot be written"):
        save_figure(Figure(), tmp_path / "taken.png")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.png"]


def test_an_interruption_leaves_the_old_picture(tmp_path: Path):
    class Interrupted(Figure):
        def savefig(self, path: Path, **_: object) -> None:
            path.write_bytes(b"half of")
            raise KeyboardInterrupt

    path = tmp_path / "picture.png"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        save_figure(Interrupted(), path)
    assert [(left.name, left.read_bytes()) for left in tmp_path.iterdir()] == [("picture.png", b"old")]

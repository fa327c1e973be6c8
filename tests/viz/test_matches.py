"""Pictures of matches: confidence can be told apart, names can be read, at any number of points."""

import numpy as np
import pytest
from helpers.propagation import POINTS, make_photo
from helpers.rendered import colour_at, lines_of, marks_at, near, plain, rendered, some_matches, words
from helpers.two_passes import two_pass_matcher
from matplotlib.colors import to_rgb
from PIL import ImageOps

from transformatcher.schema import Matches
from transformatcher.viz.matches import BANDS, ConfidenceScale, draw_matches

NAMES = ("left eye", "right eye", "nose")


def test_matches_are_coloured_on_the_scale_of_their_kind():
    src, trg = plain(100, 150), plain(80, 60)
    for calibrated, confidence, label, ends in (
        (True, [0.5, 0.75, 1.0], "confidence", (0.5, 1)),
        (False, [0.0, 0.25, 0.5], "sharpness of the match", (0, 0.475)),  # the 95th percentile
    ):
        matches = some_matches(src, trg, confidence)
        figure = draw_matches(src, trg, matches, "title", calibrated=calibrated)
        left, right, bar = figure.axes
        assert bar.get_xlabel() == label
        assert bar.get_xlim() == pytest.approx(ends)
        assert len(lines_of(figure)) == 3
        scale = ConfidenceScale(matches.confidence, calibrated=calibrated)
        for index in range(3):
            expected = tuple(255 * np.array(scale.colour(confidence[index])))
            for axis, points in ((left, matches.keypoints0), (right, matches.keypoints1)):
                assert near(colour_at(figure, axis, tuple(points[index]), (0, -6)), expected), index  # below the number


@pytest.mark.parametrize(
    "seen_as",
    [
        np.eye(3),
        # Machado, Oliveira and Fernandes (2009): deuteranopia, protanopia; in linear light
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    ],
)
def test_confidences_that_occur_look_different_to_every_kind_of_eyes(seen_as):
    scale = ConfidenceScale(np.array([1.0]), calibrated=True)
    colours = np.array([scale.colour(value) for value in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)])
    seen = (colours**2.2 @ np.array(seen_as).T).clip(0, 1) ** (1 / 2.2)
    lightness = seen @ (0.299, 0.587, 0.114)
    assert (np.diff(lightness) > 0.05).all()
    assert (np.linalg.norm(np.diff(seen, axis=0), axis=1) > 0.1).all()
    assert np.linalg.norm(seen[2] - seen[5]) > 0.5  # 0.7 and 1


def test_confidence_shows_in_shapes_and_lines_as_well():
    src = plain(100, 100)
    matches = some_matches(src, src, [0.95, 0.9, 0.8, 0.7, 0.6])
    figure = draw_matches(src, src, matches, calibrated=True)
    expected = [BANDS[0]] * 2 + [BANDS[1]] * 2 + [BANDS[2]]
    for point, band in zip(matches.keypoints0, expected, strict=True):
        assert marks_at(figure, figure.axes[0], point)[0].get_marker() == band.shape
    lines = lines_of(figure)[::-1]  # the most confident are drawn last
    assert [line.get_linewidth() for line in lines] == [band.width for band in expected]
    assert [line.get_alpha() for line in lines] == [band.alpha for band in expected]
    assert len({str(line.get_linestyle()) for line in lines}) == 3
    assert "0.9 to 1 | 0.7 to 0.9 | 0.5 to 0.7" in words(figure)


def test_below_the_threshold_is_no_match():
    src, trg = plain(100, 150), plain(80, 60)
    matches = some_matches(src, trg, [0.9, 0.1, 0.3])
    figure = draw_matches(src, trg, matches, calibrated=True, threshold=0.3)
    left, right = figure.axes[:2]
    assert len(lines_of(figure)) == 2
    assert "no match (< 0.3): 1 of 3" in words(figure)
    lost0, lost1 = tuple(matches.keypoints0[1]), tuple(matches.keypoints1[1])
    rims = marks_at(figure, left, lost0)
    assert [rim.get_markeredgecolor() for rim in rims] == ["black", "white"]
    assert {rim.get_markerfacecolor() for rim in rims} == {"none"}  # hollow: the photo shows
    x, y = left.transData.transform(lost0).astype(int)
    picture = rendered(figure)
    assert picture[-y - 12 : -y + 12, x - 12 : x + 12].min() < 20
    assert picture[-y - 12 : -y + 12, x - 12 : x + 12].max() > 240
    assert not marks_at(figure, right, lost1)
    assert near(colour_at(figure, right, lost1), (120, 120, 120))


def test_titles_are_the_names_of_the_photos():
    src, trg = plain(100, 150), plain(80, 60)
    long = f"{'a' * 80}-front$x$.jpg"
    figure = draw_matches(src, trg, some_matches(src, trg, [0.5]), names=("cat_a.jpg", long))
    rendered(figure)
    assert words(figure).startswith("cat_a.jpg | aaaa")
    assert "…" in words(figure)
    assert "-front$x$.jpg" in words(figure)  # no formula
    assert words(draw_matches(src, trg, some_matches(src, trg, [0.5]))).startswith("source | target | ")


def test_names_stand_beside_their_points_where_they_fit():
    src, trg = plain(300, 400), plain(300, 300)
    matches = some_matches(src, trg, [0.95, 0.3, 0.72])
    figure = draw_matches(src, trg, matches, point_names=NAMES, calibrated=True, threshold=0.5)
    shown = words(figure).split(" | ")
    assert {"left eye", "right eye (no match)", "nose", "left eye · 0.95", "nose · 0.72"} <= set(shown)
    assert "1" not in shown
    rendered(figure)
    boxes = {text.get_text(): text.get_window_extent() for text in figure.texts}
    for axis, index, name in ((0, 0, "left eye"), (0, 2, "nose"), (1, 0, "left eye · 0.95"), (1, 2, "nose · 0.72")):
        points = (matches.keypoints0, matches.keypoints1)[axis][index]
        x, y = figure.axes[axis].transData.transform(points)
        assert abs((boxes[name].y0 + boxes[name].y1) / 2 - y) < 25
        assert boxes[name].x0 - 12 < x < boxes[name].x1 + 12


@pytest.mark.parametrize("n", [1, 12, 60])
def test_names_that_do_not_fit_are_listed_with_their_numbers(n: int):
    src, trg = plain(300, 400), plain(100, 30)  # no room on the target
    matches = some_matches(src, trg, np.linspace(1, 0.4, n).tolist())
    names = [f"keypoint {i}" for i in range(n)]
    figure = draw_matches(src, trg, matches, point_names=names, calibrated=True, threshold=0.5)
    shown = words(figure).split(" | ")
    assert shown.count("1") == 3  # on both photos and in the legend
    assert {"keypoint 0 · 1.00", f"keypoint {n - 1} · {matches.confidence[-1]:.2f}"} <= set(shown)
    height, width = rendered(figure).shape[:2]
    texts = [text for text in figure.texts if text.get_text().startswith("keypoint")]
    boxes = [text.get_window_extent() for text in texts]
    assert len(boxes) == n
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(box.x1 <= width and box.y0 >= 0 for box in boxes)
    assert height < 1400


def test_names_that_are_only_numbers_are_no_names():
    src = plain(300, 400)
    matches = some_matches(src, src, [0.9, 0.8])
    bare, numbers = (words(draw_matches(src, src, matches, point_names=names)) for names in ((), ("1", "2")))
    assert bare == numbers


def test_numbers_can_be_read():
    """At the size of a page, 900 pixels wide, a digit is 8 pixels high or more."""
    src = plain(300, 400)
    for n in (1, 25, 60):
        figure = draw_matches(src, src, some_matches(src, src, [0.9] * n))
        pixels = rendered(figure)
        sizes = [text.get_fontsize() for text in figure.texts if text.get_text() == "1"]
        assert len(sizes) == 2
        assert sizes[0] / 72 * figure.dpi * 900 / pixels.shape[1] > 7.9


def test_many_or_no_matches():
    src = plain(90, 90)
    many = draw_matches(src, src, some_matches(src, src, [0.5] * 100))
    assert len(lines_of(many)) == 100
    assert {line.get_linestyle() for line in lines_of(many)} == {"solid"}
    assert "100" not in words(many).split(" | ")
    rendered(draw_matches(src, src, Matches(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0)), threshold=0.5))


def test_mirrored_views_of_an_image_are_drawn():
    image = plain(2000, 1500)[:, ::-1]
    rendered(draw_matches(image, image, some_matches(image, image, [0.5])))


def test_lines_are_rimmed_against_light_and_dark():
    src = plain(100, 100)
    for confidence, rim in ((1.0, "black"), (0.5, "white")):
        figure = draw_matches(src, src, some_matches(src, src, [confidence]), calibrated=True)
        (line,) = lines_of(figure)
        assert line.get_path_effects()[0]._gc["foreground"] == rim
        assert to_rgb(line.get_edgecolor()) == pytest.approx(
            ConfidenceScale(np.ones(1), calibrated=True).colour(confidence)
        )


@pytest.mark.parametrize("point_names", [(), tuple(f"a keypoint with a long name, {i}" for i in range(12))])
def test_notes_stand_below_everything_else(point_names):
    src, trg = plain(300, 400), plain(100, 30)
    matches = some_matches(src, trg, [0.9] * 12)
    notes = ["the first note", "the second note"]
    figure = draw_matches(src, trg, matches, "title", point_names=point_names, calibrated=True, notes=notes)
    height = rendered(figure).shape[0]
    boxes = {text.get_text(): text.get_window_extent() for text in figure.texts}
    (first, second), others = [boxes.pop(note) for note in notes], boxes.values()
    assert 0 <= second.y0 < second.y1 <= first.y0 < first.y1 < height
    assert first.y1 <= min(box.y0 for box in others)
    assert first.y1 <= figure.axes[2].get_tightbbox().y0  # the colour bar with its label


def test_what_a_pair_shows_is_written_below():
    photo = make_photo(0)
    sure, unsure = two_pass_matcher(), two_pass_matcher(same_kind_logit=-2.0)
    points = [list(xy) for xy in POINTS.values()]
    mirrored = "mirrored: the objects face opposite ways"
    other = "probably not the same kind of thing (probability of the same: 0.12)"
    for matcher, target, notes in (
        (sure, photo, set()),
        (sure, ImageOps.mirror(photo), {mirrored}),
        (unsure, ImageOps.mirror(photo), {mirrored, other}),
    ):
        shown = words(matcher.match(photo, target, points).draw())
        assert {note for note in (mirrored, other) if note in shown} == notes

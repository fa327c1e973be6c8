"""Contact sheets: which photo comes first, how many fit on a page, and what is drawn."""

from pathlib import Path

import numpy as np
import pytest
from conftest import write_image

from transformatcher.images import image_size
from transformatcher.viz.contact_sheet import (
    PAGE_HEIGHT,
    PAGE_WIDTH,
    PredictedObject,
    PredictedPhoto,
    arrange_pages,
    draw_contact_sheets,
    draw_page,
)
from transformatcher.viz.matches import ConfidenceScale


def an_object(*confidence: float, category: str = "cat") -> PredictedObject:
    n = len(confidence)
    names = tuple(f"point {row}" for row in range(n))
    points, values = np.arange(2.0 * n).reshape(n, 2) + 10, np.array(confidence)
    return PredictedObject(category, names, points, values, values >= 0.5, [(0, n - 1)])


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    return write_image(tmp_path / "a.png")


def predicted(path: Path, name: str, *confidence: float, notes: tuple[str, ...] = ()) -> PredictedPhoto:
    items = [an_object(*confidence)] if confidence else []
    return PredictedPhoto(path, name, image_size(path), items, notes)


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


class TestPages:
    @pytest.mark.parametrize("ratios", [[1.5] * 100, [0.5, 2.0] * 50, [1e-3, 1e3] * 9, [1.5]])
    def test_each_photo_once_in_order_and_within_the_page(self, ratios: list[float]):
        pages = arrange_pages(ratios)
        assert [ratio for page in pages for row in page for ratio in row] == np.clip(ratios, 0.45, 3.5).tolist()
        for page in pages:
            heights = [min((PAGE_WIDTH - 0.1 * (len(row) + 1)) / sum(row), 2.7) for row in page]
            assert min(heights) > 2
            assert sum(heights) < PAGE_HEIGHT
            assert all(h * sum(row) < PAGE_WIDTH for h, row in zip(heights, page, strict=True))

    def test_several_pages_are_numbered(self, photo: Path, tmp_path: Path):
        photos = [predicted(photo, f"{number}.png", 0.9, 0.8) for number in range(60)]
        files = draw_contact_sheets(photos, tmp_path / "sheets" / "s.png", calibrated=True)
        assert [file.name for file in files] == [f"s-{number}.png" for number in range(1, len(files) + 1)]
        assert len(files) > 1
        assert all(file.is_file() for file in files)

    def test_no_photo(self, tmp_path: Path):
        assert draw_contact_sheets([], tmp_path / "s.png", calibrated=True) == []
        assert not list(tmp_path.iterdir())


class TestPage:
    def page(self, photos: list[PredictedPhoto]):
        (rows,) = arrange_pages([one.size[1] / one.size[0] for one in photos])
        return draw_page(photos, rows, ConfidenceScale(np.array([0.6, 0.9]), calibrated=True), "a title")

    def test_least_sure_first(self, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        drawn: list[str] = []
        monkeypatch.setattr(
            "transformatcher.viz.contact_sheet.draw_page",
            lambda photos, *rest: drawn.extend(one.name for one in photos) or draw_page(photos, *rest),
        )
        values = {"sure": (0.9, 0.9), "one lost": (0.9, 0.2), "nothing": (), "unsure": (0.6, 0.6)}
        photos = [predicted(photo, name, *confidence) for name, confidence in values.items()]
        draw_contact_sheets(photos, tmp_path / "s.png", calibrated=True)
        assert drawn == ["nothing", "one lost", "unsure", "sure"]

    def test_what_is_written(self, photo: Path):
        figure = self.page([predicted(photo, "x.png", 0.9, 0.7, 0.1, notes=("odd",)), predicted(photo, "y.png")])
        assert {"x.png", "0.57", "odd · 1 not found", "y.png", "nothing found", "a title"} <= set(texts(figure))
        assert {"point 0", "point 1", "point 2"} <= set(texts(figure))
        assert texts(figure).count("1") == 2  # in the mark, and in the legend
        assert texts(figure).count("3") == 1  # not found

    def test_shapes_tell_the_confidence(self, photo: Path):
        figure = self.page([predicted(photo, "x.png", 0.95, 0.75, 0.55)])
        marks = [line for line in figure.artists if line.get_transform() != figure.dpi_scale_trans]
        assert {line.get_marker() for line in marks} == {"o", "s", "D"}

    def test_many_keypoints_have_no_numbers(self, photo: Path):
        figure = self.page([predicted(photo, "x.png", *[0.9] * 41)])
        assert "1" not in texts(figure)
        assert "point 1" not in texts(figure)

    def test_categories_are_named_where_there_are_several(self, photo: Path):
        one = PredictedPhoto(photo, "x.png", image_size(photo), [an_object(0.9), an_object(0.9, category="dog")])
        assert {"cat: point 0", "dog: point 0"} <= set(texts(self.page([one])))

    def test_points_lie_where_they_were_found(self, tmp_path: Path):
        """A photo larger than what a page shows is reduced, and its points with it."""
        path = write_image(tmp_path / "large.png", size=(1200, 900))
        item = PredictedObject("cat", ("a",), np.array([[900.0, 1200.0]]), np.array([0.9]), np.array([True]))
        figure = self.page([PredictedPhoto(path, "large.png", image_size(path), [item])])
        mark = next(line for line in figure.artists if line.get_transform() != figure.dpi_scale_trans)
        (axis, *_) = figure.axes
        corner = mark.get_transform().transform((mark.get_xdata()[0], mark.get_ydata()[0]))
        np.testing.assert_allclose(corner, axis.transAxes.transform((1, 0)), atol=1e-6)

    def test_a_photo_that_is_gone(self, photo: Path):
        one = predicted(photo, "x.png", 0.9)
        photo.unlink()
        assert "cannot be read any more" in texts(self.page([one]))

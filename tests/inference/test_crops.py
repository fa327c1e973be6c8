"""Boxes around points and objects, and coordinates inside them."""

import numpy as np
import pytest
import torch

from transformatcher.coords import px_to_norm
from transformatcher.inference.crops import CropFrame, box_around, enlargement, object_cells, object_extent

SIZE = (300, 400)  # (h, w)
BOXES = [(100, 50, 300, 150), (0, 0, 400, 300), (7, 11, 8, 300)]


def norm(*points_px: tuple[float, float]) -> np.ndarray:
    return px_to_norm(np.array(points_px, dtype=np.float64).reshape(-1, 2), SIZE)


class TestBoxAround:
    @pytest.mark.parametrize(
        ("points", "margin", "min_side", "box"),
        [
            ([(100, 100), (200, 150)], 0.0, 0.01, (100, 100, 200, 150)),
            ([(100, 100), (200, 150)], 0.2, 0.01, (80, 80, 220, 170)),  # a fifth of the longer side, on all sides
            ([(100, 100), (200, 150)], 0.0, 0.5, (50, 50, 250, 200)),  # half of each side of the photo
            ([(200, 150)], 2.0, 0.25, (150, 112, 250, 188)),  # one point has no extent, so it has no margin
            ([(10, 20), (390, 290)], 0.1, 0.25, (0, 0, 400, 300)),
            ([(10, 20), (60, 70)], 0.5, 0.01, (0, 0, 85, 95)),
            ([(0, 0)], 0.0, 1e-9, (0, 0, 1, 1)),  # at least one pixel, even at a corner
            ([(400, 300)], 0.0, 1e-9, (399, 299, 400, 300)),
            ([], 0.5, 0.25, (0, 0, 400, 300)),
        ],
    )
    def test_by_hand(self, points, margin, min_side, box):
        assert box_around(norm(*points), SIZE, margin=margin, min_side=min_side) == box

    def test_points_lie_inside_and_the_box_inside_the_photo(self):
        rng = np.random.default_rng(0)
        for _ in range(200):
            points = rng.uniform(-1, 1, (int(rng.integers(1, 6)), 2))
            size = tuple(rng.integers(1, 50, 2).tolist())
            x0, y0, x1, y1 = box_around(points, size, margin=rng.uniform(0, 1), min_side=rng.uniform(0.01, 1))
            assert 0 <= x0 < x1 <= size[1]
            assert 0 <= y0 < y1 <= size[0]
            points_px = (points + 1) / 2 * size[::-1]
            assert (points_px >= [x0, y0]).all()
            assert (points_px <= [x1, y1]).all()


class TestCropFrame:
    def test_corners_of_a_box_are_the_corners_of_its_frame(self):
        frame = CropFrame.of(BOXES, [SIZE] * 3, torch.zeros((), dtype=torch.float64))
        for row, (x0, y0, x1, y1) in enumerate(BOXES):
            corners = torch.from_numpy(norm((x0, y0), (x1, y1))).expand(3, -1, -1)
            torch.testing.assert_close(
                frame.to_crop(corners)[row], torch.tensor([[-1, -1], [1, 1]], dtype=torch.float64)
            )

    def test_round_trip_and_a_crop_inside_a_crop(self):
        outer = CropFrame.of([(100, 50, 300, 250)] * 2, [SIZE] * 2, torch.zeros(()))
        inner = CropFrame.of([(150, 60, 200, 100), (100, 50, 300, 250)], [SIZE] * 2, torch.zeros(()))
        points = torch.rand(2, 9, 2) * 2 - 1
        torch.testing.assert_close(inner.to_whole(inner.to_crop(points)), points)
        torch.testing.assert_close(outer.to_whole(inner.inside(outer).to_whole(points)), inner.to_whole(points))
        torch.testing.assert_close(inner.rows([1]).to_whole(points[1:]), inner.to_whole(points)[1:])

    def test_the_whole_photo_changes_nothing(self):
        points = torch.rand(2, 5, 2) * 2 - 1
        assert torch.equal(CropFrame.whole(2, points).to_crop(points), points)

    def test_enlargement(self):
        like = torch.zeros((), dtype=torch.float64)
        halves = CropFrame.of([(0, 0, 200, 150), (0, 0, 400, 75)], [SIZE] * 2, like)
        whole = CropFrame.whole(2, like)
        assert enlargement(halves, halves).tolist() == pytest.approx([2, 2])
        assert enlargement(halves, whole).tolist() == pytest.approx([2**0.5, 2**0.5])
        assert enlargement(whole, whole).tolist() == [1, 1]


class TestObject:
    def test_where_features_are_long(self):
        features = torch.full((2, 4, 12, 12), 0.1)
        features[0, :, 3:6, 6:9] = 1.0
        features[1, :, :, :6] = 1.0
        cells = object_cells([torch.rand(2, 3, 24, 24), features], (12, 12))  # only the deepest layer counts
        assert cells[0].nonzero().amin(dim=0).tolist() == [3, 6]
        assert cells[0].nonzero().amax(dim=0).tolist() == [5, 8]
        assert cells[0].sum() == 9
        assert cells[1, :, :6].all()
        assert not cells[1, :, 6:].any()

    def test_an_object_in_every_photo(self):
        """Where all features are equally long, all cells are the object, however their mean is rounded."""
        lengths = torch.rand(50, 1, 1, 1)
        assert object_cells([lengths.expand(50, 1, 17, 17)], (17, 17)).all()

    def test_single_cells_do_not_widen_the_box(self):
        cells = torch.zeros(1, 41, 41, dtype=torch.bool)
        cells[0, 10:31, 10:21] = True
        ((left, top), (right, bottom)) = object_extent(cells)[0]
        assert (left, right) == pytest.approx((-0.5, 0.0), abs=0.06)
        assert (top, bottom) == pytest.approx((-0.5, 0.5), abs=0.1)
        cells[0, 0, 40] = True  # a single cell in a corner
        np.testing.assert_allclose(object_extent(cells)[0], [[left, top], [right, bottom]], atol=0.06)

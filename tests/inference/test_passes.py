"""Passes over a pair, read at any points: both ways, with and without agreement, as flow and as heat maps."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.passes import matcher_in_passes, mirrored, texture, thing

from transformatcher.coords import grid_norm, px_to_norm
from transformatcher.errors import InputError
from transformatcher.inference.crops import CropFrame
from transformatcher.inference.cues import MIN_DISTANCE, POINT_CUES
from transformatcher.inference.matched_pair import MatchedPair
from transformatcher.inference.passes import MAX_AGREEING, Passes, QueryPoints
from transformatcher.inference.readout import TwoWayFlow

POINTS = np.array([[120.0, 80.0], [170, 90], [140, 140], [200, 150], [160, 110], [185, 120]])
SIZE = (240, 320)


def norm(points: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(px_to_norm(points, SIZE)).float()[None]


@pytest.fixture(scope="module")
def pair() -> MatchedPair:
    """A thing and itself, cropped around the points."""
    return matcher_in_passes(calibrated=True).match(thing(), thing(), POINTS).pair


@pytest.fixture(scope="module")
def passes() -> Passes:
    """Of two pairs, the second one mirrored, cropped around the points."""
    matcher = matcher_in_passes(try_mirrored=True)
    src, trg = matcher.encode([thing()]) * 2, matcher.encode([thing(), mirrored(thing())])
    return matcher.coarse_to_fine.run(src, trg, QueryPoints.all(norm(POINTS).expand(2, -1, -1)))


class TestReading:
    def test_one_point_as_among_others(self, passes: Passes):
        points = norm(POINTS).expand(2, -1, -1)
        together, alone = passes.read(points), passes.read(points[:, 3:4])
        for name in ("trg_norm", "peak", "cycle_error", "confidence"):
            torch.testing.assert_close(getattr(together, name)[:, 3:4], getattr(alone, name))
        torch.testing.assert_close(together.pair_cues.values, alone.pair_cues.values)

    @pytest.mark.parametrize("agreeing", [True, False])
    def test_no_points(self, passes: Passes, agreeing: bool):
        nothing = torch.zeros(2, 0, 2)
        matches = passes.read(nothing, torch.ones(2, 0, dtype=torch.bool) if agreeing else None)
        assert matches.trg_norm.shape == (2, 0, 2)
        assert matches.peak.shape == matches.cycle_error.shape == matches.confidence.shape == (2, 0)
        assert matches.pair_cues.values.isfinite().all()

    def test_no_points_in_pixels(self):
        matches = matcher_in_passes(calibrated=True).match(thing(), thing(), np.zeros((0, 2)))
        assert matches.keypoints1.shape == (0, 2)
        assert matches.confidence.shape == (0,)
        assert matches.same_kind is not None

    def test_few_points_do_not_agree_and_many_are_read_one_by_one(self, passes: Passes):
        many = torch.rand(2, MAX_AGREEING + 1, 2) - 0.5
        for points, agree in ((many, False), (many[:, :4], False), (many[:, :6], True)):
            given = torch.ones(2, points.shape[1], dtype=torch.bool)
            together, singly = passes.read(points, given), passes.read(points)
            assert torch.equal(together.trg_norm, singly.trg_norm) is not agree

    def test_a_pair_with_many_points_does_not_change_the_others(self, passes: Passes):
        """Its own points do not agree any more; those of the pair beside it do, as if it were alone."""
        points = torch.rand(2, MAX_AGREEING + 9, 2) - 0.5
        given = torch.ones(2, points.shape[1], dtype=torch.bool)
        given[0, 7:] = False
        together, alone = passes.read(points, given), passes.rows([0]).read(points[:1, :7], given[:1, :7])
        for name in ("trg_norm", "peak", "cycle_error"):
            torch.testing.assert_close(getattr(together, name)[:1, :7], getattr(alone, name))
        torch.testing.assert_close(together.point_cues.values[:1, :7], alone.point_cues.values, atol=1e-3, rtol=0)
        separately = passes.read(points)
        assert torch.equal(together.trg_norm[0, 7:], separately.trg_norm[0, 7:])
        assert torch.equal(together.trg_norm[1], separately.trg_norm[1])

    def test_points_that_are_not_given_are_read_by_themselves(self, passes: Passes):
        points = norm(POINTS).expand(2, -1, -1)
        given = torch.ones(2, 6, dtype=torch.bool)
        given[:, 5] = False
        assert torch.equal(passes.read(points, given).trg_norm[:, 5], passes.read(points).trg_norm[:, 5])

    def test_a_crop_that_moves_and_keeps_its_size_is_another_crop(self, pair: MatchedPair):
        """Its scores are read where it lies."""
        passes, points = pair.passes, norm(POINTS)
        last = passes.last
        shift = torch.tensor([[0.1, -0.05]])
        moved = replace(last, trg_frame=CropFrame(last.trg_frame.centre + shift, last.trg_frame.half))
        more = replace(passes.followed_by(moved), settings=replace(passes.settings, coarse_weight=0.0))
        only = replace(passes, settings=more.settings)
        torch.testing.assert_close(more.read(points).trg_norm, only.read(points).trg_norm + shift, atol=1e-4, rtol=0)

    def test_more_points_than_are_read_at_a_time(self, passes: Passes, monkeypatch: pytest.MonkeyPatch):
        points = (torch.rand(2, 20, 2) - 0.5) * 0.8  # on the thing, where there are no ties
        at_once = passes.read(points)
        monkeypatch.setattr("transformatcher.inference.passes.CHUNK", 7)
        in_parts = passes.read(points)
        for name in ("src_norm", "trg_norm", "peak", "cycle_error"):
            torch.testing.assert_close(getattr(in_parts, name), getattr(at_once, name))
        torch.testing.assert_close(in_parts.point_cues.values, at_once.point_cues.values, atol=1e-3, rtol=0)

    def test_what_agreement_moves_and_what_stands_out_is_told(self, pair: MatchedPair):
        points, given = norm(POINTS), torch.ones(1, 6, dtype=torch.bool)
        singly, together = pair.passes.read(points), pair.passes.read(points, given)
        columns = [POINT_CUES.index(name) for name in ("log_moved", "contrast")]
        (not_moved, contrast), (moved, _) = (one.point_cues.values[0][:, columns].T for one in (singly, together))
        assert not_moved.exp().tolist() == pytest.approx([MIN_DISTANCE] * 6)
        distance = ((together.trg_norm - singly.trg_norm) / pair.passes.last.trg_frame.half).norm(dim=-1)[0]
        torch.testing.assert_close(moved.exp(), distance.clamp(min=MIN_DISTANCE).double(), atol=1e-4, rtol=0)
        assert (contrast > 1).all()  # a point of a texture is more like itself than like most others

    def test_an_outlier_is_corrected_by_the_others(self):
        """A patch that is twice on the target is found where the other points expect it."""
        src, trg = thing(), thing()
        trg[20:60, 20:60] = src[120:160, 120:160]  # around the third point
        trg[120:160, 120:160] = 128
        alone, together = (
            np.linalg.norm(matcher_in_passes(agreement=agreement).match(src, trg, POINTS).keypoints1 - POINTS, axis=1)
            for agreement in (False, True)
        )
        assert alone[2] > 60
        assert together[2] < alone[2] / 2
        assert np.delete(together, 2).max() < 20

    def test_the_scores_of_all_passes_are_added(self, pair: MatchedPair):
        """A pass that knows nothing, on a crop inside the last one, leaves points where they were."""
        passes, last = pair.passes, pair.passes.last
        closer = CropFrame(last.trg_frame.centre + 0.05, 0.8 * last.trg_frame.half)
        blank = replace(
            last, trg_frame=closer, flows=TwoWayFlow.of(passes.readout, torch.zeros_like(last.flows.refined))
        )
        more = replace(passes, settings=replace(passes.settings, coarse_weight=1.0)).followed_by(blank)
        weighed = replace(passes, settings=more.settings)
        points = norm(POINTS[:4])
        cell = 2 / 23 * last.trg_frame.half.max()  # of the upsampled crop
        difference = more.read(points).trg_norm - weighed.read(points).trg_norm
        assert difference.abs().max() < cell

    def test_points_outside_the_crops_are_read_from_the_whole_photos(self, pair: MatchedPair):
        outside = np.array([[5.0, 235.0]])
        passes = pair.passes
        assert passes.last.src_frame.to_crop(norm(outside)).abs().max() > 1.1
        first_alone = replace(passes, passes=passes.passes[:1])
        torch.testing.assert_close(passes.read(norm(outside)).trg_norm, first_alone.read(norm(outside)).trg_norm)
        given = torch.ones(1, 7, dtype=torch.bool)
        seven = passes.read(norm(np.concatenate([POINTS, outside])), given)
        six = passes.read(norm(POINTS), given[:, :6])
        torch.testing.assert_close(seven.trg_norm[:, :6], six.trg_norm)  # it has no say in where the others are

    def test_calibrated(self, pair: MatchedPair):
        matches = pair.passes.read(norm(POINTS))
        assert matches.confidence.tolist()[0] == pytest.approx([1 / (1 + np.exp(-2.0))] * 6)
        assert matches.same_kind.tolist() == pytest.approx([1 / (1 + np.exp(-2.0))])

    def test_the_smallest_grids_are_read(self):
        matcher = matcher_in_passes(calibrated=True)
        passes = matcher.match(thing(), thing(), POINTS).pair.passes
        refined = passes.flows.refined
        small = refined[:, ::4, ::4, ::4, ::4]
        assert small.shape[1:] == (3, 3, 3, 3)
        one = replace(passes.passes[0], flows=TwoWayFlow.of(passes.readout, small), similarity=small)
        assert replace(passes, passes=[one]).object_pair.values.isfinite().all()


class TestRowsAndDirections:
    def test_rows(self, passes: Passes):
        points = norm(POINTS).expand(2, -1, -1)
        both, second = passes.read(points), passes.rows([1]).read(points[1:])
        for name in ("trg_norm", "peak", "cycle_error", "mirrored"):
            torch.testing.assert_close(getattr(second, name), getattr(both, name)[1:])
        assert passes.mirrored.tolist() == [False, True]

    def test_swapped(self, passes: Passes):
        there = passes.read(norm(POINTS).expand(2, -1, -1))
        back = passes.swapped().read(there.trg_norm)
        torch.testing.assert_close(back.trg_norm, there.src_norm, atol=0.1, rtol=0)  # half a cell is 0.09
        assert torch.equal(back.mirrored, there.mirrored)
        again = passes.swapped().swapped().read(there.src_norm)
        torch.testing.assert_close(again.trg_norm, there.trg_norm)

    def test_reversed_pairs(self):
        src, trg = thing(), np.ascontiguousarray(thing()[::2])
        pair = matcher_in_passes().match(src, trg, POINTS).pair
        back = pair.reversed()
        assert (back.src, back.trg) == (pair.trg, pair.src)
        found = back.points(POINTS * (1, 0.5)).keypoints1
        np.testing.assert_allclose(found, POINTS, atol=12)

    def test_objects_are_exchanged_too(self):
        src, trg = thing(box=(10, 20, 130, 120)), thing(box=(190, 120, 310, 220))
        pair = matcher_in_passes(object_margin=0.0).match(src, trg).pair
        for one, (x0, y0, x1, y1) in ((pair, (10, 20, 130, 120)), (pair.reversed(), (190, 120, 310, 220))):
            points = one.consistent().keypoints0
            assert len(points) > 20
            assert ((points >= (x0 - 27, y0 - 20)) & (points <= (x1 + 27, y1 + 20))).all()  # a cell more or less


class TestDense:
    def test_the_flow_is_in_the_frame_of_the_whole_photo(self, pair: MatchedPair):
        h, w = pair.flow_px.shape[:2]
        assert (h, w) == pair.flow_confidence.shape == (48, 48)  # twice as fine as that of one pass
        cells = (grid_norm((h, w), like=torch.zeros(())).numpy() + 1) / 2 * (320, 240)
        on_thing = (np.abs(cells - (170, 130)) < (70, 60)).all(axis=-1)
        assert np.median(np.linalg.norm(pair.flow_px - cells, axis=-1)[on_thing]) < 8
        for i, j in ((0, 0), (20, 31), (47, 47)):
            one = pair.passes.read(norm(cells[i, j][None])).trg_norm
            np.testing.assert_allclose(px_to_norm(pair.flow_px[i, j], SIZE), one[0, 0], atol=1e-4)

    def test_the_flow_is_interpolated_between_its_cells(self, pair: MatchedPair):
        points, confidence = pair.warp_points(torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
        np.testing.assert_allclose(points[0], px_to_norm(pair.flow_px[0, 0], SIZE), atol=1e-4)
        np.testing.assert_allclose(points[1], px_to_norm(pair.flow_px[-1, -1], SIZE), atol=1e-4)
        assert confidence[0] == pytest.approx(pair.flow_confidence[0, 0], abs=1e-5)

    @pytest.mark.parametrize("point", [*POINTS[:3].tolist(), [5.0, 5.0], [320.0, 240.0]])
    def test_a_heat_map_sums_to_one_and_peaks_at_the_match(self, pair: MatchedPair, point):
        heat = pair.heatmap(point)
        assert heat.sum() == pytest.approx(1)
        assert heat.min() >= 0
        row, column = np.unravel_index(heat.argmax(), heat.shape)
        peak = np.array([column / (heat.shape[1] - 1) * 320, row / (heat.shape[0] - 1) * 240])
        found = pair.passes.read(norm(np.array([point]))).trg_norm[0, 0].numpy()
        assert np.linalg.norm(peak - (found + 1) / 2 * (320, 240)) < 27  # a cell of the whole photo

    def test_a_heat_map_is_finer_where_the_crop_is(self, pair: MatchedPair):
        tight = matcher_in_passes().match(thing(), thing(), POINTS[4:5]).pair
        assert tight.heatmap(POINTS[4]).shape > pair.heatmap(POINTS[4]).shape > (24, 24)

    def test_the_object_onto_itself(self):
        matches = matcher_in_passes(object_margin=0.0).match(thing(), thing())
        assert len(matches.keypoints0) > 30
        assert np.median(np.linalg.norm(matches.keypoints1 - matches.keypoints0, axis=1)) < 8
        middle = np.median(matches.keypoints0, axis=0)
        np.testing.assert_allclose(middle, (170, 130), atol=20)

    def test_points_outside_the_photo(self, pair: MatchedPair):
        with pytest.raises(InputError, match="lies outside the image of 320 × 240"):
            pair.heatmap([321.0, 5.0])
        with pytest.raises(InputError, match="lies outside the image of 320 × 240"):
            matcher_in_passes().match(texture(), texture(), [[5.0, 241.0]])

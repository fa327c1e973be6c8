"""Photos matched in several passes: crops where they should be, each computed once, and pairs that do not mix."""

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.passes import matcher_in_passes, mirrored, texture, thing
from PIL import Image

from transformatcher.coords import px_to_norm
from transformatcher.inference import encoded_photo
from transformatcher.inference.crops import CropFrame
from transformatcher.inference.encoded_photo import MAX_VIEWS
from transformatcher.inference.matched_pair import MatchedPoints
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.passes import QueryPoints
from transformatcher.inference.readout import TwoWayFlow, read_points

EXAMPLES = Path(str(files("transformatcher") / "examples"))
GOLDEN = Path(__file__).parents[1] / "golden" / "one_pass.json"
POINTS = np.array([[120.0, 80.0], [170, 90], [140, 140], [200, 150], [160, 110], [185, 120]])


@pytest.fixture(scope="module")
def cat() -> np.ndarray:
    return np.array(Image.open(EXAMPLES / "cat_a.jpg"))


@pytest.fixture(scope="module")
def cat_points() -> np.ndarray:
    return np.array(list(json.loads((EXAMPLES / "cat_a.json").read_text(encoding="utf-8")).values()), dtype=float)


@pytest.fixture(scope="module")
def shipped() -> Matcher:
    return Matcher.from_pretrained(device="cpu")


def count_encoded(matcher: Matcher, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that the model will encode."""
    encode, sizes = matcher.network.encode, []
    monkeypatch.setattr(matcher.network, "encode", lambda images: sizes.append(len(images)) or encode(images))
    return sizes


def assert_alike(one: MatchedPoints, other: MatchedPoints, atol: float = 1e-3) -> None:
    np.testing.assert_allclose(one.keypoints1, other.keypoints1, atol=atol)
    np.testing.assert_allclose(one.confidence, other.confidence, atol=1e-5)


class TestOnePass:
    def test_the_shipped_model_as_before_there_were_passes(self):
        """Against numbers of the last version that knew one pass alone (commit e57b2b8)."""
        matcher = Matcher.from_pretrained(device="cpu", settings={"coarse_to_fine.passes": 1})
        golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
        for target, numbers in golden["targets"].items():
            matches = matcher.match(EXAMPLES / "cat_a.jpg", EXAMPLES / target, golden["points"])
            np.testing.assert_allclose(matches.keypoints1, numbers["keypoints1"], atol=0.01)
            np.testing.assert_allclose(matches.confidence, numbers["confidence"], atol=1e-4)

    def test_the_plain_model_bit_by_bit(self):
        matcher = matcher_in_passes(passes=1)
        assert matcher.coarse_to_fine is None
        src, trg = matcher.encode([texture(0), texture(1)])
        matches = next(matcher.pairs(src, [trg])).points(POINTS)
        with torch.inference_mode():
            flows = TwoWayFlow.of(matcher.model.readout, matcher.model.refine(src.features, trg.features))
            points = torch.from_numpy(px_to_norm(POINTS, src.size)).float()[None]
            plain = read_points(flows, points, transfer=matcher.model.transfer)
        assert np.array_equal(px_to_norm(matches.keypoints1, trg.size), plain.trg_norm[0].double().numpy())
        assert np.array_equal(matches.confidence, plain.confidence[0].numpy())


class TestPlaces:
    def test_a_photo_on_itself(self, shipped: Matcher, cat: np.ndarray, cat_points: np.ndarray):
        matches = shipped.match(cat, cat, cat_points)
        errors = np.linalg.norm(matches.keypoints1 - cat_points, axis=1)
        assert np.median(errors) < 5  # of 451 pixels, 27 to a cell of the whole photo
        assert errors.max() < 13
        assert not matches.mirrored

    def test_crops_with_the_same_frame_lead_to_the_same_place(self):
        matches = matcher_in_passes(region="object", object_margin=0.0).match(thing(), thing(), POINTS)
        last = matches.pair.passes.last
        assert torch.equal(last.src_frame.half, last.trg_frame.half)
        assert last.src_frame.half.max() < 0.9
        np.testing.assert_allclose(matches.keypoints1, POINTS, atol=8)  # of 320 pixels, 27 to a cell

    def test_a_crop_lands_where_it_was_cut(self, shipped: Matcher, cat: np.ndarray, cat_points: np.ndarray):
        x, y = 60, 30
        crop = cat[y:290, x:400]
        there = shipped.match(cat, crop, cat_points).keypoints1 - (cat_points - (x, y))
        back = shipped.match(crop, cat, cat_points - (x, y)).keypoints1 - cat_points
        for errors in (there, back):
            assert np.median(np.linalg.norm(errors, axis=1)) < 10
            assert np.linalg.norm(errors, axis=1).max() < 25

    def test_crops_lie_around_the_points_and_their_matches(self):
        pair = matcher_in_passes().match(thing(), thing(), POINTS).pair
        first, last = pair.passes.passes
        assert torch.equal(first.src_frame.half, torch.ones(1, 2))
        found = px_to_norm(pair.points(POINTS).keypoints1, (240, 320))
        for frame, points in ((last.src_frame, px_to_norm(POINTS, (240, 320))), (last.trg_frame, found)):
            inside = frame.to_crop(torch.from_numpy(points).float()[None])
            assert inside.abs().max() <= 1
            assert frame.half.max() < 0.8

    def test_each_pass_looks_closer(self):
        passes = matcher_in_passes(passes=4, min_side=0.05).match(thing(), thing(), POINTS[:3]).pair.passes.passes
        sizes = [one.src_frame.half.prod().item() for one in passes]
        assert len(sizes) == 4
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] < sizes[1] < sizes[0] == 1

    def test_crops_are_cut_from_the_original_pixels(self, monkeypatch: pytest.MonkeyPatch):
        """A pixel of a photo of 2000 that the network's 96 would never show is there in the crop."""
        seen, to_tensor = [], encoded_photo.to_tensor
        monkeypatch.setattr(
            encoded_photo, "to_tensor", lambda pixels, size: seen.append(pixels) or to_tensor(pixels, size)
        )
        large = np.array(Image.fromarray(thing()).resize((2000, 1500)))
        passes = matcher_in_passes().match(large, large[::-1].copy(), POINTS * 6.25).pair.passes
        for pixels, frame, photo in zip(
            seen, (passes.last.src_frame, passes.last.trg_frame), (large, large[::-1]), strict=True
        ):
            (x0, y0), (x1, y1) = (
                ((frame.centre + sign * frame.half + 1)[0] / 2 * torch.tensor([2000, 1500])).round().int().tolist()
                for sign in (-1, 1)
            )
            np.testing.assert_array_equal(pixels, photo[y0:y1, x0:x1])
            assert pixels.shape[1] > 400


class TestBatches:
    @pytest.mark.parametrize("settings", [{}, {"region": "object"}, {"passes": 3}], ids=str)
    def test_pairs_do_not_depend_on_each_other(self, settings):
        matcher = matcher_in_passes(try_mirrored=True, calibrated=True, **settings)
        targets = [thing(0), mirrored(thing(0)), thing(1)]
        singly, together = (list(matcher.match_many(thing(0), targets, POINTS, batch=batch)) for batch in (1, 3))
        assert [one.mirrored for one in together][:2] == [False, True]
        for one, other in zip(singly, together, strict=True):
            assert_alike(one, other)
            assert one.mirrored == other.mirrored
            assert one.same_kind == pytest.approx(other.same_kind, abs=1e-6)

    def test_nor_do_points_of_other_pairs(self):
        """Pairs of a list have points of their own, and different numbers of them."""
        matcher = matcher_in_passes(try_mirrored=True)
        src, trg = matcher.encode([thing(0), thing(1)]), matcher.encode([mirrored(thing(0)), thing(1)])
        coarse_to_fine = matcher.coarse_to_fine
        norm = torch.from_numpy(px_to_norm(POINTS, (240, 320))).float()
        given = torch.ones(2, 6, dtype=torch.bool)
        given[1, 2:] = False
        both = coarse_to_fine.match(src, trg, QueryPoints(torch.stack([norm, norm.flip(0)]), given))
        alone = [
            coarse_to_fine.match(src[:1], trg[:1], QueryPoints.all(norm[None])),
            coarse_to_fine.match(src[1:], trg[1:], QueryPoints.all(norm.flip(0)[None, :2])),
        ]
        for row, one in enumerate(alone):
            n = one.trg_norm.shape[1]
            for name in ("trg_norm", "peak", "cycle_error"):
                torch.testing.assert_close(getattr(both, name)[row, :n], getattr(one, name)[0], atol=1e-4, rtol=1e-3)
            torch.testing.assert_close(both.pair_cues.values[row], one.pair_cues.values[0], atol=1e-3, rtol=1e-3)
        assert both.mirrored.tolist() == [True, False]

    def test_a_source_is_encoded_once(self, monkeypatch: pytest.MonkeyPatch):
        targets = [texture(0) for _ in range(3)]
        for try_mirrored, batch, wanted in (
            (False, 3, [4, 4]),  # four whole photos, four crops
            (False, 1, [2, 2, 1, 1, 1, 1]),
            (True, 3, [4, 1, 4]),  # and the mirrored source
        ):
            matcher = matcher_in_passes(try_mirrored=try_mirrored)
            sizes = count_encoded(matcher, monkeypatch)
            assert len(list(matcher.match_many(texture(0), targets, POINTS, batch=batch))) == 3
            assert sizes == wanted

    def test_features_of_crops_are_dropped(self):
        matcher = matcher_in_passes(try_mirrored=True)
        src, *targets = matcher.encode([texture(0), texture(1), texture(2)])
        for shift in range(2 * MAX_VIEWS):
            next(matcher.match_many(src, targets, POINTS + shift))  # who takes one pair only may never come back
            assert not any(photo.views for photo in targets)
            assert 0 < len(src.views) <= MAX_VIEWS


class TestMirrored:
    @pytest.mark.parametrize(
        "settings", [{}, {"region": "object"}, {"passes": 3}, {"mirror_average": True}, {"agreement": False}], ids=str
    )
    def test_the_mirror_image_of_what_is_found_on_the_photo(self, settings):
        matcher = matcher_in_passes(try_mirrored=True, **settings)
        plain, turned = matcher.match_many(thing(), [thing(), mirrored(thing())], POINTS)
        assert (plain.mirrored, turned.mirrored) == (False, True)
        np.testing.assert_allclose(turned.keypoints1, plain.keypoints1 * (-1, 1) + (320, 0), atol=0.1)
        np.testing.assert_allclose(turned.confidence, plain.confidence, atol=1e-3)

    def test_only_if_asked(self):
        matcher = matcher_in_passes(try_mirrored=False)
        assert not matcher.match(thing(), mirrored(thing()), POINTS).mirrored
        assert not matcher_in_passes(passes=1, try_mirrored=True).match(thing(), mirrored(thing()), POINTS).mirrored

    def test_a_cat_that_looks_the_other_way(self, shipped: Matcher, cat: np.ndarray, cat_points: np.ndarray):
        matches = shipped.match(cat, mirrored(cat), cat_points)
        assert matches.mirrored
        errors = np.linalg.norm(matches.keypoints1 - (cat_points * (-1, 1) + (cat.shape[1], 0)), axis=1)
        assert errors.max() < 13

    def test_averaged_with_the_mirrored_pair(self, monkeypatch: pytest.MonkeyPatch):
        """The average of a pair and its mirror image is the same for both."""
        matcher = matcher_in_passes(mirror_average=True)
        sizes = count_encoded(matcher, monkeypatch)
        one = matcher.match(thing(), thing()[::-1].copy(), POINTS)
        assert sizes == [2, 2, 2, 2]
        turned = matcher.match(mirrored(thing()), mirrored(thing()[::-1]), POINTS * (-1, 1) + (320, 0))
        np.testing.assert_allclose(turned.keypoints1, one.keypoints1 * (-1, 1) + (320, 0), atol=1)


class TestRegions:
    def test_of_the_object_no_point_depends_on_others(self):
        matcher = matcher_in_passes(region="object", calibrated=True)
        together = matcher.match(thing(0), thing(1), POINTS)
        for number, point in enumerate(POINTS):
            alone = matcher.match(thing(0), thing(1), point[None])
            np.testing.assert_allclose(alone.keypoints1[0], together.keypoints1[number], atol=1e-3)
            assert alone.confidence[0] == pytest.approx(together.confidence[number], abs=1e-6)
            assert alone.same_kind == pytest.approx(together.same_kind)

    def test_what_crops_would_hardly_enlarge_is_matched_once(self, monkeypatch: pytest.MonkeyPatch):
        matcher = matcher_in_passes(min_enlargement=50)
        sizes = count_encoded(matcher, monkeypatch)
        passes = matcher.match(thing(0), thing(0), POINTS).pair.passes
        assert sizes == [2]
        assert torch.equal(passes.last.flows.refined, passes.flows.refined)
        assert torch.equal(passes.last.trg_frame.half, torch.ones(1, 2))

    def test_each_pair_of_a_batch_for_itself(self):
        """Points in all corners leave nothing to crop; those of the other pair do."""
        matcher = matcher_in_passes()
        src, trg = matcher.encode([thing(0)]) * 2, matcher.encode([thing(0)]) * 2
        corners = torch.tensor([[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]])
        query = QueryPoints.all(torch.stack([corners, 0.2 * corners]))
        passes = matcher.coarse_to_fine.run(src, trg, query)
        whole = CropFrame.whole(1, corners)
        assert torch.equal(passes.last.src_frame.rows([0]).half, whole.half)
        assert passes.last.src_frame.half[1].max() < 0.5
        for row in (0, 1):
            alone = matcher.coarse_to_fine.run(src[:1], trg[:1], QueryPoints.all(query.norm[row : row + 1]))
            torch.testing.assert_close(
                passes.read(query.norm, query.given).trg_norm[row],
                alone.read(query.norm[row : row + 1], query.given[row : row + 1]).trg_norm[0],
                atol=1e-4,
                rtol=0,
            )

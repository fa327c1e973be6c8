"""What a matched pair answers: points, flow, heat maps, confidence, pictures."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from transformatcher.errors import InputError
from transformatcher.inference.calibration import Calibration, Calibrations
from transformatcher.inference.matcher import Matcher
from transformatcher.viz.matches import draw_matches
from transformatcher.viz.pictures import save_figure


class TestResult:
    def test_dense_flow_agrees_with_points(self, matcher: Matcher, photo: np.ndarray):
        matches = matcher.match(photo, photo, [[0.0, 0.0], [200.0, 120.0]])
        np.testing.assert_allclose(matches.flow_px[0, 0], matches.keypoints1[0], atol=1e-3)
        np.testing.assert_allclose(matches.flow_px[-1, -1], matches.keypoints1[1], atol=1e-3)
        assert matches.flow_confidence.shape == matches.flow_px.shape[:2]
        assert matches.flow_confidence[0, 0] == pytest.approx(matches.confidence[0], abs=1e-5)

    def test_heat_is_the_distribution_whose_mean_is_the_match(self, matcher: Matcher, photo: np.ndarray):
        pair = matcher.match(photo, photo, [[0.0, 0.0]]).pair
        heat = pair.heatmap([0.0, 0.0])
        assert heat.sum() == pytest.approx(1)
        xs = np.linspace(0, photo.shape[1], heat.shape[1])
        assert (heat.sum(axis=0) * xs).sum() == pytest.approx(pair.points([[0.0, 0.0]]).keypoints1[0, 0], abs=0.5)

    def test_uncalibrated_finds_all_calibrated_may_not(self, matcher: Matcher, photo: np.ndarray):
        sharp = matcher.match(photo, photo, [[50.0, 30.0]])
        assert not sharp.calibrated
        assert sharp.is_match.all()
        unsure = Matcher(matcher.model, matcher.config, "cpu", Calibrations(Calibration(-50.0, 0.0, 0.0)))
        matcher.model.backbone.train()
        found = unsure.match(photo, photo, [[50.0, 30.0]])
        assert found.calibrated
        assert not found.is_match.any()
        assert found.confidence[0] < 1e-6

    def test_sure_is_the_sharper_half_or_what_is_found(self, matcher: Matcher, photo: np.ndarray):
        sharp = matcher.match(photo, photo)
        n = len(sharp.confidence)
        assert n / 2 <= sharp.reliable.sum() <= n / 2 + 1
        assert sharp.confidence[sharp.reliable].min() >= sharp.confidence[~sharp.reliable].max()
        certain = Matcher(matcher.model, matcher.config, "cpu", Calibrations(Calibration(50.0, 0.0, 0.0)))
        matcher.model.backbone.train()
        assert certain.match(photo, photo).reliable.all()

    def test_it_draws_itself(self, matcher: Matcher, photo: np.ndarray, tmp_path: Path):
        matcher.match(photo, photo, [[50.0, 30.0]]).draw(tmp_path / "picture.png")
        with Image.open(tmp_path / "picture.png") as picture:
            assert picture.size[0] > 100

    def test_pictures_carry_the_names_of_files_and_points(self, matcher: Matcher, photo: np.ndarray, tmp_path: Path):
        Image.fromarray(photo).save(tmp_path / "cat.png")
        matches = matcher.match(tmp_path / "cat.png", photo, [[50.0, 30.0]])
        assert matches.pair.names == ("cat.png", "target")
        assert matches.pair.reversed().names == ("source", "cat.png")
        for figure in (matches.draw(point_names=["nose"]), matches.pair.draw_flow()):
            assert {"cat.png", "target"} <= {text.get_text() for text in figure.texts}
        texts = [text.get_text() for text in matches.draw(point_names=["nose"]).texts]
        assert any(text.startswith("nose") for text in texts)

    def test_it_draws_its_flow_and_the_heat_of_a_point(self, matcher: Matcher, photo: np.ndarray, tmp_path: Path):
        pair = matcher.match(photo, photo[::2], [[50.0, 30.0]]).pair
        for picture, figure in (("flow.png", pair.draw_flow), ("heat.png", partial(pair.draw_heatmap, [50.0, 30.0]))):
            drawn = figure(tmp_path / picture, "title")
            assert "title" in [text.get_text() for text in drawn.texts]
            with Image.open(tmp_path / picture) as image:
                assert image.size[0] > 100
        with pytest.raises(InputError, match="lies outside the image of 200 × 120"):
            pair.draw_heatmap([500.0, 30.0])


def test_pictures(matcher: Matcher, photo: np.ndarray, tmp_path: Path):
    for name, points in (("few.png", [[50.0, 30.0]]), ("many.jpg", None)):
        save_figure(draw_matches(photo, photo, matcher.match(photo, photo, points), "title"), tmp_path / "new" / name)
        with Image.open(tmp_path / "new" / name) as picture:
            assert picture.size[0] > picture.size[1]  # side by side
            assert np.asarray(picture.convert("L")).std() > 20

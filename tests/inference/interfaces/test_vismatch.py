"""What vismatch's BaseMatcher asks of a matcher: of the real one where it is installed, else of a stand-in."""

import importlib
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import pytest
import torch

from transformatcher.data.synthetic import synthetic_pair
from transformatcher.inference.matcher import Matcher

NAME = "transformatcher.inference.interfaces.vismatch"


@pytest.fixture(scope="module")
def images() -> list[torch.Tensor]:
    pair, _ = synthetic_pair(3, size=(96, 128))
    return [torch.from_numpy(image).permute(2, 0, 1) / 255 for image in (pair.src_image, pair.src_image)]


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, imported beside a stand-in for vismatch."""

    class BaseMatcher(torch.nn.Module):
        def __init__(self, device: str = "cpu", **options: float) -> None:
            super().__init__()
            self.device, self.ransac_reproj_thresh = device, options.get("ransac_reproj_thresh", 3)

    stand_in = ModuleType("vismatch")
    stand_in.BaseMatcher = BaseMatcher
    monkeypatch.setitem(sys.modules, "vismatch", stand_in)
    sys.modules.pop(NAME, None)
    yield importlib.import_module(NAME)
    sys.modules.pop(NAME, None)


def test_seven_values(adapter: ModuleType, matcher: Matcher, images: list[torch.Tensor]):
    ours = adapter.VismatchMatcher("cpu", matcher, ransac_reproj_thresh=7)
    assert ours.ransac_reproj_thresh == 7
    points0, points1, *nothing, confidence = ours._forward(*images)
    assert nothing == [None] * 4
    alone = matcher.match(*images)
    np.testing.assert_allclose(points0, alone.keypoints0, atol=1e-6)
    np.testing.assert_allclose(points1, alone.keypoints1, atol=1e-6)
    np.testing.assert_array_equal(confidence, alone.confidence)
    assert alone.keypoints0[:, 0].max() == 128
    assert points0[:, 0].max() < 128  # vismatch drops what lies on the right and lower border


def test_colours_a_little_out_of_range_are_cut(adapter: ModuleType, matcher: Matcher, images: list[torch.Tensor]):
    ours = adapter.VismatchMatcher("cpu", matcher)
    assert len(ours._forward(images[0] * 1.001, images[1] - 0.001)[0])


def test_without_vismatch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "vismatch", None)
    sys.modules.pop(NAME, None)
    with pytest.raises(ModuleNotFoundError, match="pip install vismatch"):
        importlib.import_module(NAME)


@pytest.mark.skipif(find_spec("vismatch") is None, reason="vismatch is not installed")
@pytest.mark.filterwarnings("default")
def test_the_real_one(matcher: Matcher, images: list[torch.Tensor]):
    sys.modules.pop(NAME, None)
    ours = importlib.import_module(NAME).VismatchMatcher("cpu", matcher, ransac_reproj_thresh=10)
    result = ours(*images)
    matches = matcher.match(*images)
    assert len(result["matched_kpts0"]) == len(matches.keypoints0) > 50  # none was dropped at the border
    assert result["matched_confidences"].shape == (len(matches.keypoints0),)
    assert result["num_inliers"] > 50
    corners = np.array([[0, 0, 1], [128, 0, 1], [0, 96, 1], [128, 96, 1]]) @ result["H"].T
    np.testing.assert_allclose(corners[:, :2] / corners[:, 2:], [[0, 0], [128, 0], [0, 96], [128, 96]], atol=15)
    assert ours.extract(images[0])["all_kpts0"].shape == (0, 2)  # there is no detector

"""Warp and certainty in RoMa's shape and frame; handed to RoMa's own functions where it is installed."""

import numpy as np
import pytest
import torch
from PIL import Image

from transformatcher.data.synthetic import synthetic_pair
from transformatcher.inference.interfaces.roma import RomaMatcher
from transformatcher.inference.matcher import Matcher


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    return synthetic_pair(3, size=(96, 128))[0].src_image


@pytest.fixture(scope="module")
def result(matcher: Matcher, photo: np.ndarray):
    roma = RomaMatcher(matcher, size=(24, 32))
    other = np.array(Image.fromarray(photo).resize((64, 192)))
    return roma, *roma.match(photo, other)


def test_frame(result):
    """The left half starts at A's pixel centres, the right half ends at B's."""
    _, warp, certainty = result
    assert warp.shape == (24, 64, 4)
    assert certainty.shape == (24, 64)
    assert warp.dtype == certainty.dtype == torch.float32
    assert warp.abs().max() <= 1
    assert ((certainty > 0) & (certainty <= 1)).all()
    left, right = warp[:, :32], warp[:, 32:]
    for centres in (left[..., :2], right[..., 2:]):
        torch.testing.assert_close(centres[0, 0], torch.tensor([-1 + 1 / 32, -1 + 1 / 24]))
        torch.testing.assert_close(centres[5, 31], torch.tensor([1 - 1 / 32, -1 + 11 / 24]))


def test_a_photo_lies_on_itself_both_ways(result):
    _, warp, _ = result
    assert (warp[..., :2] - warp[..., 2:]).norm(dim=-1).median() < 0.1


def test_one_way(matcher: Matcher, photo: np.ndarray, result):
    warp, certainty = RomaMatcher(matcher, size=(24, 32), symmetric=False).match(photo, photo)
    assert (warp.shape, certainty.shape) == ((24, 32, 4), (24, 32))
    assert RomaMatcher(matcher).match(photo, photo)[0].shape == (96, 192, 4)  # the size that the model looks at
    assert result[1].is_inference() == warp.is_inference()


def test_both_ways_are_the_same_matches_as_of_the_exchanged_pair(matcher: Matcher, photo: np.ndarray):
    roma = RomaMatcher(matcher, size=(12, 16))
    other = photo[:, ::-1].copy()
    warp, certainty = roma.match(photo, other)
    back, back_certainty = roma.match(other, photo)
    # The raw correlation of the pair exchanged is the same map, read the other way.
    torch.testing.assert_close(warp[:, 16:, [2, 3, 0, 1]], back[:, :16], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(certainty[:, 16:], back_certainty[:, :16], rtol=1e-3, atol=1e-3)


def test_points_of_the_warp_are_those_of_match(matcher: Matcher, photo: np.ndarray):
    """At the pixel centres themselves, in pixels of the original."""
    roma = RomaMatcher(matcher, size=(24, 32), symmetric=False)
    warp, certainty = roma.match(photo, photo)
    a, b = roma.to_pixel_coordinates(warp.reshape(-1, 4)[::37], 96, 128, 96, 128)
    alone = matcher.match(photo, photo, a.double().numpy())
    np.testing.assert_allclose(alone.keypoints1, b, atol=1e-2)
    np.testing.assert_allclose(alone.confidence, certainty.reshape(-1)[::37], atol=1e-4)


def test_sample(result):
    roma, warp, certainty = result
    uneven = torch.linspace(0.01, 1, 24 * 64).reshape(24, 64)
    matches, sure = roma.sample(warp, uneven, num=100)
    assert (matches.shape, sure.shape) == ((100, 4), (100,))
    assert len(matches.unique(dim=0)) == 100
    assert sure.mean() > uneven.mean()
    assert len(roma.sample(warp, certainty)[0]) == warp.shape[0] * warp.shape[1]
    halves = torch.cat([torch.ones(12, 64), torch.zeros(12, 64)])
    assert len(roma.sample(warp, halves)[0]) == 12 * 64  # what is certainly wrong is never drawn


@pytest.mark.filterwarnings("default")
def test_romas_own_functions_take_it(result, photo: np.ndarray):
    theirs = pytest.importorskip("romatch.models.matcher", reason="romatch is not installed")
    roma, warp, certainty = result
    real = theirs.RegressionMatcher(torch.nn.Identity(), torch.nn.Identity(), h=24, w=32, symmetric=True)
    warp, certainty = warp.clone(), certainty.clone()
    matches, _ = real.sample(warp, certainty, num=50)
    assert matches.shape == (50, 4)
    sizes = (96, 128, 192, 64)
    for mine, their in zip(
        roma.to_pixel_coordinates(matches, *sizes), real.to_pixel_coordinates(matches, *sizes), strict=True
    ):
        torch.testing.assert_close(mine, their)
    points = torch.rand(5, 2) - 0.5
    found, _ = real.match_keypoints(points, points, warp[:, :32], certainty[:, :32], max_dist=0.3)
    assert len(found)
    image = Image.fromarray(photo)
    assert real.visualize_warp(warp, certainty, image, image, device="cpu").shape == (3, 24, 64)

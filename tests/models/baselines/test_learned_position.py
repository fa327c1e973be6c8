"""Learned position embeddings: the vector of each match, both backends, other grids."""

import itertools

import numpy as np
import pytest
import torch
from helpers import reference

from transformatcher.config import model_config
from transformatcher.models.attention import PaperAttention, ReleasedAttention
from transformatcher.models.baselines.learned_position import AxialPositionEmbedding, MatchPositionEmbedding
from transformatcher.models.build import build_matcher, build_refiner
from transformatcher.models.match2match import MatchToMatch

GRID = (3, 2, 2, 4)
POSITIONS = list(itertools.product(*(range(n) for n in GRID)))


def test_a_match_has_the_sum_of_its_axes():
    vectors = AxialPositionEmbedding(5, GRID)
    out = vectors(GRID)
    for index, position in enumerate(POSITIONS):
        expected = sum(vectors.axes[axis][:, place] for axis, place in enumerate(position))
        torch.testing.assert_close(out[:, index], expected)


def test_a_match_has_its_own():
    vectors = MatchPositionEmbedding(5, GRID)
    for index, position in enumerate(POSITIONS):
        assert torch.equal(vectors(GRID)[:, index], vectors.table[:, *position])


def test_on_another_grid_they_are_interpolated():
    other = (5, 3, 2, 6)
    table = MatchPositionEmbedding(3, GRID).double()
    expected = np.stack([reference.resize(channel, other) for channel in table.table.detach().numpy()])
    np.testing.assert_allclose(table(other).detach(), expected.reshape(3, -1), atol=1e-12)
    axes = AxialPositionEmbedding(3, GRID).double()
    on_grid = axes(GRID).detach().numpy().reshape(3, *GRID)
    expected = np.stack([reference.resize(channel, other) for channel in on_grid])
    np.testing.assert_allclose(axes(other).detach(), expected.reshape(3, -1), atol=1e-12)


@pytest.mark.parametrize("kind", [PaperAttention, ReleasedAttention])
@pytest.mark.parametrize("vectors", [AxialPositionEmbedding, MatchPositionEmbedding])
def test_fused_equals_eager(kind, vectors):
    refiner = MatchToMatch(
        2,
        dim=8,
        depth=2,
        make_attention=lambda d: kind(d, 4, 2),
        position_embedding=vectors(8, GRID),
        correlation_skip=2.0,
    ).double()
    for parameter in refiner.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    results = {}
    for backend in ("eager", "fused"):
        refiner.set_backend(backend)
        corr = torch.linspace(0, 1, 2 * 48, dtype=torch.float64).sin().reshape(1, 2, *GRID).requires_grad_()
        out = refiner(corr)
        results[backend] = out, *torch.autograd.grad(out.square().sum(), (corr, *refiner.parameters()))
    torch.testing.assert_close(results["fused"], results["eager"], rtol=1e-9, atol=1e-9)


def test_matches_of_equal_scores_are_told_apart():
    settings = {"match2match.depth": 1, "grid": [2, 3]}
    corr = torch.ones(1, 2, 2, 3, 2, 3)
    still = build_refiner(model_config(settings | {"match2match.position": "none"}), layers=2)
    assert still(corr).std() < 1e-6
    for position in ("absolute", "absolute-table"):
        assert build_refiner(model_config(settings | {"match2match.position": position}), layers=2)(corr).std() > 1e-4


@pytest.mark.parametrize(("settings", "grid"), [({}, (4, 6)), ({"stages": 4}, (2, 3)), ({"layers": [7, 8]}, (2, 3))])
def test_their_grid_is_that_of_the_correlation(settings, grid):
    config = {
        "backbone": "resnet50",
        "image_size": [62, 96],
        "match2match.position": "absolute",
        "match2match.depth": 1,
    }
    config |= {"sampler": "bilinear"}
    model = build_matcher(model_config(config | settings))
    assert tuple(axis.shape[1] for axis in model.refiner.position_embedding.axes) == grid + grid
    with torch.no_grad():
        assert model.refine(*model.encode_pair(*torch.randn(2, 1, 3, 62, 96))).shape[1:] == grid + grid

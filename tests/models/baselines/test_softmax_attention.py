"""The three softmax attentions: against loops, by gradcheck, by what they must do, by what they refuse."""

import itertools

import numpy as np
import pytest
import torch
from helpers import reference
from torch.autograd import gradcheck

from transformatcher.config import model_config
from transformatcher.errors import InputError
from transformatcher.models.baselines.softmax_attention import (
    LinformerAttention,
    PerformerAttention,
    VanillaAttention,
    favor,
    random_directions,
    softmax_attention,
)
from transformatcher.models.build import build_refiner
from transformatcher.models.fused import dispatch
from transformatcher.models.rotary import AxialRotary

GRID = (3, 2, 2, 3)
POSITIONS = list(itertools.product(*(range(n) for n in GRID)))
KINDS = {
    "vanilla": (VanillaAttention, reference.softmax_attention),
    "linformer": (lambda *a, **k: LinformerAttention(*a, grid=GRID, rank=5, **k), reference.softmax_attention),
    "performer": (PerformerAttention, reference.performer_attention),
}


def random64(*shape, grad=False):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


@pytest.mark.parametrize("kind", KINDS)
class TestEach:
    def test_equals_a_loop(self, kind):
        make, reference = KINDS[kind]
        attention = make(6, heads=4, head_dim=4, position=AxialRotary(4, 4)).double()
        x = random64(2, len(POSITIONS), 6)
        out = attention(x, GRID).detach()
        weights = {key: value.numpy() for key, value in attention.state_dict().items()}
        for row in range(2):
            expected = reference(x[row].numpy(), POSITIONS, weights, 4, 4)
            np.testing.assert_allclose(out[row], expected, atol=1e-12 if kind != "performer" else 1e-4)

    @pytest.mark.parametrize("head_dim", [2, 3])  # one that the fused kernels take as it is, and one that is padded
    def test_gradcheck(self, kind, head_dim):
        grid = (1, 2, 2, 1)
        make = {"vanilla": VanillaAttention, "performer": PerformerAttention}.get(
            kind, lambda *a, **k: LinformerAttention(*a, grid=grid, rank=3, **k)
        )
        attention = make(3, heads=2, head_dim=head_dim).double()
        parameters = tuple(attention.parameters())
        assert gradcheck(lambda x, *_: attention(x, grid), (random64(1, 4, 3, grad=True), *parameters))

    def test_runs_eagerly(self, kind):
        refiner = build_refiner(
            model_config({"match2match": {"attention": kind, "depth": 1}, "grid": [2, 3]}), layers=2
        ).double()
        assert not dispatch.can_fuse(refiner.blocks[0].attention)
        corr = random64(1, 2, 2, 3, 2, 3)
        assert refiner(corr).shape == (1, 2, 3, 2, 3)
        refiner.set_backend("fused")
        with pytest.raises(InputError, match="the fused backend supports"):
            refiner(corr)

    def test_a_low_precision_correlation_is_taken(self, kind):
        refiner = build_refiner(
            model_config({"match2match": {"attention": kind, "depth": 1}, "grid": [2, 3]}), layers=2
        )
        assert refiner(torch.rand(1, 2, 2, 3, 2, 3, dtype=torch.bfloat16)).dtype == torch.float32

    def test_every_position_works_with_it(self, kind):
        for position in ("axial", "checkerboard", "none", "absolute"):
            settings = {"match2match": {"attention": kind, "position": position, "depth": 1}, "grid": [2, 3]}
            assert build_refiner(model_config(settings), 2)(torch.rand(1, 2, 2, 3, 2, 3)).shape == (1, 2, 3, 2, 3)


class TestVanilla:
    def test_too_many_matches_are_refused_with_their_need(self):
        attention = VanillaAttention(4, max_matches=8**4)
        attention(torch.zeros(1, 36, 4), GRID)
        message = (
            r"15 × 15 × 15 × 15 = 50,625 matches has 8 heads × T² = 2\.1e\+10 weights .* 76\.4 GiB .* "
            "the limit is T = 4,096: choose grid = 8 or .* raise max_matches"
        )
        with pytest.raises(InputError, match=message):
            attention(torch.zeros(1, 1, 4).expand(1, 15**4, 4), (15, 15, 15, 15))

    def test_the_limit_is_a_setting(self):
        refiner = build_refiner(model_config({"match2match": {"attention": "vanilla", "max_matches": 35}}), layers=2)
        with pytest.raises(InputError, match="the limit is T = 35"):
            refiner(torch.rand(1, 2, *GRID))


class TestLinformer:
    def test_another_grid_is_refused_and_both_are_named(self):
        attention = LinformerAttention(4, grid=GRID)
        with pytest.raises(InputError, match="grid of 3 × 2 × 2 × 3, got 2 × 3 × 2 × 3; build and train it with"):
            attention(torch.zeros(1, 36, 4), (2, 3, 2, 3))

    def test_its_grid_comes_from_the_config(self):
        refiner = build_refiner(
            model_config({"match2match": {"attention": "linformer", "depth": 1}, "image_size": [64, 96]}), layers=2
        )
        assert refiner.blocks[0].attention.grid == (4, 6, 4, 6)
        assert refiner.blocks[0].attention.shorten.weight.shape == (64, 24**2)


class TestPerformer:
    def test_directions_are_orthogonal_in_blocks(self):
        directions = random_directions(10, 4)
        for block in (directions[:4], directions[4:8], directions[8:]):
            products = block @ block.T
            torch.testing.assert_close(products, products.diag().diag(), rtol=0, atol=1e-5)
        assert random_directions(4000, 4).square().sum(dim=1).mean() == pytest.approx(4, rel=0.1)  # as Gaussian ones

    def test_many_features_come_near_to_softmax_attention(self):
        q, k, v = (0.7 * random64(1, 2, 36, 4) for _ in range(3))
        exact = softmax_attention(q, k, v)

        def error(features):
            directions = torch.stack([random_directions(features, 4) for _ in range(2)]).double()
            return (favor(q, k, v, directions) - exact).abs().mean()

        assert error(20000) < 0.01 < 0.03 < error(4)

    def test_features_of_long_vectors_stay_finite(self):
        q, k, v = (100 * random64(1, 2, 36, 4) for _ in range(3))
        directions = torch.stack([random_directions(16, 4) for _ in range(2)]).double()
        assert torch.isfinite(favor(q, k, v, directions)).all()

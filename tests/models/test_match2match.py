"""Match-to-match attention: against loops, with and without its skip connection."""

import numpy as np
import pytest
import torch
from helpers import reference
from helpers.tensors import GRID, random64, weights_of
from torch.autograd import gradcheck

from transformatcher.config import model_config
from transformatcher.errors import InputError
from transformatcher.models.attention import PaperAttention, ReleasedAttention
from transformatcher.models.build import build_refiner
from transformatcher.models.match2match import MatchToMatch, MeanCorrelation


@pytest.mark.parametrize("backend", ["eager", "fused"])
def test_equals_naive_blocks(backend):
    refiner = MatchToMatch(3, dim=4, depth=2, ffn_ratio=2, make_attention=lambda d: PaperAttention(d, 4, 2)).double()
    for name, value in refiner.named_parameters():  # LayerNorm starts as ones and zeros: make it count
        if "norm" in name:
            torch.nn.init.normal_(value)
    refiner.set_backend(backend)
    corr = random64(1, 3, *GRID)
    w = weights_of(refiner)
    x = corr[0].flatten(1).T.numpy() @ w["embed.weight"].T + w["embed.bias"]
    for n in range(2):
        part = {key.removeprefix(f"blocks.{n}."): value for key, value in w.items()}
        attention = {key.removeprefix("attention."): v for key, v in part.items() if key.startswith("attention.")}
        normed = np.array(
            [reference.layer_norm(r, part["norm_attention.weight"], part["norm_attention.bias"]) for r in x]
        )
        still = [(0, 0, 0, 0)] * len(x)  # no position: no rotation
        x = x + reference.paper_attention(normed, still, attention, 4, 2)
        gain, shift = part["norm_ffn.weight"], part["norm_ffn.bias"]
        normed = np.array([reference.layer_norm(row, gain, shift) for row in x])
        hidden = reference.gelu(normed @ part["ffn.0.weight"].T + part["ffn.0.bias"])
        x = x + hidden @ part["ffn.2.weight"].T + part["ffn.2.bias"]
    expected = (x @ w["score.weight"].T + w["score.bias"]).reshape(GRID)
    np.testing.assert_allclose(refiner(corr)[0].detach(), expected, atol=1e-12)


@pytest.mark.parametrize("backend", ["eager", "fused"])
def test_gradcheck(backend):
    refiner = MatchToMatch(2, dim=4, depth=1, make_attention=lambda d: PaperAttention(d, 4, 2)).double()
    refiner.set_backend(backend)
    assert gradcheck(refiner, random64(1, 2, 1, 2, 2, 1, grad=True))


def test_wrong_number_of_layers_is_named():
    with pytest.raises(InputError, match="built for 3 correlation layers, got 2"):
        MatchToMatch(3)(torch.randn(1, 2, 2, 2, 2, 2))


def test_another_attention_is_one_argument():
    class Nothing(torch.nn.Module):
        def forward(self, x, _grid):
            return torch.zeros_like(x)

    refiner = MatchToMatch(3, depth=1, make_attention=lambda _: Nothing())
    assert refiner(torch.randn(1, 3, 2, 3, 2, 2)).shape == (1, 2, 3, 2, 2)


@pytest.mark.parametrize("kind", [PaperAttention, ReleasedAttention])
@pytest.mark.parametrize("backend", ["eager", "fused"])
def test_skip_connection_starts_as_the_mean_correlation(backend, kind):
    refiner = MatchToMatch(4, depth=2, make_attention=kind, correlation_skip=7.0).double()  # a quarter is exact
    refiner.set_backend(backend)
    corr = random64(2, 4, *GRID)
    torch.testing.assert_close(refiner(corr), 7 * MeanCorrelation()(corr), rtol=0, atol=1e-12)


def test_skip_connection_and_blocks_both_learn():
    refiner = MatchToMatch(3, depth=1, correlation_skip=7.0).double()
    corr = random64(2, 3, *GRID)
    weights = random64(2, *GRID)
    (refiner(corr) * weights).sum().backward()
    expected = 7 * torch.einsum("blhwij,bhwij->l", corr, weights)
    torch.testing.assert_close(refiner.mix.grad, expected)
    assert refiner.score.weight.grad.any()


@pytest.mark.parametrize("kind", [PaperAttention, ReleasedAttention])
def test_skip_connection_with_both_backends(kind):
    refiner = MatchToMatch(2, dim=8, depth=2, make_attention=lambda d: kind(d, 4, 2), correlation_skip=3.0).double()
    for parameter in refiner.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    results = {}
    for backend in ("eager", "fused"):
        refiner.set_backend(backend)
        corr = torch.linspace(0, 1, 2 * 36, dtype=torch.float64).sin().reshape(1, 2, *GRID).requires_grad_()
        out = refiner(corr)
        results[backend] = out, *torch.autograd.grad(out.square().sum(), (corr, *refiner.parameters()))
    torch.testing.assert_close(results["fused"], results["eager"], rtol=1e-9, atol=1e-9)


def test_without_skip_connection_there_are_no_layer_weights():
    assert "mix" not in MatchToMatch(2, depth=1).state_dict()
    refiner = build_refiner(model_config({"correlation_skip": 5, "match2match.depth": 1}), layers=4)
    assert refiner.correlation_skip == 5.0
    torch.testing.assert_close(refiner.state_dict()["mix"], torch.full((4,), 0.25))


def test_mean_correlation():
    corr = random64(2, 3, *GRID)
    torch.testing.assert_close(MeanCorrelation()(corr), (corr[:, 0] + corr[:, 1] + corr[:, 2]) / 3)

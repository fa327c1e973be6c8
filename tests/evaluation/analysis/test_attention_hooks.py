"""The recorded attention is what the model itself computes."""

import pytest
import torch
from einops import rearrange
from torch import nn

from transformatcher.config import model_config
from transformatcher.errors import InputError
from transformatcher.evaluation.analysis.attention_hooks import AttentionRecord, additive_layers, record_attention
from transformatcher.models.attention import PaperAttention, ReleasedAttention, sum_neighbours
from transformatcher.models.build import build_refiner
from transformatcher.models.match2match import MatchToMatch, MeanCorrelation

GRID = (3, 2, 4, 3)


@pytest.fixture(params=["paper", "released"])
def refiner(request) -> nn.Module:
    settings = {"variant": request.param, "match2match.depth": 3, "correlation_skip": 2.0}
    return build_refiner(model_config(settings), layers=5).double()


def test_the_refined_map_is_the_models_own(refiner):
    nn.init.normal_(refiner.score.weight)  # with a correlation_skip it starts at zero
    corr = torch.rand(2, 5, *GRID).double()
    refiner.set_backend("eager")
    expected = refiner(corr)
    refiner.set_backend("auto")
    refined, indices = record_attention(refiner, corr, lambda layer: layer.index)
    assert torch.equal(refined, expected)
    assert indices == [0, 1, 2]
    assert refiner.backend == "auto"
    assert not any(module._forward_hooks for module in refiner.modules())


def test_weights_are_distributions_over_the_matches(refiner):
    _, layers = record_attention(refiner, torch.rand(2, 5, *GRID).double(), lambda layer: layer)
    for layer in layers:
        assert layer.alpha.shape == layer.beta.shape == (2, 8, 72)
        for weights in (layer.alpha, layer.beta):
            torch.testing.assert_close(weights.sum(dim=2), torch.ones(2, 8).double())


def test_weights_queries_and_keys_make_the_layers_output(refiner):
    """With the weights alone, Eq. 5-6 give what the attention returns."""
    inputs = {}

    def keep(module, given):
        inputs[module] = given[0]

    attentions = additive_layers(refiner)
    hooks = [attention.register_forward_pre_hook(keep) for attention in attentions]
    _, layers = record_attention(refiner, torch.rand(1, 5, *GRID).double(), lambda layer: layer)
    for hook in hooks:
        hook.remove()
    for attention, layer in zip(attentions, layers, strict=True):
        x = inputs[attention]
        torch.testing.assert_close(_rebuilt(attention, layer, x), attention(x, GRID))


def _rebuilt(attention, layer: AttentionRecord, x):
    q, k, v = rearrange(attention.to_qkv(x), "b t (three n d) -> three b n t d", three=3, n=8)
    global_q = torch.einsum("bnt,bntd->bnd", layer.alpha, layer.queries)[:, :, None]
    if isinstance(attention, PaperAttention):
        h, residual, fold = layer.keys * global_q, layer.queries, lambda u: u
    else:
        assert isinstance(attention, ReleasedAttention)
        h, residual, fold = layer.keys, q, sum_neighbours
    scores = attention.scale * attention.to_k_score(fold((layer.keys if fold(k) is k else k) * global_q))
    torch.testing.assert_close(scores.softmax(dim=2)[..., 0], layer.beta)
    global_k = torch.einsum("bnt,bntd->bnd", layer.beta, h)[:, :, None]
    heads = attention.to_update(fold(v * global_k)) + residual
    return attention.to_out(rearrange(heads, "b n t d -> b t (n d)"))


def test_hooks_are_removed_after_an_error(refiner):
    def fail(_layer):
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        record_attention(refiner, torch.rand(1, 5, *GRID).double(), fail)
    assert not any(module._forward_hooks for module in refiner.modules())
    assert refiner.backend == "auto"


@pytest.mark.parametrize("refiner", [MeanCorrelation(), MatchToMatch(3, make_attention=lambda _: nn.Identity())])
def test_refiners_without_additive_attention_are_refused(refiner):
    with pytest.raises(InputError, match="no additive attention"):
        record_attention(refiner, torch.rand(1, 3, *GRID), lambda layer: layer)

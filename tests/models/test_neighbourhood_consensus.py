"""Neighbourhood consensus: its convolution and filter against loops, and what it must do."""

import numpy as np
import pytest
import torch
from helpers import reference
from torch.autograd import gradcheck

from transformatcher.config import model_config
from transformatcher.errors import InputError
from transformatcher.models.build import build_refiner
from transformatcher.models.match2match import MatchToMatch, MeanCorrelation
from transformatcher.models.neighbourhood_consensus import Conv4d, NeighbourhoodConsensus, soft_mutual

GRID = (3, 2, 2, 4)
BRANCH = {"conv_branch_depth": 2, "conv_branch_kernel": 1, "conv_branch_mutual_filter": False}
BESIDE = {"match2match": {"depth": 2, **BRANCH}}


def random64(*shape, grad=False):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def positive64(*shape, grad=False):
    return torch.rand(*shape, dtype=torch.float64, requires_grad=grad)


def naive_weights(conv):
    return conv.weight.detach().numpy(), conv.bias.detach().numpy()


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize(("inputs", "outputs"), [(2, 3), (3, 2)])
def test_convolution_equals_a_loop(kernel, inputs, outputs):
    conv = Conv4d(inputs, outputs, kernel).double()
    x = random64(2, inputs, *GRID)
    out = conv(x).detach()
    for row in range(2):
        np.testing.assert_allclose(out[row], reference.conv4d(x[row].numpy(), *naive_weights(conv)), atol=1e-12)
    exchanged = x.permute(0, 1, 4, 5, 2, 3)
    torch.testing.assert_close(conv(exchanged, swapped=True).detach().permute(0, 1, 4, 5, 2, 3), out)


def test_filter_equals_a_loop():
    corr = positive64(1, 2, *GRID)
    for channel in range(2):
        np.testing.assert_allclose(
            soft_mutual(corr)[0, channel], reference.soft_mutual(corr[0, channel].numpy()), atol=1e-12
        )


def test_filter_keeps_mutual_neighbours_and_takes_maps_without_similarity():
    corr = 0.5 * torch.eye(4).reshape(1, 1, 2, 2, 2, 2) + 0.1
    filtered = soft_mutual(corr).reshape(4, 4)
    torch.testing.assert_close(filtered.diag(), torch.full((4,), 0.6))
    assert filtered[0, 1] < 0.01
    assert not soft_mutual(torch.zeros(1, 1, *GRID)).any()


@pytest.mark.parametrize("mutual", [True, False])
def test_equals_a_loop(mutual):
    refiner = NeighbourhoodConsensus(2, dim=3, depth=2, mutual_filter=mutual).double()
    corr = positive64(1, 2, *GRID)
    x = np.stack([reference.soft_mutual(channel) if mutual else channel for channel in corr[0].numpy()])

    def consensus(x):
        hidden = np.maximum(reference.conv4d(x, *naive_weights(refiner.convs[0])), 0)
        return reference.conv4d(hidden, *naive_weights(refiner.score))[0]

    expected = consensus(x) + consensus(x.transpose(0, 3, 4, 1, 2)).transpose(2, 3, 0, 1)
    np.testing.assert_allclose(refiner(corr)[0].detach(), expected, atol=1e-12)


def test_it_does_not_matter_which_image_is_the_source():
    refiner = NeighbourhoodConsensus(2).double()
    corr = positive64(1, 2, *GRID)
    swapped = refiner(corr.permute(0, 1, 4, 5, 2, 3)).permute(0, 3, 4, 1, 2)
    torch.testing.assert_close(swapped, refiner(corr))


@pytest.mark.parametrize("layers", [2, 20])  # fewer than the convolutions' channels, and more
def test_a_bfloat16_correlation_is_convolved_in_bfloat16(layers):
    refiner = NeighbourhoodConsensus(layers)
    corr = torch.rand(1, layers, *GRID).bfloat16()
    seen = []
    for conv in (*refiner.convs, refiner.score):
        conv.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    low = refiner(corr)
    assert seen == [torch.bfloat16, torch.bfloat16, torch.float32] * 2  # logits are not rounded
    torch.testing.assert_close(low, refiner(corr.float()), rtol=0.05, atol=0.01)


def test_distant_matches_have_no_effect():
    refiner = NeighbourhoodConsensus(1, depth=2, mutual_filter=False)
    corr = torch.rand(1, 1, 6, 2, 2, 6)
    changed = corr.clone()
    changed[0, 0, 5, 0, 0, 5] += 1
    moved = (refiner(changed) - refiner(corr)).abs()[0] > 0
    assert moved[3:, :, :, 3:].any()
    assert not moved[:3].any()
    assert not moved[..., :3].any()


def test_gradcheck():
    refiner = NeighbourhoodConsensus(2, dim=2, depth=2, correlation_skip=2.0).double()
    for parameter in refiner.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    parameters = tuple(refiner.parameters())
    assert gradcheck(lambda corr, *_: refiner(corr), (positive64(1, 2, 2, 1, 2, 2, grad=True), *parameters))


def test_skip_connection_starts_as_the_mean_correlation_and_learns():
    refiner = NeighbourhoodConsensus(4, correlation_skip=7.0).double()
    corr = positive64(2, 4, *GRID)
    torch.testing.assert_close(refiner(corr), 7 * MeanCorrelation()(corr))
    (refiner(corr) * random64(2, *GRID)).sum().backward()
    assert refiner.mix.grad.any()
    assert refiner.score.weight.grad.any()


def test_chosen_by_config():
    refiner = build_refiner(model_config({"refiner": "nc4d", "nc4d": {"kernel": 5, "mutual_filter": False}}), layers=9)
    assert isinstance(refiner, NeighbourhoodConsensus)
    assert [conv.weight.shape[:3] for conv in (*refiner.convs, refiner.score)] == [(16, 9, 5), (16, 16, 5), (1, 16, 5)]
    assert not refiner.mutual_filter
    assert refiner(torch.rand(1, 9, *GRID, dtype=torch.bfloat16)).dtype == torch.float32
    with pytest.raises(InputError, match="built for 9 correlation layers, got 2"):
        refiner(torch.rand(1, 2, *GRID))


class TestBesideAttention:
    def test_what_both_say_is_summed(self):
        refiner = build_refiner(model_config(BESIDE), layers=3)
        assert isinstance(refiner, MatchToMatch)
        assert [conv.weight.shape[:3] for conv in (*refiner.consensus.convs, refiner.consensus.score)] == [
            (16, 3, 1),
            (1, 16, 1),
        ]
        assert not refiner.consensus.mutual_filter
        corr, beside = torch.rand(1, 3, *GRID), refiner.consensus
        both = refiner(corr)
        refiner.consensus = None
        torch.testing.assert_close(both, refiner(corr) + beside(corr))
        assert build_refiner(model_config(), layers=3).consensus is None  # unless asked for

    def test_skip_connection_starts_as_the_mean_correlation_and_learns(self):
        refiner = build_refiner(model_config(BESIDE | {"correlation_skip": 7.0}), layers=3)
        corr = torch.rand(1, 3, *GRID)
        torch.testing.assert_close(refiner(corr), 7 * MeanCorrelation()(corr))
        (refiner(corr) * torch.randn(1, *GRID)).sum().backward()
        assert all(parameter.grad is not None for parameter in refiner.parameters())  # none lies idle
        assert refiner.consensus.score.weight.grad.any()

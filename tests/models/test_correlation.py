"""Correlation: against equation 4 as loops, and the variants of the ablations."""

import numpy as np
import pytest
import torch
from helpers import reference
from helpers.tensors import random64
from torch.autograd import gradcheck

from transformatcher.errors import InputError
from transformatcher.models.correlation import MultiLevelCorrelation, cosine_correlation


def test_equals_equation_4():
    src, trg = random64(1, 5, 2, 3), random64(1, 5, 4, 2)
    expected = reference.correlation(src[0].numpy(), trg[0].numpy())
    np.testing.assert_allclose(cosine_correlation(src, trg)[0], expected, atol=1e-12)


def test_paper_resizes_the_maps():
    src, trg = [random64(1, 4, 3, 4), random64(1, 6, 2, 2)], [random64(1, 4, 3, 4), random64(1, 6, 2, 2)]
    out = MultiLevelCorrelation("resize-correlation")(src, trg)
    assert out.shape == (1, 2, 3, 4, 3, 4)
    expected = reference.resize(reference.correlation(src[1][0].numpy(), trg[1][0].numpy()), (3, 4, 3, 4))
    np.testing.assert_allclose(out[0, 1], expected, atol=1e-12)


def test_released_resizes_normalised_features():
    src, trg = [random64(1, 6, 2, 2)], [random64(1, 6, 2, 2)]
    out = MultiLevelCorrelation("resize-features", grid=(3, 4))(src, trg)
    unit = [(f / f.norm(dim=1, keepdim=True))[0].numpy() for f in (*src, *trg)]
    f, g = (reference.resize(u, (6, 3, 4)) for u in unit)
    np.testing.assert_allclose(out[0, 0], np.maximum(np.einsum("cij,ckl->ijkl", f, g), 0), atol=1e-12)


def test_both_are_equal_on_features_that_passed_a_relu():
    src, trg = ([random64(1, 4, 5, 3).relu() + 0.01, random64(1, 6, 3, 2).relu() + 0.01] for _ in range(2))
    paper, released = (MultiLevelCorrelation(kind)(src, trg) for kind in ("resize-correlation", "resize-features"))
    torch.testing.assert_close(paper, released, rtol=0, atol=1e-12)


def test_source_and_target_grids_may_differ():
    out = MultiLevelCorrelation()([random64(1, 4, 3, 4)], [random64(1, 4, 5, 2)])
    assert out.shape == (1, 1, 3, 4, 5, 2)


def test_mean_is_that_of_the_channels():
    src, trg = ([random64(2, 4, 3, 4), random64(2, 6, 2, 2)] for _ in range(2))
    multi, mean = (MultiLevelCorrelation(layer_fusion=layer_fusion)(src, trg) for layer_fusion in ("multi", "mean"))
    torch.testing.assert_close(mean, (multi[:, :1] + multi[:, 1:]) / 2)


@pytest.mark.parametrize("kind", ["resize-correlation", "resize-features"])
def test_concat_is_the_cosine_of_features_one_behind_the_other(kind):
    src, trg = ([random64(1, 4, 3, 4), random64(1, 6, 2, 2)] for _ in range(2))
    out = MultiLevelCorrelation(kind, layer_fusion="concat")(src, trg)
    assert out.shape == (1, 1, 3, 4, 3, 4)
    f, g = (
        np.concatenate([fine[0].numpy(), reference.resize(coarse[0].numpy(), (6, 3, 4))]) for fine, coarse in (src, trg)
    )
    np.testing.assert_allclose(out[0, 0], reference.correlation(f, g), atol=1e-12)


def test_the_grid_is_that_of_the_finest_layer():
    src, trg = ([random64(1, 4, 3, 4), random64(1, 6, 2, 2), random64(1, 6, 2, 2)] for _ in range(2))
    every, some = (MultiLevelCorrelation(grid=(3, 4))(src[i:], trg[i:]) for i in (0, 1))
    assert torch.equal(some, every[:, 1:])
    assert MultiLevelCorrelation()(src[1:], trg[1:]).shape == (1, 2, 2, 2, 2, 2)


def test_uneven_layers_are_refused():
    with pytest.raises(InputError, match="2 and 1"):
        MultiLevelCorrelation()([random64(1, 4, 3, 4)] * 2, [random64(1, 4, 3, 4)])


@pytest.mark.parametrize("kind", ["resize-correlation", "resize-features"])
@pytest.mark.parametrize("layer_fusion", ["multi", "concat", "mean"])
def test_gradcheck(kind, layer_fusion):
    features = [random64(1, 3, 2, 2, grad=True), random64(1, 2, 2, 3, grad=True)]
    other = [random64(1, 3, 2, 2, grad=True), random64(1, 2, 2, 3, grad=True)]
    stage = MultiLevelCorrelation(kind, grid=(2, 3), layer_fusion=layer_fusion)
    assert gradcheck(lambda a, b, c, d: stage([a, b], [c, d]), (*features, *other))

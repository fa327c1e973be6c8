"""Cost aggregation: against a loop, and what it must do."""

import numpy as np
import pytest
import torch
from helpers import reference
from torch.autograd import gradcheck

from transformatcher.config import model_config
from transformatcher.errors import InputError
from transformatcher.models.baselines.cats import CostAggregation
from transformatcher.models.build import build_refiner
from transformatcher.models.match2match import MeanCorrelation

SIZE = (3, 2)
GRID = SIZE + SIZE


def random64(*shape, grad=False):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def shaken(refiner):
    """Every parameter at random: ones and zeros would hide a mistake."""
    for parameter in refiner.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return refiner.double()


def attend(x, w):
    return reference.softmax_attention(x, [(0, 0, 0, 0)] * len(x), w, 2, 4)


def naive_aggregate(maps, w, depth):
    """maps (l, s, t): tokens with their places, blocks over cells, then over layers, back to cells."""
    layers, cells, _ = maps.shape
    x = np.zeros((layers, cells, w["to_tokens.weight"].shape[0]))
    for layer, cell in np.ndindex(layers, cells):
        x[layer, cell] = w["to_tokens.weight"] @ maps[layer, cell] + w["to_tokens.bias"] + w["layer_vectors"][layer]
        x[layer, cell] += w["row_vectors"][cell // SIZE[1]] + w["column_vectors"][cell % SIZE[1]]
    for n in range(depth):
        within, across = (
            {key.removeprefix(f"{kind}.{n}."): v for key, v in w.items() if key.startswith(f"{kind}.{n}.")}
            for kind in ("within", "across")
        )
        x = np.stack([reference.block(x[layer], within, attend) for layer in range(layers)])
        x = np.stack([reference.block(x[:, cell], across, attend) for cell in range(cells)], axis=1)
    return x @ w["to_cells.weight"].T + w["to_cells.bias"]


@pytest.mark.parametrize("depth", [1, 2])
def test_equals_a_loop(depth):
    refiner = shaken(CostAggregation(3, SIZE, dim=8, depth=depth, heads=2, head_dim=4, ffn_ratio=2))
    corr = random64(2, 3, *GRID)
    w = {key: value.numpy() for key, value in refiner.state_dict().items()}
    out = refiner(corr).detach()
    for row in range(2):
        maps = corr[row].numpy().reshape(3, 6, 6)
        maps = maps + naive_aggregate(maps, w, depth)
        maps = maps + naive_aggregate(maps.transpose(0, 2, 1), w, depth).transpose(0, 2, 1)
        expected = np.einsum("l,lst->st", w["score.weight"][0], maps) + w["score.bias"]
        np.testing.assert_allclose(out[row], expected.reshape(GRID), atol=1e-10)


def test_gradcheck():
    refiner = shaken(CostAggregation(2, (2, 1), dim=4, heads=1, head_dim=2, ffn_ratio=1, correlation_skip=2.0))
    parameters = tuple(refiner.parameters())
    assert gradcheck(lambda corr, *_: refiner(corr), (random64(1, 2, 2, 1, 2, 1, grad=True), *parameters))


def test_begins_near_the_mean_correlation():
    refiner = CostAggregation(4, SIZE).double()
    torch.nn.init.zeros_(refiner.to_cells.weight)
    torch.nn.init.zeros_(refiner.to_cells.bias)
    corr = random64(2, 4, *GRID)
    torch.testing.assert_close(refiner(corr) - refiner.score.bias, MeanCorrelation()(corr))


def test_skip_connection_starts_as_the_mean_correlation_and_learns():
    refiner = CostAggregation(4, SIZE, correlation_skip=7.0).double()
    corr = random64(2, 4, *GRID)
    torch.testing.assert_close(refiner(corr), 7 * MeanCorrelation()(corr))
    (refiner(corr) * random64(2, *GRID)).sum().backward()
    assert refiner.mix.grad.any()
    assert refiner.score.weight.grad.any()


def test_chosen_by_config():
    settings = {"refiner": "cats", "image_size": [48, 32]}
    refiner = build_refiner(model_config(settings), layers=2)
    assert isinstance(refiner, CostAggregation)
    assert (refiner.grid, len(refiner.within), refiner.to_tokens.out_features) == (SIZE, 1, 32)
    assert refiner(torch.rand(1, 2, *GRID, dtype=torch.bfloat16)).dtype == torch.float32
    assert build_refiner(model_config(settings | {"cats.dim": 8}), layers=2).to_tokens.out_features == 8


def test_another_grid_is_refused_and_both_are_named():
    refiner = CostAggregation(2, SIZE)
    with pytest.raises(InputError, match="each cell of 3 × 2 on both sides, got 3 × 2 and 2 × 3; build and train"):
        refiner(torch.rand(1, 2, 3, 2, 2, 3))

"""Attention weights of a layer, and their picture."""

import numpy as np
import pytest
from helpers.analysis import write_checkpoint

from transformatcher.errors import InputError
from transformatcher.evaluation.analysis.attention_figure import (
    AttentionMaps,
    attention_maps,
    draw_attention,
    marginals,
    selectivity,
    strongest_matches,
)
from transformatcher.inference.checkpoint import load_checkpoint

GRID = (3, 4, 2, 5)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_checkpoint(write_checkpoint(tmp_path_factory.mktemp("weights")))[0]


def photo(h: int, w: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (h, w, 3), dtype=np.uint8)


def test_attention_maps(model):
    maps = attention_maps(model, photo(50, 80), photo(70, 60), (64, 64), layer=2)
    assert (maps.layer, maps.depth, maps.grid) == (2, 2, (4, 4, 4, 4))
    assert maps.query.shape == maps.key.shape == (8, 256)
    np.testing.assert_allclose(maps.query.sum(axis=1), 1)
    layers = [attention_maps(model, photo(50, 80), photo(70, 60), (64, 64), layer=layer) for layer in (1, 2)]
    sums = [selectivity(layer.query) + selectivity(layer.key) for layer in layers]
    assert attention_maps(model, photo(50, 80), photo(70, 60), (64, 64)).layer == 1 + int(np.argmax(sums))
    with pytest.raises(InputError, match="--layer 3: this model has layers 1 to 2"):
        attention_maps(model, photo(50, 80), photo(70, 60), (64, 64), layer=3)


def test_selectivity():
    assert selectivity(np.full((2, 10), 0.1)) == pytest.approx(0)
    assert selectivity(np.eye(10)[:2]) == pytest.approx(np.log(10))


def test_marginals():
    weights = np.zeros((1, 120))
    weights[0, np.ravel_multi_index((1, 2, 0, 4), GRID)] = 1
    on_src, on_trg = marginals(weights, GRID)
    assert on_src.shape == (1, 3, 4)
    assert on_src[0, 1, 2] == 12  # times the mean cell
    assert on_trg[0, 0, 4] == 10
    uniform = marginals(np.full((1, 120), 1 / 120), GRID)
    np.testing.assert_allclose(uniform[0], 1)
    np.testing.assert_allclose(uniform[1], 1)


def test_neighbours_of_a_stronger_match_are_left_out():
    weights = np.zeros(5**4)
    cells = [(2, 2, 2, 2), (2, 2, 2, 3), (2, 2, 2, 4), (0, 0, 0, 0)]
    for weight, cell in zip((4, 3, 2, 1), cells, strict=True):
        weights[np.ravel_multi_index(cell, (5, 5, 5, 5))] = weight
    chosen = strongest_matches(weights, (5, 5, 5, 5), 3)
    assert [np.unravel_index(index, (5, 5, 5, 5)) for index in chosen] == [cells[0], cells[2], cells[3]]


@pytest.mark.parametrize("sharpness", [0.0, 8.0])
@pytest.mark.parametrize("sizes", [((50, 80), (300, 90)), ((900, 1400), (40, 30))])
def test_drawing(sharpness, sizes):
    logits = sharpness * np.random.default_rng(1).normal(size=(2, 3, 120))
    weights = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    figure = draw_attention(photo(*sizes[0]), photo(*sizes[1]), AttentionMaps(1, 6, GRID, *weights), "a model", most=5)
    assert len(figure.axes) == 3 * 4 + 1  # heads × (query, key) × two photos, and the colour bar
    words = [text.get_text() for text in figure.texts]
    assert sum("half of the weight" in text for text in words) == 6
    if sharpness == 0:
        assert sum("on 50 % of the matches" in text for text in words) == 6

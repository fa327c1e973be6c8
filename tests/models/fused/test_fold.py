"""Folded weights: computed anew unless the weights are frozen."""

import pytest
import torch
from helpers.fused import make_refiner

from transformatcher.config import model_config
from transformatcher.models.attention import PaperAttention
from transformatcher.models.build import build_matcher
from transformatcher.models.fused.fold import fold_block, position_features, position_key
from transformatcher.models.fused.inference import for_inference
from transformatcher.models.rotary import AxialRotary, Checkerboard


def test_weights_that_change_unseen_are_folded_again():
    """Torch does not count every change: not those through .data, nor (on CUDA) those of an average of weights."""
    module = make_refiner(PaperAttention, Checkerboard).requires_grad_(False)
    corr = torch.rand(1, 3, 2, 3, 3, 2)
    before = module(corr)
    module.blocks[0].ffn[0].weight.data.mul_(2)
    changed = module(corr)
    assert not torch.allclose(changed, before)
    module.set_backend("eager")
    torch.testing.assert_close(changed, module(corr), rtol=1e-4, atol=1e-4)


def test_frozen_weights_are_folded_once():
    config = model_config({"backbone": "resnet50", "match2match.depth": 1})
    model = for_inference(build_matcher(config), torch.float32)
    corr = torch.rand(1, 9, 2, 3, 3, 2)
    first, folded = model.refiner(corr), fold_block(model.refiner.blocks[0])
    torch.testing.assert_close(model.refiner(corr), first)
    assert fold_block(model.refiner.blocks[0]) is folded


@pytest.mark.parametrize("frozen", [False, True])
def test_what_inference_cached_can_be_used_in_training(frozen):
    """Tensors made in inference mode may not take part in a backward pass."""
    module = make_refiner(PaperAttention, lambda: AxialRotary(8, 4)).requires_grad_(not frozen)
    if frozen:
        module.blocks[0].freeze_weights()
    corr = torch.rand(1, 3, 2, 3, 3, 2)
    with torch.inference_mode():
        module(corr)
    corr.requires_grad_()
    module(corr).sum().backward()
    assert corr.grad is not None


def test_features_of_the_last_grid_are_cached():
    position = AxialRotary(8, 4)
    first = position_features(position, (2, 3, 3, 2))
    assert position_features(position, (2, 3, 3, 2)) is first
    assert position_features(position, (3, 3, 3, 2)).grid == (3, 3, 3, 2)


def test_equal_positions_have_equal_keys():
    assert position_key(AxialRotary(8, 4)) == position_key(AxialRotary(8, 4))
    assert position_key(AxialRotary(8, 4)) != position_key(AxialRotary(8, 4, base=10.0))

"""Learning rates, the EMA of the weights, and the groups of the optimizer."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from transformatcher.config import TrainConfig, model_config
from transformatcher.models.build import build_matcher
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.training.optim import EMA, lr_factor, make_optimizer

CPU = torch.device("cpu")


class TestLearningRate:
    def test_warm_up_then_constant(self):
        assert [lr_factor(step, 10, 4, "constant") for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
        assert lr_factor(0, 10, 0, "constant") == 1

    def test_cosine_falls_from_one_to_nothing(self):
        scales = [lr_factor(step, 100, 20, "cosine") for step in range(101)]
        assert scales[19] == scales[20] == 1
        assert scales[60] == pytest.approx(0.5)  # half way from the warm-up to the end
        assert scales[100] == pytest.approx(0)
        assert all(a > b for a, b in pairwise(scales[20:]))

    def test_a_run_shorter_than_its_warm_up(self):
        assert [lr_factor(step, 2, 4, "cosine") for step in range(2)] == [0.25, 0.5]
        assert math.isfinite(lr_factor(4, 4, 4, "cosine"))


class TwoLayers(TransforMatcher):
    """Weights and running statistics, and nothing else of a matcher."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.backbone, self.refiner = nn.BatchNorm1d(3), nn.Linear(2, 2)


class TestEma:
    def test_equals_a_naive_running_mean(self):
        model = TwoLayers()
        ema = EMA(model, 0.6)
        expected = {key: value.double().numpy() for key, value in model.state_dict().items()}
        for step in range(1, 30):
            for value in model.state_dict().values():
                value.add_(torch.randn_like(value) if value.is_floating_point() else 0)
            ema.update_parameters(model)
            decay = min(0.6, (1 + step) / (10 + step))  # smaller at first
            for key, value in model.state_dict().items():
                expected[key] = decay * expected[key] + (1 - decay) * value.double().numpy()
        for key, value in ema.module.state_dict().items():
            np.testing.assert_allclose(value.double(), expected[key], atol=1e-5, err_msg=key)

    def test_integer_buffers_stay(self):
        model = TwoLayers()
        ema = EMA(model, 0.5)
        model.backbone.num_batches_tracked.fill_(100)
        ema.update_parameters(model)
        assert ema.module.backbone.num_batches_tracked == 0

    def test_follows_what_an_optimizer_or_a_checkpoint_changes(self):
        model = TwoLayers()
        ema = EMA(model, 0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.refiner(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        before = ema.module.refiner.weight.clone()
        for _ in range(40):
            ema.update_parameters(model)
        assert not torch.equal(ema.module.refiner.weight, before)
        torch.testing.assert_close(ema.module.refiner.weight, model.refiner.weight.detach())
        model.load_state_dict({key: torch.zeros_like(value) for key, value in model.state_dict().items()})
        for _ in range(60):
            ema.update_parameters(model)
        torch.testing.assert_close(ema.module.refiner.weight, torch.zeros(2, 2))

    def test_goes_on_from_its_own_state(self):
        model = TwoLayers()
        ema, resumed = EMA(model, 0.9), EMA(model, 0.9)
        for _ in range(3):
            model.refiner.weight.data.add_(1)
            ema.update_parameters(model)
        resumed.load_state_dict(ema.state_dict())
        for averaged in (ema, resumed):
            averaged.update_parameters(model)
        assert torch.equal(ema.module.refiner.weight, resumed.module.refiner.weight)

    def test_the_model_stays_and_the_average_does_not_learn(self):
        model = TwoLayers()
        ema = EMA(model, 0.9)
        before = model.refiner.weight.detach().clone()
        with torch.no_grad():
            ema.module.refiner.weight.zero_()
        ema.update_parameters(model)
        assert torch.equal(model.refiner.weight, before)
        assert model.refiner.weight.requires_grad
        assert not any(p.requires_grad for p in ema.parameters())


@pytest.fixture(scope="module")
def model() -> TransforMatcher:
    return build_matcher(model_config({"backbone": "resnet50_v1", "stages": 1, "grid": 4, "match2match.depth": 1}))


class TestOptimizer:
    def test_two_rates(self, model: TransforMatcher):
        optimizer = make_optimizer(model, TrainConfig(lr=3e-3, lr_backbone=4e-5, weight_decay=0.1), CPU)
        matcher, backbone = optimizer.param_groups
        assert (matcher["lr"], matcher["base_lr"], matcher["weight_decay"]) == (3e-3, 3e-3, 0.1)
        assert (backbone["lr"], backbone["base_lr"]) == (4e-5, 4e-5)
        assert {id(p) for p in backbone["params"]} == {id(p) for p in model.backbone.parameters()}
        every = [id(p) for group in optimizer.param_groups for p in group["params"]]
        assert sorted(every) == sorted(id(p) for p in model.parameters())

    def test_a_backbone_that_stays_as_it_is(self, model: TransforMatcher):
        (group,) = make_optimizer(model, TrainConfig(lr_backbone=0.0), CPU).param_groups
        assert {id(p) for p in group["params"]} == {id(p) for p in model.refiner.parameters()}

    def test_a_matcher_without_weights(self):
        raw = build_matcher(model_config({"variant": "raw", "backbone": "resnet50_v1", "stages": 1}))
        (group,) = make_optimizer(raw, TrainConfig(lr_backbone=1e-4), CPU).param_groups
        assert group["lr"] == 1e-4

    def test_without_decay_it_is_adam(self):
        ours, theirs = TwoLayers(), TwoLayers()
        theirs.load_state_dict(ours.state_dict())
        one = make_optimizer(ours, TrainConfig(lr=0.1, lr_backbone=0.0), CPU)
        other = torch.optim.Adam(theirs.refiner.parameters(), lr=0.1)
        for _ in range(3):
            for module, optimizer in ((ours, one), (theirs, other)):
                optimizer.zero_grad()
                module.refiner(torch.ones(1, 2)).square().sum().backward()
                optimizer.step()
        torch.testing.assert_close(ours.refiner.weight, theirs.refiner.weight)

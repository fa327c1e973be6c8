"""The interface of all backbones: choosing layers, freezing batch norms."""

import pytest
import torch
from torch import nn

from transformatcher.errors import InputError
from transformatcher.models.backbones.backbone import choose_layers
from transformatcher.models.backbones.resnet import ResNetFeatures


@pytest.mark.parametrize(
    ("layers", "chosen"),
    [("all", (2, 3, 4)), ("every-other", (2, 4)), ([0, 3], (0, 3))],
)
def test_choose_layers(layers, chosen):
    assert choose_layers(layers, range(2, 5), 5, "net") == chosen


def test_layers_that_are_not_there_are_named():
    with pytest.raises(InputError, match=r"layers = \[0, 5\]: net has 5 layers, numbered from 0 to 4"):
        choose_layers([0, 5], range(5), 5, "net")


def test_frozen_norms_stay_frozen_in_training():
    net = ResNetFeatures("resnet50", stages=(1,)).train()
    before = net.bn1.running_mean.clone()
    net.freeze_norms()
    for _ in range(2):
        net.train()
        assert net.training
        assert not any(module.training for module in net.modules() if isinstance(module, nn.BatchNorm2d))
        net(torch.randn(1, 3, 32, 32))
    assert torch.equal(net.bn1.running_mean, before)

"""ResNets: against torchvision, their layers, their frozen batch norms."""

import pytest
import torch
import torchvision

from transformatcher.models.backbones.resnet import ResNetFeatures, grid_of


@pytest.mark.parametrize(("name", "layers"), [("resnet50", 9), ("resnet50_v1", 9), ("resnet101", 26)])
@torch.no_grad()
def test_all_bottlenecks_of_both_stages(name, layers):
    net = ResNetFeatures(name).eval()
    features = net(torch.randn(1, 3, 96, 64))
    assert len(features) == net.n_layers == layers
    assert features[0].shape == (1, 1024, 6, 4)
    assert features[-1].shape == (1, 2048, 3, 2)
    assert all((f >= 0).all() for f in features)  # after their ReLU


@torch.no_grad()
def test_equals_torchvision():
    theirs = torchvision.models.resnet50().eval()
    ours = ResNetFeatures("resnet50", stages=(1, 4)).eval()
    ours.load_state_dict({k: v for k, v in theirs.state_dict().items() if not k.startswith("fc.")})
    x = torch.randn(1, 3, 64, 96)
    stem = theirs.maxpool(theirs.relu(theirs.bn1(theirs.conv1(x))))
    first = theirs.layer1(stem)
    features = ours(x)
    torch.testing.assert_close(features[2], first)
    torch.testing.assert_close(features[-1], theirs.layer4(theirs.layer3(theirs.layer2(first))))


def test_v1_moves_the_stride():
    block = ResNetFeatures("resnet50_v1").get_submodule("layer3.0")
    assert (block.conv1.stride, block.conv2.stride) == ((2, 2), (1, 1))


def test_stages_after_the_last_are_left_out():
    assert not any(key.startswith("layer4") for key in ResNetFeatures("resnet50", stages=(3,)).state_dict())


@pytest.mark.parametrize("name", ["resnet50", "resnet50_v1"])
@torch.no_grad()
def test_grids_are_known_before_an_image_is_seen(name):
    net = ResNetFeatures(name, stages=(1, 2, 3, 4)).eval()
    for size in ((65, 97), (64, 80)):
        features = net(torch.randn(1, 3, *size))
        for stage, feature in zip(net.stage_of_layer, features, strict=True):
            assert grid_of(size, stage) == feature.shape[2:]


def test_frozen_batch_norms_are_part_of_their_convolutions():
    """The same features and the same gradients of every weight, in fewer passes."""
    net = ResNetFeatures("resnet50_v1", stages=(1, 2)).double().eval()
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
            torch.nn.init.uniform_(module.weight, 0.2, 0.6)
    images = torch.randn(2, 3, 40, 32, dtype=torch.float64)
    outcomes = []
    for frozen in (False, True):
        if frozen:
            net.freeze_norms()
        features = net(images)
        grads = torch.autograd.grad(sum(f.square().mean() for f in features), list(net.parameters()))
        outcomes.append([*features, *grads])
    for ours, theirs in zip(*outcomes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_chosen_layers_are_those_of_all():
    """Layers that are not chosen keep their weights, so that a checkpoint does not depend on the choice."""
    every, some = (
        ResNetFeatures("resnet50").eval(),
        ResNetFeatures("resnet50", layers=[7, 8], image_size=(64, 96)).eval(),
    )
    some.load_state_dict(every.state_dict())
    images = torch.randn(1, 3, 64, 96)
    features = every(images)
    assert some.n_layers == 2
    assert some.grid == (2, 3)
    for ours, theirs in zip(some(images), [features[7], features[8]], strict=True):
        assert torch.equal(ours, theirs)

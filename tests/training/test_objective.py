"""The loss is the weighted sum of its parts, and its gradients replace the old ones."""

from dataclasses import fields

import pytest
import torch

from transformatcher.config import model_config
from transformatcher.models.build import build_matcher
from transformatcher.models.losses import keypoint_loss
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.schema import PairBatch
from transformatcher.training.objective import CudaGraphLoss, Objective, loss_and_gradients


@pytest.fixture(scope="module")
def model() -> TransforMatcher:
    torch.manual_seed(0)
    settings = {"backbone": "resnet50_v1", "stages": [2], "image_size": 32, "sampler": "bilinear"}
    return build_matcher(model_config(settings))


def make_batch(device: str = "cpu", seed: int = 0) -> PairBatch:
    generator = torch.Generator().manual_seed(seed)
    images, points = torch.randn(2, 2, 3, 32, 32, generator=generator), torch.rand(2, 2, 4, 2, generator=generator)
    visible = torch.tensor([[True, True, True, False], [True, False, True, True]])
    return PairBatch(*(value.to(device) for value in (*images, *points, visible)))


def test_weighted_sum(model: TransforMatcher):
    batch = make_batch()
    with torch.no_grad():
        regression, cross_entropy, both = (
            Objective(model, *weights)(batch) for weights in ((1.0, 0.0), (0.0, 1.0), (2.0, 3.0))
        )
        flow = model(batch.src, batch.trg)
        expected = keypoint_loss(model.transfer(flow, batch.src_kps_norm), batch.trg_kps_norm, batch.visible)
    torch.testing.assert_close(regression, expected)
    torch.testing.assert_close(both, 2 * regression + 3 * cross_entropy)


def test_gradients_replace_the_old_ones(model: TransforMatcher):
    objective = Objective(model, 1.0, 1.0)
    first, second = make_batch(seed=0), make_batch(seed=1)
    loss_and_gradients(objective, first)
    loss = loss_and_gradients(objective, second)
    after_both = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    for parameter in model.parameters():
        parameter.grad = None
    assert torch.equal(loss_and_gradients(objective, second), loss)
    assert not loss.requires_grad
    for ours, theirs in zip(after_both, (p.grad for p in model.parameters() if p.grad is not None), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("visible", [[True] * 4, [True, False, True, True]])
def test_parts_of_a_batch_have_the_gradients_of_the_whole(model: TransforMatcher, visible):
    """Also where a pair has no visible keypoint, which the mean leaves out. Batch norms are frozen."""
    model.eval()
    first, second = make_batch(seed=0), make_batch(seed=1)
    whole = PairBatch(*(torch.cat([getattr(first, f.name), getattr(second, f.name)]) for f in fields(PairBatch)))
    whole.visible[~torch.tensor(visible)] = False
    objective = Objective(model, 1.0, 1.0)
    results = []
    for accumulate in (1, 2, 4):
        loss = loss_and_gradients(objective, whole, accumulate)
        results.append((loss, [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    model.train()
    for loss, gradients in results[1:]:
        torch.testing.assert_close(loss, results[0][0])
        for ours, theirs in zip(gradients, results[0][1], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_a_batch_is_divided_into_equal_parts_or_not_at_all(model: TransforMatcher):
    with pytest.raises(ValueError, match="a batch of 2 pairs cannot be divided into 3 parts"):
        loss_and_gradients(Objective(model, 1.0, 0.0), make_batch(), 3)


@pytest.mark.gpu
def test_a_cuda_graph_changes_nothing(model: TransforMatcher):
    model = model.cuda()
    objective = Objective(model, 1.0, 1.0)
    graph = CudaGraphLoss(objective, make_batch("cuda", seed=0))
    for seed in (1, 2):
        batch = make_batch("cuda", seed=seed)
        loss = graph(batch)
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        torch.testing.assert_close(loss, loss_and_gradients(objective, batch), rtol=1e-4, atol=1e-4)
        for ours, theirs in zip(gradients, (p.grad for p in model.parameters() if p.grad is not None), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-3)
    model.cpu()

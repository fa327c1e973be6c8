"""A model prepared for inference computes the same."""

import pytest
import torch

from transformatcher.config import model_config
from transformatcher.models.build import build_matcher
from transformatcher.models.fused.inference import cuda_graph, for_inference


@pytest.mark.parametrize("layers", ["all", [1, 4, 7]])
@torch.no_grad()
def test_folding_batch_norms_changes_nothing(layers):
    model = build_matcher(model_config({"backbone": "resnet50", "sampler": "bilinear", "layers": layers}))
    for module in model.backbone.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
    images = torch.randn(1, 3, 96, 64)
    ready = for_inference(model, torch.float32)
    assert ready.backbone.n_layers == model.backbone.n_layers
    assert ready.backbone.grid == model.backbone.grid
    for ours, theirs in zip(ready.encode(images), model.encode(images), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert model.backbone.bn1 is not None  # the original is untouched


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["paper", "released"])
@torch.inference_mode()
def test_graph_replays_what_the_model_computes(variant):
    settings = {"backbone": "resnet50", "sampler": "bilinear", "variant": variant}
    model = for_inference(build_matcher(model_config(settings)).cuda())
    images = torch.randn(4, 2, 3, 240, 240, device="cuda")
    run = cuda_graph(model, images[0], images[1])
    torch.testing.assert_close(run(images[2], images[3]).trg_norm, model(images[2], images[3]).trg_norm)

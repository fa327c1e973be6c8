"""Config → model: all parts fit together."""

import pytest
import torch

from transformatcher.config import model_config
from transformatcher.errors import InputError
from transformatcher.models.attention import ReleasedAttention
from transformatcher.models.build import build_matcher


@pytest.mark.parametrize("variant", ["paper", "released", "raw"])
@torch.no_grad()
def test_every_variant_runs_on_a_grid_that_is_not_square(variant):
    settings = {"variant": variant, "backbone": "resnet50", "image_size": [64, 96], "sampler": "bilinear"}
    model = build_matcher(model_config(settings))
    flow = model(torch.randn(1, 3, 64, 96), torch.randn(1, 3, 64, 96))
    assert flow.trg_norm.shape == (1, 8, 12, 2)
    assert torch.isfinite(flow.trg_norm).all()


@pytest.mark.parametrize(
    ("settings", "channels"),
    [
        ({"layers": "every-other"}, 5),
        ({"layers": [0, 8]}, 2),
        ({"stages": 4}, 3),
        ({"layer_fusion": "mean"}, 1),
        ({"layer_fusion": "concat", "layers": [1, 2, 6]}, 1),
        ({"match2match.attention": "linformer", "layers": [6, 7]}, 2),
        ({"refiner": "cats", "stages": 4, "grid": [4, 6]}, 3),
        ({"refiner": "nc4d", "correlation_skip": 9}, 9),
        ({"match2match.conv_branch_depth": 2, "layer_fusion": "mean"}, 1),
    ],
)
@torch.no_grad()
def test_parts_fit_together(settings, channels):
    config = model_config({"backbone": "resnet50", "image_size": [64, 96], "sampler": "bilinear", **settings})
    model = build_matcher(config)
    assert model.refiner.layers == channels
    flow = model(torch.randn(1, 3, 64, 96), torch.randn(1, 3, 64, 96))
    assert torch.isfinite(flow.trg_norm).all()


def test_every_other_layer_counts_from_the_deepest():
    model = build_matcher(model_config({"backbone": "resnet101", "layers": "every-other"}))
    assert list(model.backbone.layers) == list(range(1, 26, 2))


def test_layers_that_the_backbone_lacks_are_named():
    with pytest.raises(InputError, match=r"layers = \[0, 9\]: resnet50 with stages \[3, 4\] has 9 layers, .* 0 to 8"):
        build_matcher(model_config({"backbone": "resnet50", "layers": [0, 9]}))


def test_the_variants_differ_by_config_alone():
    paper, released = (
        build_matcher(model_config({"variant": v, "backbone": "resnet50"})) for v in ("paper", "released")
    )
    assert type(paper.refiner) is type(released.refiner)
    assert paper.correlation.resize == "resize-correlation"
    assert released.correlation.resize == "resize-features"
    mixed = build_matcher(
        model_config({"variant": "released", "match2match.position": "axial", "backbone": "resnet50"})
    )
    assert type(mixed.refiner.blocks[0].attention) is ReleasedAttention
    assert type(mixed.refiner.blocks[0].attention.position).__name__ == "AxialRotary"

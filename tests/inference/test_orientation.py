"""Does the target show the object facing the other way?"""

from typing import Any

import pytest
import torch
from helpers.passes import matcher_in_passes, mirrored, texture

from transformatcher.config import model_config
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.orientation import faces_other_way, layer_weights, point_similarity
from transformatcher.models.build import build_matcher
from transformatcher.models.correlation import finest_grid

POINTS = torch.rand(1, 8, 2, generator=torch.Generator().manual_seed(0)) * 1.6 - 0.8


def asked(matcher: Matcher, targets: list[Any], given: torch.Tensor) -> list[bool]:
    """Of one picture and several targets."""
    src = texture(0)
    features = [
        [torch.cat(layer) for layer in zip(*(photo.features for photo in matcher.encode(pictures)), strict=True)]
        for pictures in ([src] * len(targets), [mirrored(src)] * len(targets), targets)
    ]
    return faces_other_way(matcher.model, *features, POINTS.expand(len(targets), -1, -1), given).tolist()


@pytest.mark.parametrize("number", [1, 4, 8])
def test_a_picture_and_its_mirror_image(number: int):
    targets = [texture(0), mirrored(texture(0))]
    given = (torch.arange(8) < number).expand(2, -1)
    assert asked(matcher_in_passes(), targets, given) == [False, True]


def test_what_is_alike_in_the_mirror_is_not_mirrored():
    half = texture(0)[:, :160]
    flat = half * 0 + 128
    assert asked(matcher_in_passes(), [flat], torch.ones(1, 8, dtype=torch.bool)) == [False]


@pytest.mark.parametrize("fusion", ["multi", "mean", "concat"])
def test_similarity_is_the_mean_of_the_layers(fusion: str):
    """Of as many weights as layers; where the correlation has a single channel, there is one weight for all."""
    config = model_config(
        {"backbone": "resnet50", "stages": [1], "image_size": 32, "layer_fusion": fusion, "correlation_skip": 1.0,
         "match2match.depth": 1}
    )  # fmt: skip
    model = build_matcher(config).eval()
    weights = layer_weights(model)
    assert weights is not None
    assert len(weights) == (3 if fusion == "multi" else 1)
    with torch.inference_mode():
        features = model.encode(torch.randn(2, 3, 32, 32))
        src, trg = ([f[row : row + 1] for f in features] for row in (0, 1))
        h, w = finest_grid(src)
        corner = torch.tensor([[[-1.0, -1.0], [1.0, 1.0]]])
        units = [torch.nn.functional.normalize(f, dim=1) for f in trg]
        similarity = point_similarity(model, src, units, corner)
        assert similarity.shape == (1, 2, h, w)
        for point, (i, j) in enumerate([(0, 0), (h - 1, w - 1)]):
            cosines = [
                torch.nn.functional.cosine_similarity(s[0, :, i, j], t[0, :, 2, 3], dim=0)
                for s, t in zip(src, trg, strict=True)
            ]
            torch.testing.assert_close(similarity[0, point, 2, 3], torch.stack(cosines).mean())

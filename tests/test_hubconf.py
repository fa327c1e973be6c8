"""torch.hub: the model that ships, and random weights."""

from pathlib import Path

import pytest
import torch

from transformatcher.config import model_config
from transformatcher.inference.checkpoint import SHIPPED
from transformatcher.inference.matcher import Matcher

ROOT = Path(__file__).parents[1]
SMALL = {"backbone": "resnet50", "stages": [1], "grid": [4, 5], "image_size": 32, "sampler": "bilinear"}
SMALL |= {"match2match.depth": 1}


def load(**settings: object) -> Matcher:
    return torch.hub.load(str(ROOT), "transformatcher", source="local", device="cpu", **settings)


def test_the_trained_model():
    matcher = load(kernel_sigma=3.0)
    assert matcher.config.kernel_sigma == 3.0
    assert matcher.calibration == Matcher.from_pretrained(SHIPPED, "cpu").calibration


def test_random_weights():
    matcher = load(pretrained=False, **SMALL)
    assert matcher.config == model_config(SMALL)
    assert isinstance(matcher.model, torch.nn.Module)


def test_settings_are_checked():
    with pytest.raises(Exception, match="depth") as caught:
        load(depth=3)
    assert type(caught.value).__name__ == "InputError"

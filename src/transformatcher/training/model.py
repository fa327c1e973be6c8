"""Config → the model that training starts from."""

from functools import lru_cache
from pathlib import Path

import torch

from transformatcher.config import ModelConfig, RunConfig
from transformatcher.errors import InputError
from transformatcher.inference.checkpoint import SHIPPED, load_checkpoint
from transformatcher.models.backbones.weights import load_backbone_weights
from transformatcher.models.build import build_matcher
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.models.weights_io import load_strictly


def init_model(config: RunConfig) -> TransforMatcher:
    """A model with its initial weights: those of a checkpoint, or random ones with a pretrained backbone."""
    settings = config.train
    model = build_matcher(config.model)
    if settings.init_from:
        other, _ = load_checkpoint(SHIPPED if settings.init_from == "shipped" else Path(settings.init_from))
        load_strictly(model, other.state_dict(), settings.init_from)
    elif settings.backbone_weights:
        load_backbone_weights(model.backbone, settings.backbone_weights)
    return model


def dry_run(config: ModelConfig, source: str) -> None:
    """Run a model on the meta device, where tensors have shapes but no values.

    Args:
        config: the model.
        source: where the config comes from. Error messages start with it.

    Raises:
        InputError: if settings of the model do not fit together.
    """
    try:
        _run_on_meta_device(config)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


@lru_cache(maxsize=256)  # the runs of a study share their models
def _run_on_meta_device(config: ModelConfig) -> None:
    with torch.device("meta"), torch.inference_mode():
        model = build_matcher(config)
        image = torch.empty(1, 3, *config.image_size)
        flow = model(image, image)
        for training in (True, False):  # training and evaluation use different samplers
            model.train(training).transfer(flow, torch.empty(1, 1, 2))

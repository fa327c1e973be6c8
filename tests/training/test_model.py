"""The model that training starts from, and the check of its settings."""

from pathlib import Path

import pytest
import torch
from helpers.training import tiny_config
from safetensors.torch import save_file

from transformatcher.config import model_config
from transformatcher.errors import InputError
from transformatcher.inference.checkpoint import save_checkpoint
from transformatcher.models.build import build_matcher
from transformatcher.training.model import dry_run, init_model

SMALL = {"backbone": "resnet50_v1", "stages": [1], "image_size": 32, "grid": 4, "sampler": "bilinear"}


class TestDryRun:
    def test_names_where_the_settings_come_from(self):
        config = model_config({**SMALL, "sampler": "soft"})
        for source in ("first.toml", "second.toml"):  # an error is not cached
            with pytest.raises(InputError, match=f"^{source}: soft sampler: with threshold 0.1, some points of a"):
                dry_run(config, source)


class TestInitModel:
    def test_backbone_weights(self, tmp_path: Path):
        config = tiny_config(tmp_path / "any")
        backbone = {key: torch.rand_like(value) if value.is_floating_point() else value
                    for key, value in build_matcher(config.model).backbone.state_dict().items()}  # fmt: skip
        save_file(backbone, tmp_path / "backbone.safetensors", {"arch": "resnet50_v1"})
        model = init_model(tiny_config(tmp_path / "any", backbone_weights=str(tmp_path / "backbone.safetensors")))
        assert all(torch.equal(value, backbone[key]) for key, value in model.backbone.state_dict().items())

    def test_a_checkpoint(self, tmp_path: Path):
        config = tiny_config(tmp_path / "any")
        trained = build_matcher(config.model)
        save_checkpoint(tmp_path / "trained", trained, config.model)
        model = init_model(tiny_config(tmp_path / "any", init_from=str(tmp_path / "trained")))
        assert all(torch.equal(value, trained.state_dict()[key]) for key, value in model.state_dict().items())

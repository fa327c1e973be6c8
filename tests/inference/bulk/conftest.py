"""A small matcher and photos for lists of pairs."""

from pathlib import Path

import pytest
import torch
from conftest import write_image
from helpers.bulk import SMALL

from transformatcher.config import model_config
from transformatcher.inference.calibration import Calibration, Calibrations, save_calibration
from transformatcher.inference.checkpoint import save_checkpoint
from transformatcher.inference.matcher import Matcher
from transformatcher.models.build import build_matcher


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("weights")
    config = model_config(SMALL)
    save_checkpoint(folder, build_matcher(config), config)
    save_calibration(folder, Calibrations(Calibration(bias=1.0, sharpness=0.5, consistency=-1.0)))
    return folder


@pytest.fixture(scope="module")
def small(weights: Path) -> Matcher:
    return Matcher.from_pretrained(weights, device="cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Six photos, one of them no photo at all."""
    folder = tmp_path_factory.mktemp("photos")
    for seed in range(5):
        write_image(folder / f"{seed}.png", (30 + seed, 40 + 2 * seed), seed)
    (folder / "bad.jpg").write_bytes(b"no photo")
    return folder

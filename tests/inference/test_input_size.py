"""A trained model on images of another size or shape than those it was trained on, end to end."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import write_image

from transformatcher.cli.main import main
from transformatcher.config import model_config
from transformatcher.errors import InputError
from transformatcher.evaluation.predict import read_predictions
from transformatcher.inference.checkpoint import load_checkpoint, save_checkpoint
from transformatcher.models.build import build_matcher
from transformatcher.run_folder import read_arguments

SMALL = {
    "backbone": "resnet50", "stages": [1], "layers": [0, 2], "image_size": [32, 32], "match2match.depth": 1,
    "correlation_skip": 200,    "kernel_on": "probabilities", "kernel_sigma": 1.5, "sampler": "bilinear",
}  # fmt: skip


def checkpoint(folder: Path, **settings: object) -> Path:
    config = model_config(SMALL | settings)
    save_checkpoint(folder, build_matcher(config), config)
    return folder


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"match2match.position": "absolute"},
        {"match2match.position": "absolute-table"},
        {"match2match.attention": "vanilla"},
        {"refiner": "nc4d", "match2match": {}},
        {"match2match.conv_branch_depth": 2},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "paper",
)
@pytest.mark.parametrize("backend", ["auto", "eager"])
@torch.no_grad()
def test_a_wide_image_finds_itself(settings, backend: str, tmp_path: Path):
    model, config = load_checkpoint(checkpoint(tmp_path, **settings), {"image_size": [24 + 8, 56]})
    model.set_backend(backend)
    assert config.image_size == (32, 56)
    model.backbone.train()  # batch statistics: random features that still tell places apart
    flow = model(*torch.randn(1, 3, *config.image_size).expand(2, 1, -1, -1, -1))
    assert flow.trg_norm.shape == (1, 16, 28, 2)
    xs, ys = torch.meshgrid(torch.linspace(-1, 1, 28), torch.linspace(-1, 1, 16), indexing="xy")
    error = flow.trg_norm[0] - torch.stack([xs, ys], dim=-1)
    assert error.norm(dim=-1).median() < 0.2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"refiner": "cats", "match2match": {}}, "the refiner 'cats' has weights for every cell of images of 32 × 32"),
        (
            {"match2match.attention": "linformer", "match2match.linformer_rank": 3},
            "'linformer' has weights for every cell",
        ),
    ],
)
def test_weights_of_single_cells_take_no_other_size(settings, words, tmp_path: Path):
    with pytest.raises(InputError, match=re.escape(words)):
        load_checkpoint(checkpoint(tmp_path, **settings), {"image_size": 64})
    load_checkpoint(tmp_path, {"image_size": 32})  # its own


@torch.no_grad()
def test_a_grid_of_its_own_takes_any_size(tmp_path: Path):
    model, _ = load_checkpoint(
        checkpoint(tmp_path, refiner="cats", match2match={}, grid=[6, 7]), {"image_size": [40, 72]}
    )
    assert model(*torch.randn(2, 1, 3, 40, 72)).trg_norm.shape == (1, 12, 14, 2)


def test_too_small(tmp_path: Path):
    with pytest.raises(InputError, match="each must be between 32 and 4,096"):
        load_checkpoint(checkpoint(tmp_path), {"image_size": [16, 64]})


def test_eval_and_match_at_another_shape(spair_root: Path, tmp_path: Path, capsys):
    weights, out = checkpoint(tmp_path / "weights"), tmp_path / "out"
    options = ["--weights", str(weights), "--device", "cpu", "--set", "image_size=[32, 64]"]
    benchmark = ["--benchmark", "spair", "--root", str(spair_root), "--split", "val"]
    assert main(["eval", *benchmark, "--out", str(out), *options]) == 0
    assert read_arguments(out)["model"]["image_size"] == [32, 64]
    for prediction in read_predictions(out):
        h, w = prediction.trg_size
        assert ((np.array(prediction.pred_kps) >= 0) & (np.array(prediction.pred_kps) <= (w, h))).all()
    capsys.readouterr()
    photos = [str(write_image(tmp_path / f"{seed}.png", (90, 50), seed)) for seed in (1, 2)]
    assert main(["match", *photos, "--json", "--keypoints", "50,90;0,0", *options]) == 0
    (x0, y0), (x1, y1) = json.loads(capsys.readouterr().out)["keypoints1"]
    assert min(x0, x1, y0, y1) >= 0
    assert max(x0, x1) <= 50
    assert max(y0, y1) <= 90

"""Checkpoint folders, and trained models on images of another size than those of their training."""

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
from transformatcher.inference.checkpoint import SHIPPED, load_checkpoint, save_checkpoint
from transformatcher.inference.matcher import Matcher
from transformatcher.models.build import build_matcher
from transformatcher.run_folder import read_arguments

SMALL = {
    "backbone": "resnet50",
    "stages": [1],
    "grid": [4, 5],
    "match2match.depth": 1,
    "image_size": [32, 40],
    "sampler": "bilinear",
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    config = model_config({**SMALL, "sampler": "bilinear"})
    model = build_matcher(config)
    save_checkpoint(folder, model, config)
    return folder, model, config


def test_nothing_is_drawn_that_is_overwritten(saved):
    folder, model, _ = saved
    before = torch.get_rng_state()
    loaded, _ = load_checkpoint(folder)
    assert torch.equal(torch.get_rng_state(), before)
    wanted = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    given = {**dict(loaded.named_buffers()), **dict(loaded.named_parameters())}
    assert given.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(given[name], value), name


@torch.no_grad()
def test_save_load_same_output(saved):
    folder, model, config = saved
    images = torch.randn(2, 1, 3, 32, 40)
    for path in (folder, folder / "model.safetensors"):
        loaded, loaded_config = load_checkpoint(path)
        assert loaded_config == config
        assert not loaded.training
        assert torch.equal(loaded(*images).trg_norm, model(*images).trg_norm)
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]


@torch.no_grad()
def test_in_half_the_space(saved, tmp_path: Path):
    folder, model, config = saved
    Matcher(model, config, "cpu").save_pretrained(tmp_path, half=True)
    whole, half = ((path / "model.safetensors").stat().st_size for path in (folder, tmp_path))
    assert half < 0.6 * whole
    loaded, _ = load_checkpoint(tmp_path)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[key], value, rtol=1e-3, atol=1e-7)  # float32 again


@pytest.mark.parametrize(
    "settings",
    [
        {"match2match.position": "absolute"},
        {"match2match.position": "absolute-table"},
        {"match2match.attention": "vanilla"},
        {"match2match.attention": "linformer", "match2match.linformer_rank": 3},
        {"match2match.attention": "performer"},
        {"refiner": "nc4d", "match2match": {}, "correlation_skip": 5, "layer_fusion": "concat"},
        {"refiner": "cats", "match2match": {}, "layers": [0, 2]},
        {"match2match.conv_branch_depth": 2, "correlation_skip": 5},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
@torch.no_grad()
def test_every_part_comes_back(settings, tmp_path: Path):
    config = model_config(SMALL | settings)
    model = build_matcher(config)
    save_checkpoint(tmp_path, model, config)
    torch.manual_seed(1)  # what is drawn at random must come from the file
    loaded, loaded_config = load_checkpoint(tmp_path)
    assert loaded_config == config
    images = torch.randn(2, 1, 3, 32, 40)
    assert torch.equal(loaded(*images).trg_norm, model(*images).trg_norm)


def test_another_architecture_is_named(saved, tmp_path: Path):
    folder, _, _ = saved
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    plain = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(plain | {"match2match.depth": 2}))
    with pytest.raises(InputError, match=r"another architecture \(\d+ missing: refiner\.blocks\.1\.attention"):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(plain | {"match2match.dim": 8}))
    with pytest.raises(InputError, match=r"of another shape: refiner\.blocks\.0.* where .* is needed"):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(plain | {"dpeth": 8}))
    with pytest.raises(InputError, match=r"did you mean 'match2match\.depth'"):
        load_checkpoint(tmp_path)


def test_bad_paths(saved, tmp_path: Path):
    with pytest.raises(InputError, match="no such checkpoint"):
        load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"not a checkpoint, because there is no config\.json"):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text((saved[0] / "config.json").read_text())
    with pytest.raises(InputError, match=r"model\.safetensors: no such weights file"):
        load_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(InputError, match="not a readable safetensors file"):
        load_checkpoint(tmp_path)


# ---------------------------------------------------------------- images of another size

SIZED = {
    "backbone": "resnet50", "stages": [1], "layers": [0, 2], "image_size": [32, 32], "match2match.depth": 1,
    "correlation_skip": 200,    "kernel_on": "probabilities", "kernel_sigma": 1.5, "sampler": "bilinear",
}  # fmt: skip


def checkpoint(folder: Path, **settings: object) -> Path:
    config = model_config(SIZED | settings)
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


def test_settings_that_no_machine_has_the_memory_for():
    with pytest.raises(InputError, match=r"takes about [\d,.]+ GiB of memory .* this machine has [\d,.]+ GiB"):
        load_checkpoint(SHIPPED, {"image_size": 4096})

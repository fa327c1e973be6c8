import json
from pathlib import Path

import pytest
import torch

from transformatcher.config import model_config
from transformatcher.errors import InputError
from transformatcher.inference.checkpoint import load_checkpoint, save_checkpoint
from transformatcher.inference.matcher import Matcher
from transformatcher.models.build import build_matcher

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
    with pytest.raises(InputError, match=r"no checkpoint, there is no config\.json with it"):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text((saved[0] / "config.json").read_text())
    with pytest.raises(InputError, match=r"model\.safetensors: no such weights file"):
        load_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(InputError, match="not a readable safetensors file"):
        load_checkpoint(tmp_path)

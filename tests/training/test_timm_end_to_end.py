"""Networks of timm with random weights, from training to an exported file: a ViT with registers, a ConvNeXt, a Swin."""

import json
from pathlib import Path

import pytest
import torch
from helpers.command import run
from helpers.training import tiny_tables, to_toml, write_benchmark
from safetensors.torch import load_file, save_file

from transformatcher.config import model_config
from transformatcher.inference.checkpoint import load_checkpoint, save_checkpoint
from transformatcher.models.build import build_matcher
from transformatcher.training.trainer import FEATURES

timm = pytest.importorskip("timm")

# timm warns of its own indexing while it resizes the position bias of a Swin.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:timm.layers.interpolate")

NETWORKS = {
    "convnext_atto": {"layers": [2, 3], "image_size": 64},
    "vit_wee_patch16_reg1_gap_256": {"layers": [10, 11, 12], "image_size": 64},
    "swin_tiny_patch4_window7_224": {"layers": [2, 3], "image_size": 64},
}


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_benchmark(tmp_path_factory.mktemp("data") / "PF-PASCAL")
    (root / "test_pairs.csv").write_text((root / "val_pairs.csv").read_text())
    return root


def write_config(folder: Path, benchmark: Path, name: str, **train: object) -> Path:
    """A run of one epoch, from random weights in a file as timm would name them."""
    torch.manual_seed(0)
    save_file(timm.create_model(name, num_classes=0).state_dict(), folder / "weights.safetensors")
    tables = tiny_tables(benchmark, epochs=1, backbone_weights=str(folder / "weights.safetensors"), **train)
    tables["model"] = {
        "backbone": f"timm:{name}", **NETWORKS[name], "correlation_skip": 20.0, "sampler": "bilinear",
        "match2match.depth": 1,
    }  # fmt: skip
    tables["data"] |= {"p_color": 0.0, "p_crop": 0.0, "cache_size": 64}
    path = folder / "tiny.toml"
    path.write_text(to_toml(tables))
    return path


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in list(NETWORKS)[1:]]


@pytest.mark.parametrize("name", [next(iter(NETWORKS)), *SLOW])
@pytest.mark.parametrize("rate", [0.0, 1e-3])
def test_from_training_to_score(benchmark: Path, tmp_path: Path, name: str, rate: float):
    """Frozen, its features are computed once; fine-tuned, its weights change. The checkpoint is evaluated."""
    config = write_config(tmp_path, benchmark, name, lr_backbone=rate)
    assert run("train", config, "--out", tmp_path / "run", "--device", "cpu") == 0
    best = tmp_path / "run" / "best"
    before, after = load_file(tmp_path / "weights.safetensors"), load_checkpoint(best)[0].backbone.net.state_dict()
    shared = {key for key in before.keys() & after.keys() if "position_bias" not in key}  # timm resizes a Swin's
    assert len(shared) > 20
    changed = {key for key in shared if not torch.equal(before[key], after[key])}
    assert bool(changed) == (rate > 0)
    assert (tmp_path / "run" / FEATURES).is_dir() == (rate == 0)
    out = tmp_path / "eval"
    data = ("--benchmark", "pfpascal", "--root", benchmark)
    assert run("eval", *data, "--weights", best, "--device", "cpu", "--precision", "float32", "--out", out) == 0
    scores = json.loads((out / "scores.json").read_text())
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert scores["pck"]["img"]["0.1"]["per_pair"] == pytest.approx(last["pck"]["PF-PASCAL-val"]["0.1"], abs=15)
    assert scores["n_pairs"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_export(tmp_path: Path, name: str):
    """The command compares the file with the model before it is kept."""
    config = model_config({"backbone": f"timm:{name}", **NETWORKS[name], "sampler": "bilinear", "match2match.depth": 1})
    save_checkpoint(tmp_path / "weights", build_matcher(config), config)
    assert run("export", "--weights", tmp_path / "weights", "--out", tmp_path / "model.onnx") == 0
    assert (tmp_path / "model.onnx").stat().st_size > 10_000

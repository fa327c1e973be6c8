"""The recipes for SPair-71k, on a small folder in its own layout: train, interrupt, resume, evaluate."""

import json
from pathlib import Path

import pytest
import torch
from helpers.command import run
from helpers.spair import CATEGORIES, tiny_options, write_spair
from safetensors.torch import save_file

from transformatcher.config import read_run_config, to_plain
from transformatcher.data.benchmarks import load_benchmark
from transformatcher.models.backbones.resnet import ResNetFeatures
from transformatcher.training.study import read_study
from transformatcher.training.trainer import Trainer

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_spair(root / "SPair-71k")
    torch.manual_seed(0)
    save_file(ResNetFeatures("resnet50").state_dict(), root / "resnet50.safetensors")
    return root


def test_the_small_folder_is_complete(data: Path):
    for split in ("trn", "val", "test"):
        pairs = load_benchmark("spair", data / "SPair-71k", split)
        assert [pair.category for pair in pairs] == list(CATEGORIES)
        for factor in ("viewpoint", "scale", "truncation", "occlusion"):
            assert {pair.difficulty[factor] for pair in pairs} == {0, 1, 2}
    cat = next(pair for pair in pairs if pair.category == "cat")
    assert cat.twins == (1, 0, 3, 2, 5, 4)


@pytest.mark.parametrize("recipe", ["spair-paper", pytest.param("spair", marks=pytest.mark.slow)])
def test_a_recipe_from_start_to_score(data: Path, recipe: str, tmp_path: Path, monkeypatch, capsys):
    """It is interrupted in its second epoch and goes on; the loss falls; its checkpoint is evaluated with twins."""
    options = tiny_options(data, **({} if recipe == "spair-paper" else {"train.accumulate": 2}))
    train = ["train", CONFIGS / f"{recipe}.toml", *options, "--out", tmp_path / "run", "--device", "cpu"]
    monkeypatch.setattr(Trainer, "_should_stop", lambda self: self.state.step == 4)
    assert run(*train) == 130
    monkeypatch.undo()
    assert run(*train, "--resume") == 0
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert losses[0] is None  # of the start
    assert losses[-1] < losses[1]
    root, out = data / "SPair-71k", tmp_path / "eval"
    capsys.readouterr()
    weights = tmp_path / "run" / "best"
    assert (
        run("eval", "--benchmark", "spair", "--root", root, "--weights", weights, "--device", "cpu", "--out", out) == 0
    )
    scores = json.loads((out / "scores.json").read_text())
    assert list(scores["per_category"]) == sorted(CATEGORIES)
    assert list(scores["difficulty"]) == ["occlusion", "scale", "truncation", "viewpoint"]
    assert all(list(levels) == ["easy", "medium", "hard"] for levels in scores["difficulty"].values())
    assert scores["twins"]["n_points"] > 0
    assert "its twin" in capsys.readouterr().out


def test_the_paper_s_recipe_is_the_row_of_its_study():
    """`reproduce` trains what the config describes, with and without augmentation."""
    rows = {row.label: to_plain(row.config) for row in read_study("paper-spair").rows}
    assert to_plain(read_run_config(CONFIGS / "spair-paper.toml")) == rows["rotary, augmented"]
    plain = ["data.p_crop=0.0", "data.p_color=0.0"]
    assert to_plain(read_run_config(CONFIGS / "spair-paper.toml", plain)) == rows["rotary, not augmented"]


def test_the_headers_say_that_they_have_not_been_run():
    for name in ("spair", "spair-paper"):
        assert "NOT RUN YET" in (CONFIGS / f"{name}.toml").read_text()

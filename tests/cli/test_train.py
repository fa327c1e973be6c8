"""``train``: the sentence that a mistake gets; what a run does is tested with the trainer."""

from pathlib import Path

import pytest
from helpers.command import run
from helpers.training import tiny_tables, to_toml, write_benchmark

from transformatcher.cli.train import describe_gain
from transformatcher.training.state import TrainingState


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("data") / "PF-PASCAL")


def test_errors(benchmark: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = tmp_path / "tiny.toml"
    config.write_text(to_toml(tiny_tables(benchmark)))
    for arguments, message in (
        ([tmp_path / "no.toml"], "no.toml: no such config file"),
        ([config, "--set", "lr=1"], "--set: unknown key 'lr'; did you mean 'train.lr'?"),
        ([config, "--set", "train.lr=-1"], "--set: train.lr = -1: must be above 0 and at most 10"),
        ([config, "--set", "train.epoch=1"], "unknown key 'train.epoch'; did you mean 'train.epochs'?"),
        ([config, "--set", "data.root=nowhere"], "nowhere"),
        ([config, "--set", "train.backbone_weights=no.safetensors"], "no.safetensors: no such weights file"),
    ):
        assert run("train", *arguments, "--out", tmp_path / "run", "--device", "cpu") == 2
        assert message in capsys.readouterr().err


def test_a_config_that_fails_leaves_a_folder_that_can_be_used(benchmark: Path, tmp_path: Path):
    config = tmp_path / "tiny.toml"
    config.write_text(to_toml(tiny_tables(benchmark, epochs=1)))
    command = ["train", config, "--out", tmp_path / "run", "--device", "cpu"]
    for setting in ("data.root=nowhere", "model.sampler=soft", "train.backbone_weights=gone.safetensors"):
        assert run(*command, "--set", setting) == 2
        assert not (tmp_path / "run").exists()
    assert run(*command) == 0


def test_a_run_that_ends_worse_than_its_start_says_so():
    """And one that gained says by how much."""
    start = {"step": 0, "score": 72.9}
    worse = describe_gain(TrainingState(best=45.1, metrics=[start]))
    assert worse.startswith("this run is worse than what it started from: 45.1 at best, 72.9 before the first step")
    assert describe_gain(TrainingState(best=80.0, metrics=[start])) == "start: 72.9, so the run gained 7.1"
    assert "was not measured" in describe_gain(TrainingState(best=80.0, metrics=[{"step": 4, "score": 70.0}]))

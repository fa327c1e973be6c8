"""The whole state of a run is saved in one file and loaded from it."""

from pathlib import Path

import pytest
import torch
from torch import nn

from transformatcher.errors import InputError
from transformatcher.training.optim import EMA
from transformatcher.training.state import TrainingState, load_state, save_state


def trained(steps: int, width: int = 2) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width))
    ema, optimizer = EMA(model, 0.9), torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        ema.update_parameters(model)
    return model, ema, optimizer


def test_round_trip(tmp_path: Path):
    model, ema, optimizer = trained(3)
    state = TrainingState(epoch=1, batch=2, step=3, loss_sum=0.1 + 0.2, best=1 / 3, metrics=[{"pck": {"a": 0.7}}])
    save_state(tmp_path / "last.safetensors", state, model, ema, optimizer)
    other, other_ema, other_optimizer = trained(0)
    assert load_state(tmp_path / "last.safetensors", other, other_ema, other_optimizer) == state
    for ours, theirs in ((other, model), (other_ema, ema)):
        assert all(torch.equal(value, theirs.state_dict()[key]) for key, value in ours.state_dict().items())
    moments, expected = other_optimizer.state_dict()["state"], optimizer.state_dict()["state"]
    assert moments.keys() == expected.keys()
    assert all(torch.equal(moments[i][key], expected[i][key]) for i in expected for key in expected[i])


def test_before_any_validation_and_without_ema(tmp_path: Path):
    model, _, optimizer = trained(0)
    save_state(tmp_path / "last.safetensors", TrainingState(), model, None, optimizer)
    other, _, other_optimizer = trained(0)
    assert load_state(tmp_path / "last.safetensors", other, None, other_optimizer) == TrainingState()


def test_a_state_of_another_model(tmp_path: Path):
    model, ema, optimizer = trained(1)
    save_state(tmp_path / "last.safetensors", TrainingState(), model, ema, optimizer)
    with pytest.raises(InputError, match=r"last\.safetensors: these weights belong to another architecture"):
        load_state(tmp_path / "last.safetensors", *trained(0, width=5))

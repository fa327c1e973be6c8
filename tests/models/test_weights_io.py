"""Tensors on disk: whole or not at all."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from transformatcher.errors import InputError
from transformatcher.models import weights_io as tensors
from transformatcher.models.weights_io import load_strictly, read_safetensors, to_float16, write_tensors


def test_round_trip(tmp_path: Path):
    given = {"a": torch.randn(4, 3).T, "n": torch.tensor(7)}  # one of them not contiguous
    write_tensors(tmp_path / "new" / "x.safetensors", given, {"progress": "{}"})
    loaded, metadata = read_safetensors(tmp_path / "new" / "x.safetensors")
    assert loaded.keys() == given.keys()
    assert all(torch.equal(loaded[key], given[key]) for key in given)
    assert metadata == {"progress": "{}"}


def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": torch.zeros(3)})

    def full_disk(_tensors, new: Path, _metadata):
        new.write_bytes(b"half of")
        raise OSError("No space left on device")

    monkeypatch.setattr(tensors, "save_file", full_disk)
    with pytest.raises(InputError, match=r"x\.safetensors: cannot be written \(No space left .*before is kept"):
        write_tensors(path, {"a": torch.ones(3)})
    assert read_safetensors(path)[0]["a"].tolist() == [0, 0, 0]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="has no umask")
def test_others_may_read_what_the_umask_lets_them(tmp_path: Path):
    write_tensors(tmp_path / "x.safetensors", {"a": torch.zeros(1)})
    (tmp_path / "y").touch()
    assert (tmp_path / "x.safetensors").stat().st_mode == (tmp_path / "y").stat().st_mode


def test_a_folder_is_not_replaced(tmp_path: Path):
    (tmp_path / "x.safetensors" / "within").mkdir(parents=True)
    with pytest.raises(InputError, match="cannot be written"):
        write_tensors(tmp_path / "x.safetensors", {"a": torch.ones(3)})
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_halved_keeps_what_float16_cannot_hold():
    norm = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2)).eval()
    norm[1].running_var.copy_(torch.tensor([83614.73, 0.5]))  # the first is what an ImageNet ResNet-50 really has
    half = to_float16(norm.state_dict())
    assert half["0.weight"].dtype == half["1.weight"].dtype == torch.float16
    assert torch.equal(half["1.running_var"], norm[1].running_var)
    assert half["1.num_batches_tracked"].dtype == torch.int64
    again = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2)).eval()
    load_strictly(again, half, "half")
    images = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(again(images), norm(images), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_values_that_are_no_numbers_are_refused(value: float):
    norm = nn.BatchNorm2d(2)
    before = norm.running_var.clone()
    wrong = {**norm.state_dict(), "running_var": torch.tensor([value, 1.0])}
    with pytest.raises(InputError, match=r"w\.safetensors: running_var has 1 of 2 values .* ends at 65,504"):
        load_strictly(norm, wrong, "w.safetensors")
    assert torch.equal(norm.running_var, before)


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64, torch.int8, torch.float8_e4m3fn, torch.int64])
def test_weights_of_another_kind_are_not_bent_into_shape(dtype):
    module = nn.Linear(2, 3)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    with pytest.raises(InputError, match=rf"here: weight is of type {dtype}, which weights are not"):
        load_strictly(module, before | {"weight": torch.ones(3, 2).to(dtype)}, "here")
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_precision(dtype):
    module = nn.Linear(2, 3)
    load_strictly(
        module, {key: torch.ones_like(value, dtype=dtype) for key, value in module.state_dict().items()}, "here"
    )
    assert module.weight.dtype == torch.float32

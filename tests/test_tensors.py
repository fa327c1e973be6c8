"""Tensors on disk: whole or not at all."""

from pathlib import Path

import pytest
import torch

from transformatcher import tensors
from transformatcher.errors import InputError
from transformatcher.tensors import read_safetensors, write_tensors


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


def test_a_folder_is_not_replaced(tmp_path: Path):
    (tmp_path / "x.safetensors" / "within").mkdir(parents=True)
    with pytest.raises(InputError, match="cannot be written"):
        write_tensors(tmp_path / "x.safetensors", {"a": torch.ones(3)})
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]

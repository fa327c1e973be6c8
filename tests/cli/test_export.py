"""``export``: what can be refused is refused before anything is loaded; the files are tested with their writer."""

from pathlib import Path

import pytest
from helpers.command import run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "model.pth"], "model.pth: the name of an exported model ends in .onnx, or in .pt2"),
        (["--out", "model.onx"], "model.onx: the name of an exported model ends in .onnx, or in .pt2"),
        (["--out", "folder.onnx"], "folder.onnx: a folder; name the file itself"),
        (["--out", "file/model.onnx"], "file is not a folder that can be written to"),
        (["--out", "model.pt2", "--precision", "int8"], "only for ONNX files"),
        (["--out", "model.onnx", "--benchmark", "spair"], "--benchmark and --root go together"),
        (["--out", "model.onnx", "--benchmark", "spair", "--root", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_refused_before_anything_is_loaded(arguments, message, tmp_path: Path, monkeypatch, capsys):
    pytest.importorskip("onnxscript", reason="the extra 'export' is not installed")
    monkeypatch.setattr("transformatcher.cli.export.load_matcher", pytest.fail)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "file").touch()
    assert run("export", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1  # the refusal alone, no announcement
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.onnx"]


def test_a_missing_package_is_named_before_anything_is_loaded(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr("transformatcher.errors.find_spec", lambda name: None if name == "onnxscript" else object())
    monkeypatch.setattr("transformatcher.cli.export.load_matcher", pytest.fail)
    assert run("export", "--out", tmp_path / "model.onnx") == 2
    assert "pip install onnxscript (part of the extra 'export')" in capsys.readouterr().err


def test_a_setting_that_training_has_fixed(weights: Path, tmp_path: Path, capsys):
    pytest.importorskip("onnxscript", reason="the extra 'export' is not installed")
    out = tmp_path / "model.onnx"
    assert run("export", "--weights", weights, "--out", out, "--set", "match2match.depth=3") == 2
    assert "depth is fixed by its training" in capsys.readouterr().err
    assert not out.exists()

"""``ablate``: studies by name or file; what is trained is tested with the studies."""

import json
from pathlib import Path

import pytest
from helpers.command import run
from helpers.training import write_study


@pytest.fixture(scope="module")
def study_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study"))


def test_two_studies(study_file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other.toml"
    other.write_text(study_file.read_text())
    options = ["--seeds", "0", "--device", "cpu", "--only", "axial"]
    assert run("ablate", study_file, other, *options) == 0
    printed = capsys.readouterr().out
    assert "A question?" in printed
    assert "± their deviation @ 0.1" in printed
    folders = [tmp_path / "runs" / f"ablate-{name}" for name in ("study", "other")]
    for folder in folders:
        assert (folder / "plot.png").stat().st_size > 1000
    table = json.loads((folders[0] / "ablation.json").read_text())
    assert table["command"] == f"transformatcher ablate {study_file} --seeds 0"


def test_errors(study_file, tmp_path, capsys):
    assert run("ablate", "postion") == 2
    assert run("ablate", study_file, "attention", "--out", tmp_path / "out") == 2
    assert f"--out {tmp_path / 'out'}: is for one study, not 2" in capsys.readouterr().err

"""``bench``: rows as JSON, a table, a plot."""

import json
from pathlib import Path

import pytest
from helpers.command import run

from transformatcher.cli.tables import print_costs, print_match_speed
from transformatcher.evaluation import match_speed, timing


def test_json_plot_and_table(tmp_path, capsys):
    picture = tmp_path / "costs.png"
    arguments = ["bench", "--size", "64", "96", "--backbone", "resnet50", "--backend", "fused", "--device", "cpu"]
    assert run(*arguments, "--plot", picture, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["size"] for row in report["rows"]] == [64, 96]
    wanted = {"mode", "backend", "batch", "size", "backbone", "variant", "ms_per_pair", "peak_gib", "stages_ms"}
    assert wanted | {"floor_ms"} <= set(report["rows"][0])
    assert picture.stat().st_size > 10_000
    assert run(*arguments[:3], *arguments[4:]) == 0
    assert "floor: bytes and operations" in capsys.readouterr().out


@pytest.fixture
def other(tmp_path: Path) -> Path:
    file = tmp_path / "other.py"
    file.write_text("def pair(src, trg):\n    assert src.shape[-1] == 3 or src.shape[1] == 3\n", encoding="utf-8")
    return file


SMALL = ["bench", "--size", "64", "--backbone", "resnet50", "--backend", "fused", "--device", "cpu"]


def test_beside_another_implementation(other: Path, capsys):
    assert run(*SMALL, "--compare", other, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["compared"] == str(other)
    assert report["rows"][0]["compared_ms_per_pair"] > 0
    print_costs(report)
    assert "other.py, which takes" in capsys.readouterr().out.replace("\n", "")


def test_whole_matches(other: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    ways = {name: match_speed.WAYS[name] for name in ("one pass", "two passes")}
    monkeypatch.setattr(match_speed, "WAYS", ways)
    monkeypatch.setattr(match_speed, "SECONDS", 0.0)
    monkeypatch.setattr(timing, "MIN_CALLS", 1)
    arguments = ["bench", "--what", "match", "--batch", 1, 2, "--device", "cpu", "--compare", other]
    assert run(*arguments, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [(row["way"], row["targets"]) for row in report["rows"]] == [(w, n) for n in (1, 2) for w in ways]
    assert report["rows"][0]["of_one_pass"] == 1
    assert 1 < report["rows"][1]["of_one_pass"] < 10
    print_match_speed(report)
    out = capsys.readouterr().out
    assert "two passes" in out
    assert "× compared" in out


def test_what_does_not_go_together(other: Path, tmp_path: Path, capsys):
    assert run("bench", "--what", "match", "--size", 64) == 2
    assert "--size goes with --what stages" in capsys.readouterr().err
    assert run(*SMALL, "--train", "--compare", other) == 2
    assert "--compare goes with inference" in capsys.readouterr().err
    assert run("bench", "--backend", "torch", "--train") == 2
    assert "--backend torch is for inference on a CPU" in capsys.readouterr().err
    assert run(*SMALL, "--compare", tmp_path / "none.py") == 2
    assert "none.py: no such file" in capsys.readouterr().err
    other.write_text("pair = 3", encoding="utf-8")
    assert run(*SMALL, "--compare", other) == 2
    assert "other.py: has no function pair(src, trg)" in capsys.readouterr().err

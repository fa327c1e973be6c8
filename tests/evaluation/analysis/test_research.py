"""The commands as a person meets them: exit codes, files, and the sentence a mistake gets."""

import json
from pathlib import Path

import pytest
from conftest import write_image
from helpers.analysis import BENCH, prediction, write_checkpoint, write_eval

from transformatcher.cli.main import main


def run(*args: object) -> int:
    return main([str(arg) for arg in args])


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("weights"))


@pytest.fixture
def evaluated(tmp_path: Path) -> Path:
    pairs = [prediction("000000-a-b:cat", 2.0), prediction("000001-b-a:cat", 20.0)]
    return write_eval(tmp_path / "out" / "mine", pairs)


def test_nonlocality(spair_root, weights, tmp_path, capsys):
    out = tmp_path / "nonlocality"
    arguments = ["analyse", "nonlocality", "--benchmark", "spair", "--root", spair_root, "--weights", weights]
    assert run(*arguments, "--limit", 1, "--out", out) == 0
    assert "pairwise: heads differ from uniform attention by" in capsys.readouterr().out
    assert run(*arguments, "--json", "--out", out) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["n_pairs"] == 2
    assert summary == json.loads((out / "nonlocality.json").read_text())
    assert "--root SPair-71k --split val --weights" in summary["command"]
    assert {path.name for path in out.iterdir()} == {
        "nonlocality.json", "nonlocality.jsonl", "nonlocality.png", "difficulty.png", "run.json",
    }  # fmt: skip


def test_nonlocality_without_difficulty(willow_root, weights, tmp_path, capsys):
    arguments = ["analyse", "nonlocality", "--benchmark", "pfwillow", "--root", willow_root, "--weights", weights]
    assert run(*arguments, "--split", "test", "--out", tmp_path / "out") == 0
    assert "no figure of difficulty" in capsys.readouterr().out
    assert not (tmp_path / "out" / "difficulty.png").exists()


def test_a_model_without_attention(spair_root, tmp_path, capsys):
    raw = write_checkpoint(tmp_path / "raw", variant="raw")
    arguments = ["analyse", "nonlocality", "--benchmark", "spair", "--root", spair_root, "--weights", raw]
    assert run(*arguments, "--out", tmp_path / "out") == 2
    assert "no additive attention; give --weights" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_tables(evaluated, tmp_path, capsys):
    (tmp_path / "bench.json").write_text(json.dumps(BENCH))
    out = tmp_path / "tables"
    assert run("analyse", "tables", evaluated, "--bench", tmp_path / "bench.json", "--out", out) == 0
    names = {"benchmarks", "classes-spair", "difficulty-spair", "costs"}
    assert {path.name for path in out.iterdir()} == {f"{name}{end}" for name in names for end in (".md", ".tex")}
    assert str(out / "costs.tex") in capsys.readouterr().out
    assert run("analyse", "tables", "--out", out) == 2
    assert "nothing to put into a table" in capsys.readouterr().err


def test_attention(weights, tmp_path, capsys):
    photos = [write_image(tmp_path / name, seed=seed) for seed, name in enumerate(("a.jpg", "b.jpg"))]
    out = tmp_path / "attention.png"
    assert run("analyse", "attention", *photos, "--weights", weights, "--most", 3, "--out", out) == 0
    assert "(the most selective)" in capsys.readouterr().out
    assert out.stat().st_size > 10_000
    assert run("analyse", "attention", *photos, "--weights", weights, "--layer", 9, "--out", out) == 2
    assert "--layer 9: this model has layers 1 to 2" in capsys.readouterr().err
    assert run("analyse", "attention", *photos, "--weights", weights, "--out", tmp_path / "a.txt") == 2


@pytest.mark.parametrize("name", ["folder", "page.html"])
def test_failures(evaluated, spair_root, tmp_path, capsys, name):
    out = tmp_path / name
    assert run("analyse", "failures", evaluated, "--root", spair_root, "--most", 1, "--out", out) == 0
    assert "1 of 2 pairs, PCK 0.0 to 0.0" in capsys.readouterr().out
    page = out if out.suffix else out / "failures.html"
    assert "--root SPair-71k --most 1 --out" in page.read_text()


def test_failures_of_nothing(evaluated, spair_root, tmp_path, capsys):
    assert run("analyse", "failures", tmp_path / "nowhere", "--root", spair_root, "--out", tmp_path / "x") == 2
    assert "no such folder; name one that transformatcher eval wrote" in capsys.readouterr().err
    assert run("analyse", "failures", evaluated, "--root", tmp_path / "nowhere", "--out", tmp_path / "x") == 2
    assert "no such folder (the SPair-71k folder" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        run("analyse", "failures", evaluated, "--root", spair_root, "--alpha", -1, "--out", tmp_path / "x")
    assert "--alpha: '-1' is not a number from 0.0001 to 1" in capsys.readouterr().err


def test_report(evaluated, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert run("report", evaluated, "--title", "Mine", "--out", out) == 0
    assert "evaluation: 1\nreport: " in capsys.readouterr().out
    assert "<h1>Mine</h1>" in out.read_text()
    assert run("report", evaluated, "--out", tmp_path / "report.pdf") == 2
    assert "choose a name that ends in .html" in capsys.readouterr().err
    assert run("report", tmp_path / "nowhere", "--out", out) == 2
    assert "nowhere: no such file or folder" in capsys.readouterr().err

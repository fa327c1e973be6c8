"""``analyse nonlocality``: a summary, its plots, and the same command again."""

import json

from helpers.analysis import write_checkpoint
from helpers.command import run


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

"""``analyse layers``: each layer and each two, as raw correlation matches with them."""

import json
from pathlib import Path

import numpy as np
from helpers.command import run


def test_all_layers_are_what_eval_scores(spair_root: Path, tmp_path: Path, raw, capsys):
    """And one layer alone is what `eval` scores with that layer."""
    data = ("--benchmark", "spair", "--root", spair_root, "--split", "val")
    raw = [*raw, "--set", "kernel_sigma=2.0", "--set", "kernel_on=probabilities"]
    options = [*raw[2:], "--device", "cpu"]  # without --refiner none, which is meant
    assert run("analyse", "layers", *data, *options, "--alpha", "0.15", "--out", tmp_path / "layers") == 0
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "layers" / "layers.json").read_text())
    pck = np.array(found["pck"])
    count = len(found["layers"])
    assert count == 6
    assert pck.shape == (count, count)
    assert np.array_equal(pck, pck.T)
    assert f"all layers: {found['all_layers']:.1f}" in printed
    assert (tmp_path / "layers" / "layers.png").is_file()

    def evaluated(name: str, *more: str) -> float:
        out = tmp_path / name
        assert run("eval", *data, *raw, "--precision", "float32", *more, "--device", "cpu", "--out", out) == 0
        return json.loads((out / "scores.json").read_text())["pck"]["bbox"]["0.15"]["per_pair"]

    assert evaluated("all") == found["all_layers"]
    assert evaluated("one", "--set", f"layers=[{found['layers'][2]}]") == pck[2, 2]
    assert evaluated("two", "--set", f"layers=[{found['layers'][1]},{found['layers'][4]}]") == pck[1, 4]


def test_a_trained_model_s_backbone_is_named_otherwise(spair_root: Path, tmp_path: Path, capsys):
    data = ("--benchmark", "spair", "--root", spair_root)
    assert run("analyse", "layers", *data, "--out", tmp_path / "layers") == 2
    assert "needs --backbone-weights" in capsys.readouterr().err

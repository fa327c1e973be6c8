"""``analyse overlap``: a table, a plot, and the sentence that a mistake gets."""

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.analysis import prediction, write_eval
from helpers.command import run
from helpers.overlap import RIGHT, add_lists, write_overlap_eval

from transformatcher.run_folder import read_run, write_run


@pytest.fixture
def root(pascal_root: Path) -> Path:
    return add_lists(pascal_root)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_overlap_eval(tmp_path / "mine")


def test_command(root, folder, tmp_path, capsys):
    out = tmp_path / "overlap"
    assert run("analyse", "overlap", folder, "--root", root, "--out", out) == 0
    assert "the pair itself" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"overlap.md", "overlap.tex", "overlap.png"}
    assert "transformatcher analyse overlap mine --root PF-PASCAL --out overlap" in (out / "overlap.md").read_text()


def test_another_benchmarks_training_list(root, willow_root, tmp_path, capsys):
    """Of the two photos of the one pair, PF-PASCAL's list has both by name, as a pair."""
    names = {"benchmark": "pfwillow", "split": "test"}
    folder = write_eval(tmp_path / "willow", [prediction("0000-a-b", RIGHT)], **names)
    arguments = ["analyse", "overlap", folder, "--root", willow_root, "--out", tmp_path / "out"]
    other = ["--train-benchmark", "pfpascal"]
    assert run(*arguments) == 2
    assert "PF-WILLOW test has no training list of its own; name one with --train-benchmark" in capsys.readouterr().err
    assert run(*arguments, *other) == 2
    assert "--train-benchmark pfpascal: name its folder too, with --train-root" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run(*arguments, *other, "--train-root", root) == 0
    text = (tmp_path / "out" / "overlap.md").read_text()
    assert "PF-WILLOW test by overlap with PF-PASCAL trn" in text
    assert "| the pair itself | 1 | 100.0 / 100.0 |" in text
    assert "--root PF-WILLOW --train-benchmark pfpascal --train-root PF-PASCAL --out out" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_pairs": 299}, "holds 5 of 299 pairs; the same eval command continues it"),
        ({"benchmark": ""}, "run.json: does not name the benchmark of these predictions"),
        ({"split": ["test"]}, "run.json: split: Input should be a valid string; not what eval writes"),
        ({"model": 5}, "run.json: model: Input should be a valid dictionary; not what eval writes"),
    ],
)
def test_a_folder_that_eval_left_otherwise(root, folder, tmp_path, capsys, changes, words):
    before = read_run(folder)
    write_run(folder, replace(before, arguments={**before.arguments, **changes}))
    assert run("analyse", "overlap", folder, "--root", root, "--out", tmp_path / "out") == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

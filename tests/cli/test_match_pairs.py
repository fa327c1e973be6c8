"""``match-pairs``: its options; what it writes is tested with the lists of pairs."""

from pathlib import Path

import pytest
from helpers.command import run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: LIST, --out"),
        (["a.jpg", "b.jpg", "--out", "out"], "unexpected argument: b.jpg"),
        (["pairs.csv"], "required: --out"),
        (["pairs.csv", "--out", "out", "--json"], "unknown option --json"),
        (["pairs.csv", "--out", "out", "--keypoints", "1,1"], "unknown option --keypoints"),
        (["pairs.csv", "--out", "out", "--cache-gb", "0"], "'0' is not a number from 0.001"),
        (["pairs.csv", "--out", "out", "--shard-size", "0"], "'0' is not a whole number from 1"),
    ],
)
def test_options_of_other_commands(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        run("match-pairs", *arguments)
    assert message in capsys.readouterr().err


def test_without_pyarrow(monkeypatch, tmp_path: Path, capsys):
    monkeypatch.setattr("transformatcher.errors.find_spec", lambda _: None)
    assert run("match-pairs", "pairs.csv", "--out", tmp_path) == 2
    assert "needs the package pyarrow: pip install pyarrow (part of the extra 'bulk')" in capsys.readouterr().err

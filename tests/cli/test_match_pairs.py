"""``match-pairs``: its options; what it writes is tested with the lists of pairs."""

from pathlib import Path

import pytest
from conftest import write_image
from helpers.bulk import write_csv
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


def test_without_ray(monkeypatch, tmp_path: Path, capsys):
    monkeypatch.setattr("transformatcher.errors.find_spec", lambda name: None if name == "ray" else True)
    assert run("match-pairs", "pairs.csv", "--out", tmp_path, "--engine", "ray") == 2
    assert (
        "--engine ray needs the package ray: pip install ray (part of the extra 'cluster')" in capsys.readouterr().err
    )


@pytest.mark.parametrize("option", ["--address", "--workers", "--cpus-per-worker", "--gpus-per-worker"])
def test_options_of_ray_alone(option: str, tmp_path: Path, capsys):
    for command in (["match-pairs", "pairs.csv"], ["propagate", "a.json", tmp_path]):
        assert run(*command, "--out", tmp_path / "out.json", option, "1") == 2
        assert f"{option} goes with --engine ray" in capsys.readouterr().err


def test_a_dry_run(tmp_path: Path, raw, capsys):
    for seed in range(3):
        write_image(tmp_path / f"{seed}.png", (40, 60), seed)
    path = write_csv(tmp_path / "pairs.csv", [("0.png", f"{i % 3}.png", "5,5") for i in range(30)])
    assert run("match-pairs", path, "--out", tmp_path / "out", "--dry-run", "--workers", 4, "--threads", 1, *raw) == 0
    printed = capsys.readouterr().out
    for words in ("30 pairs of 3 photos", "worker-hours", "hours with 4 workers", "in 1 Parquet files", "--features"):
        assert words in printed
    assert not (tmp_path / "out").exists()


def test_without_pyarrow(monkeypatch, tmp_path: Path, capsys):
    monkeypatch.setattr("transformatcher.errors.find_spec", lambda _: None)
    assert run("match-pairs", "pairs.csv", "--out", tmp_path) == 2
    assert "needs the package pyarrow: pip install pyarrow (part of the extra 'bulk')" in capsys.readouterr().err

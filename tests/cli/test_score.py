"""``score``: saved predictions under another protocol."""

import json
from pathlib import Path

import pytest
from helpers.command import run


def test_rescoring_needs_no_images(spair_root: Path, tmp_path: Path, raw, capsys):
    out = tmp_path / "out"
    run("eval", "--benchmark", "spair", "--root", spair_root, "--split", "val", "--out", out, *raw)
    for image in (spair_root / "JPEGImages" / "cat").iterdir():
        image.unlink()
    assert run("score", out, "--frame", "original", "--alpha", 0.2, "--pck-threshold", "img") == 0
    assert "frame original" in capsys.readouterr().out
    scores = json.loads((out / "scores-original-alpha-0.2.json").read_text())
    assert list(scores["pck"]["img"]) == ["0.2"]
    assert json.loads((out / "scores.json").read_text())["frame"] == "240x240"


@pytest.fixture
def evaluated_spair(spair_root: Path, tmp_path: Path, raw) -> Path:
    out = tmp_path / "out"
    run("eval", "--benchmark", "spair", "--root", spair_root, "--split", "val", "--out", out, *raw)
    return out


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_our_points_in_the_foreign_format_score_as_eval_does(evaluated_spair: Path, spair_root, tmp_path, suffix):
    """To the last digit, in every protocol."""
    theirs = tmp_path / f"theirs{suffix}"
    assert run("score", evaluated_spair, "--frame", "all", "--write-points", theirs) == 0
    data = ("--benchmark", "spair", "--root", spair_root, "--split", "val")
    assert run("score", theirs, *data, "--frame", "all") == 0
    for name in ("scores.json", "scores-original.json"):
        ours = json.loads((evaluated_spair / name).read_text())
        assert json.loads((tmp_path / f"theirs-{name}").read_text()) == ours
    assert (tmp_path / "theirs-scores-groups.png").is_file()


def test_two_methods_are_compared_pair_by_pair(evaluated_spair: Path, spair_root, tmp_path, capsys):
    """One point of ours is moved to the truth: (40, 50)."""
    theirs = tmp_path / "theirs.csv"
    run("score", evaluated_spair, "--write-points", theirs)
    lines = theirs.read_text().splitlines()
    lines[2:3] = ["000000-a-b:cat,1,40,50,1"]
    theirs.write_text("\n".join(lines))
    capsys.readouterr()
    assert (
        run(
            "score",
            theirs,
            "--benchmark",
            "spair",
            "--root",
            spair_root,
            "--split",
            "val",
            "--against",
            evaluated_spair,
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "theirs against out, 2 pairs" in printed
    assert "theirs and out cannot be told apart: they differ by" in printed or "is better than out by" in printed
    comparison = json.loads((tmp_path / "theirs-against-out.json").read_text())
    assert comparison["pck"]["bbox"]["0.01"]["difference"] > 0
    assert (tmp_path / "theirs-against-out.png").is_file()
    # the other way round, the folder knows its benchmark
    assert run("score", evaluated_spair, "--root", spair_root, "--against", theirs) == 0
    other = json.loads((evaluated_spair / "against-theirs.json").read_text())
    assert other["pck"]["bbox"]["0.01"]["difference"] == -comparison["pck"]["bbox"]["0.01"]["difference"]


def test_eval_compares_at_its_end(evaluated_spair: Path, spair_root, tmp_path, raw, capsys):
    data = ("--benchmark", "spair", "--root", spair_root, "--split", "val")
    assert run("eval", *data, "--out", tmp_path / "again", "--against", evaluated_spair, *raw) == 0
    assert "again and out cannot be told apart: they differ by 0.0 ± 0.0" in capsys.readouterr().out


def test_missing_points_count_as_wrong_if_asked(evaluated_spair: Path, spair_root, tmp_path, capsys):
    theirs = tmp_path / "theirs.csv"
    run("score", evaluated_spair, "--write-points", theirs)
    theirs.write_text("\n".join(theirs.read_text().splitlines()[:-1]))
    score = ("score", theirs, "--benchmark", "spair", "--root", spair_root, "--split", "val")
    capsys.readouterr()
    assert run(*score) == 2
    assert "keypoint 1 of 000001-b-a:cat is missing, of 4; --missing wrong" in capsys.readouterr().err
    assert not (tmp_path / "theirs-scores.json").exists()
    assert run(*score, "--missing", "wrong") == 0
    assert "counted as wrong, because they are missing: keypoint 1 of 000001-b-a:cat" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "a file of points needs --benchmark and --root"),
        (("--root", "DIR"), "name the --benchmark"),
        (("--benchmark", "spair"), "--benchmark spair: needs --root"),
    ],
)
def test_a_file_needs_its_benchmark(tmp_path: Path, capsys, options, message):
    (tmp_path / "p.csv").write_text("pair,keypoint,x,y\na,0,1,2\n")
    assert run("score", tmp_path / "p.csv", *options) == 2
    assert message in capsys.readouterr().err


def test_the_points_to_predict_are_listed(spair_root: Path, tmp_path: Path, capsys):
    out = tmp_path / "asked.csv"
    assert run("data", "points", "--benchmark", "spair", "--root", spair_root, "--split", "val", "--out", out) == 0
    assert "4 points of 2 pairs" in capsys.readouterr().out
    header, first, *_ = out.read_text().splitlines()
    assert header == "pair,keypoint,src_x,src_y,src_image,trg_image,src_flip,trg_flip"
    assert first == "000000-a-b:cat,0,10.0,10.0,JPEGImages/cat/a.jpg,JPEGImages/cat/b.jpg,0,0"

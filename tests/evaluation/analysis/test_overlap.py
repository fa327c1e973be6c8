"""Pairs by what a training list holds of them."""

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.analysis import prediction, write_eval

from transformatcher.cli.main import main
from transformatcher.errors import InputError
from transformatcher.evaluation.analysis.overlap import (
    ALL,
    FEW,
    LISTED,
    TrainingList,
    measure_overlap,
    overlap_table,
    plot_overlap,
)
from transformatcher.evaluation.analysis.run_folders import read_eval
from transformatcher.run_folder import read_run, write_run

FAR, NEAR, RIGHT = 50.0, 6.0, 0.0  # pixels of 80: wrong, right within 0.1 alone, right
TEST = {"b-a": RIGHT, "b-c": NEAR, "a-d": NEAR, "d-a": FAR, "d-e": FAR}  # a pair of the list exchanged, and others
SCORES = dict(zip(LISTED, ((100, 100), (0, 100), (0, 50), (0, 0)), strict=True))  # at 0.05 and 0.1


@pytest.fixture
def root(pascal_root: Path) -> Path:
    """Of PF-PASCAL, with a training list of a–b (mirrored) and c–a."""
    mat = (pascal_root / "Annotations" / "cat" / "b.mat").read_bytes()
    for name in "cde":
        (pascal_root / "Annotations" / "cat" / f"{name}.mat").write_bytes(mat)
    with (pascal_root / "trn_pairs.csv").open("a") as file:
        file.write("JPEGImages/c.jpg,JPEGImages/a.jpg,8,0\n")
    lines = [f"JPEGImages/{name[0]}.jpg,JPEGImages/{name[2]}.jpg,8,1;2,3;4,5;6,7;8" for name in TEST]
    (pascal_root / "test_pairs.csv").write_text("\n".join(["source_image,target_image,class,XA,YA,XB,YB", *lines]))
    return pascal_root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = [prediction(f"{i:04d}-{name}-cat", error) for i, (name, error) in enumerate(TEST.items())]
    return write_eval(tmp_path / "mine", found, benchmark="pfpascal", split="test")


def test_parts(root, folder):
    overlap = measure_overlap([read_eval(folder)], root, TrainingList("pfpascal", root))
    assert overlap.photos == (3, 5)
    assert overlap.counts == {ALL: 5, **dict(zip(LISTED, (1, 1, 2, 1), strict=True)), FEW: 3}
    assert overlap.scores["mine"] == {ALL: (20, 60), **SCORES, FEW: (0, pytest.approx(100 / 3))}
    assert [row[1:] for row in overlap_table(overlap).sections[0].rows] == [
        ["5", "20.0 / 60.0"], ["1", "100.0 / 100.0"], ["1", "0.0 / 100.0"], ["2", "0.0 / 50.0"], ["1", "0.0 / 0.0"],
        ["3", "0.0 / 33.3"],
    ]  # fmt: skip
    fine, coarse = plot_overlap(overlap).axes
    assert [bar.get_height() for bar in coarse.patches] == [100, 100, 50, 0]
    assert [bar.get_height() for bar in fine.patches] == [100, 0, 0, 0]


def test_a_part_without_pairs_and_two_runs_of_one_name(root, folder, tmp_path):
    few = [prediction("0000-b-a-cat", RIGHT)]
    first, other = (
        read_eval(write_eval(tmp_path / name / "one", few, benchmark="pfpascal", split="test")) for name in "xy"
    )
    overlap = measure_overlap([first, other], root, TrainingList("pfpascal", root))
    assert list(overlap.scores) == ["one", str(other.folder)]
    assert overlap_table(overlap).sections[0].rows[-2] == ["neither image", "0", "–", "–"]
    _, coarse = plot_overlap(overlap).axes
    assert [bar.get_height() for bar in coarse.patches] == [100, 100, *[0] * 6]  # two runs in each of four parts
    with pytest.raises(InputError, match="its 1 pairs are not the 5 of"):
        measure_overlap([read_eval(folder), other], root, TrainingList("pfpascal", root))


def test_command(root, folder, tmp_path, capsys):
    out = tmp_path / "overlap"
    assert main(["analyse", "overlap", str(folder), "--root", str(root), "--out", str(out)]) == 0
    assert "the pair itself" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"overlap.md", "overlap.tex", "overlap.png"}
    assert "transformatcher analyse overlap mine --root PF-PASCAL --out overlap" in (out / "overlap.md").read_text()


def test_what_cannot_be_divided(root, folder, tmp_path):
    run = read_eval(folder)
    val = read_eval(write_eval(tmp_path / "val", [prediction("0", RIGHT)], benchmark="pfpascal", split="val"))
    stranger = read_eval(
        write_eval(tmp_path / "s", [prediction("9-x-y-cat", RIGHT)], benchmark="pfpascal", split="test")
    )
    for runs, training, words in (
        ([run, val], "trn", "of PF-PASCAL val.*name runs of one split"),
        ([run], "test", "PF-PASCAL test, the training list itself"),
        ([stranger], "trn", "pair 9-x-y-cat is not in"),
    ):
        with pytest.raises(InputError, match=words):
            measure_overlap(runs, root, TrainingList("pfpascal", root, training))


def test_another_benchmarks_training_list(root, willow_root, tmp_path, capsys):
    """Of the two photos of the one pair, PF-PASCAL's list has both by name, as a pair."""
    names = {"benchmark": "pfwillow", "split": "test"}
    folder = write_eval(tmp_path / "willow", [prediction("0000-a-b", RIGHT)], **names)
    arguments = ["analyse", "overlap", str(folder), "--root", str(willow_root), "--out", str(tmp_path / "out")]
    other = ["--train-benchmark", "pfpascal"]
    assert main(arguments) == 2
    assert "PF-WILLOW test has no training list of its own; name one with --train-benchmark" in capsys.readouterr().err
    assert main([*arguments, *other]) == 2
    assert "--train-benchmark pfpascal: name its folder too, with --train-root" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*arguments, *other, "--train-root", str(root)]) == 0
    text = (tmp_path / "out" / "overlap.md").read_text()
    assert "PF-WILLOW test by overlap with PF-PASCAL trn" in text
    assert "| the pair itself | 1 | 100.0 / 100.0 |" in text
    assert "--root PF-WILLOW --train-benchmark pfpascal --train-root PF-PASCAL --out out" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_pairs": 299}, "holds 5 of 299 pairs; the same eval command continues it"),
        ({"benchmark": ""}, "run.json: does not name the benchmark of these predictions"),
        ({"split": ["test"]}, "run.json: not what eval writes"),
        ({"model": 5}, "run.json: not what eval writes"),
    ],
)
def test_a_folder_that_eval_left_otherwise(root, folder, tmp_path, capsys, changes, words):
    run = read_run(folder)
    write_run(folder, replace(run, arguments={**run.arguments, **changes}))
    assert main(["analyse", "overlap", str(folder), "--root", str(root), "--out", str(tmp_path / "out")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

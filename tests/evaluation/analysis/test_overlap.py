"""Pairs by what a training list holds of them."""

from pathlib import Path

import pytest
from helpers.analysis import prediction, write_eval
from helpers.overlap import RIGHT, add_lists, write_overlap_eval

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

SCORES = dict(zip(LISTED, ((100, 100), (0, 100), (0, 50), (0, 0)), strict=True))  # at 0.05 and 0.1


@pytest.fixture
def root(pascal_root: Path) -> Path:
    return add_lists(pascal_root)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_overlap_eval(tmp_path / "mine")


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

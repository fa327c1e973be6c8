"""``reproduce``: plans, what is done and what is not, and our numbers beside the paper's."""

import json
from pathlib import Path

import pytest
import torch
from helpers.analysis import write_checkpoint
from helpers.command import run
from helpers.spair import tiny_options, write_spair
from safetensors.torch import save_file

from transformatcher.cli import reproduce
from transformatcher.evaluation.analysis.paper import TABLE_2, class_wise
from transformatcher.evaluation.predict import Prediction
from transformatcher.models.backbones.resnet import ResNetFeatures
from transformatcher.training.reproduction import ITEMS, MODELS
from transformatcher.training.reproduction_plan import Setting, plan, study_row
from transformatcher.training.reproduction_table import best_pairs, measured
from transformatcher.training.study import read_study


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_spair(root / "SPair-71k")
    torch.manual_seed(0)
    save_file(ResNetFeatures("resnet50").state_dict(), root / "resnet50.safetensors")
    return root


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "weights")


def test_every_table_and_figure_has_a_command():
    assert set(reproduce.NAMES) == {*ITEMS, "all"}
    for item in ITEMS.values():
        assert item.numbers or item.pictures
        assert set(item.models) <= set(MODELS)


def test_every_model_is_a_row_of_its_study():
    for study, label in MODELS.values():
        assert label in {row.label for row in read_study(study).rows}


def test_all_numbers_of_the_paper_are_asked_for():
    assert len(ITEMS["table1"].numbers) == 14
    assert [number.value for number in ITEMS["table2"].numbers] == [v for row in TABLE_2.values() for v in row]
    assert len(ITEMS["table3"].numbers) == 6
    assert [number.value for number in ITEMS["tableA1"].numbers[19:]] == list(class_wise()["TransforMatcher†"].values())
    assert [number.value for number in ITEMS["tableA2"].numbers] == [20.9, 41.7, 24.1, 45.1, 32.4, 53.7]


@pytest.mark.parametrize("name", reproduce.NAMES)
def test_a_plan_of_what_is_not_here(name: str, tmp_path: Path, capsys):
    """Datasets are named with the place that they come from; nothing is written."""
    (tmp_path / "data").mkdir()
    out = tmp_path / "out"
    assert run("reproduce", name, "--data", tmp_path / "data", "--dry-run", "--out", out) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "SPair-71k trn is not in" in printed
    assert "http://cvlab.postech.ac.kr/research/SPair-71k/" in printed
    assert "hours on one H200" in printed
    assert not out.exists()


def test_weights_that_are_not_here_are_named(data: Path, tmp_path: Path, capsys):
    assert run("reproduce", "table2", "--data", data, "--dry-run", "--out", tmp_path / "out") == 0
    assert "resnet101-63fe2227.pth is not in torch's cache" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--weights", "shipped", "--set", "train.epochs=1"), "--weights takes the place of all trainings"),
        (("--data", "nowhere"), "nowhere: no such folder; name the one that SPair-71k"),
    ],
)
def test_unusable_options(data: Path, capsys, options, message):
    assert run("reproduce", "table1", "--data", data, *options) == 2
    assert message in capsys.readouterr().err


def test_hours_are_those_of_the_list_and_the_table_of_speeds(data: Path, tmp_path: Path):
    """53,340 pairs, ten times, at 2.49 ms: 22 minutes."""
    steps = plan([ITEMS["tableA2"]], Setting(data, tmp_path))
    hours = [step.hours for step in steps if step.kind == "train"]
    assert hours == pytest.approx([53_340 * 10 * 2.49e-3 / 3600] * 3)


@pytest.mark.slow
def test_a_figure_from_training_to_page(data: Path, tmp_path: Path, capsys, monkeypatch):
    """What is done is not done again, and an interrupted training goes on."""
    command = ("reproduce", "figureA1", "--data", data, "--out", tmp_path / "out", "--device", "cpu")
    options = tiny_options(data, **{"train.epochs": 1})
    assert run(*command, *options) == 0
    page = tmp_path / "out" / "errors" / "spair-rotary" / "failures.html"
    assert page.is_file()
    printed = capsys.readouterr().out
    assert "cannot be had: CATs' own predictions" in printed
    config = json.loads((tmp_path / "out" / "train" / "spair-rotary.json").read_text())
    assert (config["train"]["epochs"], config["model"]["image_size"]) == (1, [48, 48])
    monkeypatch.setattr(reproduce, "_do", pytest.fail)
    assert run(*command, *options) == 0
    assert "0 trainings" in capsys.readouterr().out


def test_a_checkpoint_in_place_of_trainings(data: Path, checkpoint: Path, tmp_path: Path, capsys):
    """Numbers, intervals and differences are those of the saved predictions, to the digit."""
    out = tmp_path / "out"
    command = ("reproduce", "tableA1", "figure7", "--data", data, "--weights", checkpoint, "--split", "val")
    assert run(*command, "--out", out, "--device", "cpu") == 0
    capsys.readouterr()
    scores = json.loads((out / "eval" / "weights-spair-val" / "scores.json").read_text())
    cell = scores["pck"]["bbox"]["0.1"]
    lines = (out / "tablea1.md").read_text().splitlines()
    row = next(line for line in lines if line.startswith("| TransforMatcher† | SPair-71k val, bbox @ 0.1 ("))
    low, high = cell["ci95"]
    ours = f"53.7 | {cell['per_pair']:.1f} | {low:.1f} – {high:.1f} | {cell['per_pair'] - 53.7:+.1f} |"
    assert row.endswith(f"(18 pairs of 5384) | {ours}")
    cat = scores["per_category"]["cat"]["bbox"]["0.1"]["per_pair"]
    assert any("bbox @ 0.1, cat" in line and f"| {cat:.1f} |" in line for line in lines)
    assert len([line for line in lines if line.startswith("| TransforMatcher")]) == 38
    assert (out / "nonlocality" / "weights" / "difficulty.png").is_file()


@pytest.mark.slow
def test_pairs_that_cannot_be_warped_are_left_out(data: Path, checkpoint: Path, tmp_path: Path):
    out = tmp_path / "out" / "warps" / "weights-any"
    assert run("reproduce", "figure5", "--data", data, "--weights", checkpoint, "--out", tmp_path / "out") == 0
    drawn = json.loads((out / "pairs.json").read_text())
    assert len(drawn) == len(list(out.glob("*/warped.png"))) < 18  # a random model finds too little


def test_predictions_that_are_there_are_enough(data: Path, checkpoint: Path, tmp_path: Path, monkeypatch):
    """Without any model: the table is made from them alone."""
    out = tmp_path / "out"
    command = ("reproduce", "tableA1", "--data", data, "--weights", checkpoint, "--out", out)
    assert run(*command, "--device", "cpu") == 0
    before = (out / "tablea1.md").read_text()
    (out / "tablea1.md").unlink()
    (checkpoint / "model.safetensors").unlink()
    monkeypatch.setattr(reproduce, "_do", pytest.fail)
    assert run(*command) == 0
    assert (out / "tablea1.md").read_text() == before


def test_no_number_without_predictions(tmp_path: Path):
    assert measured(ITEMS["table1"].numbers[0], Setting(tmp_path, tmp_path)) is None


def test_settings_reach_the_rows(tmp_path: Path):
    setting = Setting(tmp_path, tmp_path, settings={"train.batch_size": 8, "train.accumulate": 2})
    config = study_row("spair-absolute-plain", setting).config
    assert (config.train.batch_size, config.train.accumulate, config.data.p_crop) == (8, 2, 0.0)
    assert config.data.root == str(tmp_path)


def test_the_best_pairs_are_of_different_categories_and_hard_ones_come_first():
    def found(name: str, category: str, error: float, scale: int) -> Prediction:
        true = [[float(10 * i), 10.0 + i] for i in range(5)]
        return Prediction(
            name=name, category=category, src_size=[60, 80], trg_size=[60, 80], kp_index=list(range(5)), src_kps=true,
            trg_kps=true, pred_kps=[[x + error, y] for x, y in true], peak=[1.0] * 5,
            trg_bbox=[0.0, 0.0, 60.0, 50.0], difficulty={"scale": scale},
        )  # fmt: skip

    predictions = [found("a", "cat", 0, 0), found("b", "cat", 0, 2), found("c", "dog", 0, 1), found("d", "cow", 30, 2)]
    assert [item.name for item in best_pairs(predictions, "")] == ["a", "c", "b"]
    assert [item.name for item in best_pairs(predictions, "scale")[:2]] == ["b", "c"]
    assert [item.name for item in best_pairs(predictions[3:], "scale")] == ["d"]  # nothing better is there

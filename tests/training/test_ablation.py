"""Studies are run once, resumed, and never mixed up with results of other settings."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.training import write_study

from transformatcher.cli.main import main
from transformatcher.config import PairSource, to_plain
from transformatcher.errors import InputError
from transformatcher.files import exclusive_lock
from transformatcher.training import ablation
from transformatcher.training.ablation import Task, run_study, run_task
from transformatcher.training.ablation_table import RESULT, write_table
from transformatcher.training.study import Study, read_study

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def study_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def whole_study(study_file: Path, tmp_path_factory: pytest.TempPathFactory):
    """The folder of a study that nothing interrupted, its table, and the progress it reported."""
    out, progress = tmp_path_factory.mktemp("whole") / "study", []
    table = run_study(read_study(str(study_file)), out, CPU, on_progress=lambda *event: progress.append(event))
    return out, table, progress


@pytest.fixture
def finished(whole_study, tmp_path: Path) -> Path:
    """A copy of that folder, among the runs of this test."""
    return shutil.copytree(whole_study[0], tmp_path / "runs" / "first")


@pytest.fixture
def study(study_file: Path) -> Study:
    return read_study(str(study_file))


@pytest.fixture
def no_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "inference_cost", lambda *_: {"ms_per_pair": 1.0})


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "run_task", pytest.fail)


class Trained(Exception):  # noqa: N818
    """Raised instead of training."""


@pytest.fixture
def training_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise Trained

    monkeypatch.setattr(ablation, "run_task", fail)


class TestRunStudy:
    def test_every_row_with_every_seed(self, whole_study):
        out, table, progress = whole_study
        assert [(done, total) for done, total, _ in progress] == [(n, 4) for n in range(5)]
        assert [row["label"] for row in table["rows"]] == ["axial", "no position"]
        assert table["rows"][0]["ms_per_pair"] > 0
        assert "| axial | " in (out / "table.md").read_text()
        assert not list(out.rglob("*.safetensors"))

    def test_resume(self, study, finished, monkeypatch):
        ran = []
        monkeypatch.setattr(
            ablation, "run_task", lambda task, *rest: (ran.append(task.out.name), run_task(task, *rest))
        )
        shutil.rmtree(finished / "no-position" / "seed-1")
        run_study(study, finished, CPU)
        assert ran == ["seed-1"]  # the one that was missing, and no other

    @pytest.mark.usefixtures("no_training")
    def test_other_settings(self, study_file, finished, tmp_path):
        changed = tmp_path / "study.toml"
        changed.write_text(study_file.read_text().replace("depth = 1", "depth = 2"))
        with pytest.raises(InputError, match=r"which differs in model.match2match.depth \(1 there, 2 here\)"):
            run_study(read_study(str(changed)), finished, CPU)

    @pytest.mark.usefixtures("no_timing")
    def test_a_killed_run_starts_again(self, study, tmp_path):
        folder = tmp_path / "out" / "axial" / "seed-0"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text("{")  # killed before its first checkpoint
        study = replace(study, seeds=[0])
        table = run_study(study, tmp_path / "out", CPU, only=["axial"], keep_weights=True)
        assert [row["seeds"] for row in table["rows"]] == [1]
        assert (folder / "best" / "model.safetensors").is_file()
        assert not (folder / "last.safetensors").exists()
        assert table == write_table(study, tmp_path / "out")

    @pytest.mark.usefixtures("finished", "no_timing", "no_training")
    def test_the_result_of_another_study_is_copied(self, study, tmp_path):
        table = run_study(study, tmp_path / "runs" / "second", CPU, only=["axial"])
        assert table["rows"][0]["seeds"] == 2

    @pytest.mark.usefixtures("finished", "training_raises")
    def test_a_result_with_other_settings_is_not_copied(self, study_file, tmp_path):
        study = read_study(str(study_file), {"train.lr": 0.5})
        with pytest.raises(Trained):
            run_study(study, tmp_path / "runs" / "second", CPU, only=["axial"])

    @pytest.mark.usefixtures("training_raises")
    @pytest.mark.parametrize("other", ["weights", "sets"])
    def test_other_initial_weights_and_other_sets(self, study_file, study, finished, tmp_path, monkeypatch, other):
        result = json.loads((finished / "axial" / "seed-0" / RESULT).read_text())
        assert result["measured"] == [to_plain(PairSource("pfpascal", "PF", "val"))]
        for name, text in (("other", "{}"), ("more", '{"config": {}, "measured": [], "pck": {}}')):  # not copied either
            path = tmp_path / "runs" / name / "x" / "seed-0" / RESULT
            path.parent.mkdir(parents=True)
            path.write_text(text)
        monkeypatch.setattr(ablation, "init_model", lambda *_: None)
        if other == "weights":
            changed = read_study(str(study_file), {"train.backbone_weights": "other.safetensors"})
        else:
            changed = replace(study, measure=[replace(item, limit=1) for item in study.measure])
        with pytest.raises(Trained):
            run_study(changed, tmp_path / "runs" / "second", CPU, only=["axial"])
        key = {"weights": r"train\.backbone_weights", "sets": "measure"}[other]
        with pytest.raises(InputError, match=f"holds another run, which differs in {key}.*; choose another --out"):
            run_study(replace(changed, seeds=[7]), finished, CPU, only=["axial"])

    @pytest.mark.usefixtures("no_training")
    def test_a_file_that_is_no_result(self, study, finished):
        (finished / "axial" / "seed-3").mkdir()
        (finished / "axial" / "seed-3" / RESULT).write_text("[]")
        with pytest.raises(InputError, match=r"seed-3.*: not a result of this version of ablate; choose another --out"):
            run_study(study, finished, CPU, only=["axial"])

    def test_an_interrupted_run_is_resumed(self, study, tmp_path, monkeypatch):
        task = Task(study.rows[0], 0, tmp_path / "out" / "axial" / "seed-0")
        task.out.mkdir(parents=True)
        (task.out / "last.safetensors").touch()

        def fake_train(*_, resume: bool, **__):
            raise Trained(resume)

        monkeypatch.setattr(ablation, "train", fake_train)
        with pytest.raises(Trained, match="True"):
            run_task(task, [], CPU, keep_weights=False)
        (task.out / "last.safetensors").unlink()
        with exclusive_lock(task.out), pytest.raises(InputError, match="another process is writing there"):
            run_task(task, [], CPU, keep_weights=False)

    @pytest.mark.usefixtures("no_training")
    def test_inputs_that_are_missing(self, study_file, study, tmp_path):
        gone = replace(study, measure=[replace(study.measure[0], folder="gone")])
        with pytest.raises(InputError, match="gone"):
            run_study(gone, tmp_path / "out", CPU)
        gone = read_study(str(study_file), {"train.backbone_weights": "nowhere.safetensors"})
        with pytest.raises(InputError, match=r"nowhere\.safetensors: no such"):
            run_study(gone, tmp_path / "out", CPU)
        assert not (tmp_path / "out").exists()

    def test_unknown_row(self, study, tmp_path):
        with pytest.raises(InputError, match="no row 'axal'; there are 'axial', 'no position'"):
            run_study(study, tmp_path / "out", CPU, only=["axal"])

    @pytest.mark.usefixtures("no_training")
    def test_a_row_that_cannot_work_is_refused_before_any_is_trained(self, study_file, tmp_path):
        changed = tmp_path / "study.toml"
        changed.write_text(study_file.read_text() + '[[row]]\nlabel = "soft"\nset = { "model.sampler" = "soft" }\n')
        study = read_study(str(changed))
        with pytest.raises(InputError, match=r"study, row 'soft': soft sampler: with threshold 0.1, some points of a"):
            run_study(study, tmp_path / "out", CPU)
        run_study(study, tmp_path / "out", CPU, only=[])  # without that row


class TestCommand:
    def test_a_folder_of_ones_own(self, study_file, finished, capsys):
        """Everything is there already, so that only the table is written again."""
        (finished / "table.md").unlink()
        assert main(["ablate", str(study_file), "--device", "cpu", "--out", str(finished)]) == 0
        assert (finished / "table.md").read_text() in capsys.readouterr().out

import json
import shutil
from dataclasses import replace

import pytest
import torch
from helpers.training import tiny_tables, write_benchmark

from transformatcher.cli.main import main
from transformatcher.config import PairSource, to_plain
from transformatcher.errors import InputError
from transformatcher.files import exclusive_lock
from transformatcher.models.build import build_refiner
from transformatcher.training import ablation as ablate
from transformatcher.training.ablation import RESULT, gather, known_studies, read_study, run_study
from transformatcher.training.model import dry_run

ROWS = """
[[row]]
label = "axial"

[[row]]
label = "no position"
set = { "model.match2match.position" = "none" }
"""


def toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


@pytest.fixture
def study_file(tmp_path):
    root = write_benchmark(tmp_path / "PF")
    source = {"benchmark": "pfpascal", "folder": "PF", "split": "val"}
    lines = ['title = "A title"', 'question = "A question?"', "seeds = [0, 1]", f"measure = [{toml(source)}]"]
    for name, table in tiny_tables(root, epochs=1).items():
        lines += [f"[{name}]", *(f"{key} = {toml(value)}" for key, value in table.items())]
    path = tmp_path / "study.toml"
    path.write_text("\n".join(lines) + ROWS)
    return path


def run(study_file, out, **options):
    return run_study(read_study(str(study_file)), out, torch.device("cpu"), **options)


class TestReadStudy:
    @pytest.mark.parametrize("name", known_studies())
    def test_those_that_come_with_the_package(self, name):
        study = read_study(name)
        assert len(study.rows) > 1
        assert study.question
        assert {row.config.train.epochs for row in study.rows} == {6}
        assert len({json.dumps(str(row.config)) for row in study.rows}) == len(study.rows)  # no two rows are alike
        for row in study.rows:
            dry_run(row.config.model, row.label)

    def test_settings_reach_all_rows_and_rows_win(self, study_file):
        study = read_study(
            str(study_file), {"model.match2match.position": "checkerboard", "model.match2match.depth": 2}, [7]
        )
        assert [row.config.model.match2match.position for row in study.rows] == ["checkerboard", "none"]
        assert [row.config.model.match2match.depth for row in study.rows] == [2, 2]
        assert study.seeds == [7]

    def test_settings_of_one_refiner_reach_its_rows_alone(self, study_file):
        study_file.write_text(
            study_file.read_text()
            + '[[row]]\nlabel = "cats"\nset = { "model.refiner" = "cats", "model.match2match" = {} }\n'
        )
        study = read_study(str(study_file), {"model.cats.depth": 3, "model.match2match.dim": 8})
        models = [row.config.model for row in study.rows]
        assert [(model.refiner, model.cats.depth, model.match2match.dim) for model in models] == [
            ("match2match", 1, 8),
            ("match2match", 1, 8),
            ("cats", 3, 16),
        ]
        with pytest.raises(InputError, match=r"--set model\.nc4d\.depth: no row of study has the refiner 'nc4d'"):
            read_study(str(study_file), {"model.nc4d.depth": 3})

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ('label = "axial"', 'name = "axial"', "unknown key 'name'"),
            ("[[row]]", "[[rows]]", "unknown key 'rows'; did you mean 'row'"),
            ('label = "no position"', 'label = "Axial"', "'Axial' and 'axial' have one name as folders, axial"),
            ('label = "no position"', "label = 5", 'row 2: expected label = "…" and set = '),
            ('set = { "model.match2match.position" = "none" }', "set = 5", 'row 2: expected label = "…" and set = '),
            ('title = "A title"', "title = 5", "study.toml: title = 5 is no text"),
            ("seeds = [0, 1]", "seeds = 5", "study.toml: seeds = 5: expected a list of whole numbers"),
            ("seeds = [0, 1]", "seeds = []", "expected a list of whole numbers"),
            ("measure = [", "measure = 5 # [", "no measure = ["),
            ('title = "A title"', "base = 5", "base = 5: expected the name of a .toml file"),
            ('title = "A title"', 'base = "gone.toml"', "gone.toml: no such config file"),
            (
                '"model.match2match.position"',
                '"position"',
                "row 2: unknown key 'position'; did you mean 'model.match2match.position'",
            ),
            ('"model.match2match.position" = "none"', '"model.match2match.position" = "nowhere"', "row 2"),
            ("seeds = [0, 1]", "seeds = [0, -1]", "study.toml: seeds = [0, -1]: expected a list of whole numbers"),
            ("title =", "title ==", "study.toml: "),
        ],
    )
    def test_faults_are_named(self, study_file, old, new, message):
        study_file.write_text(study_file.read_text().replace(old, new))
        with pytest.raises(InputError, match=message.replace("[", r"\[")):
            read_study(str(study_file))

    def test_a_base_of_the_package(self, study_file):
        study_file.write_text('base = "base.toml"\n' + study_file.read_text())
        study = read_study(str(study_file))
        assert study.rows[0].config.train.validate_every == 6  # said there alone
        assert study.rows[0].config.train.epochs == 1

    def test_matchers_are_of_a_size(self):
        sizes = [
            sum(p.numel() for p in build_refiner(row.config.model, 9).parameters())
            for row in read_study("matchers").rows
            if row.config.model.refiner != "none"
            and not row.config.model.match2match.conv_branch_depth  # which is two of them
        ]
        assert len(sizes) == 4
        assert max(sizes) < 2 * min(sizes)

    def test_unknown_name(self):
        with pytest.raises(InputError, match="no such study; there are attention"):
            read_study("postion")


class TestRunStudy:
    def test_table_resume_and_other_settings(self, study_file, tmp_path, monkeypatch):
        out = tmp_path / "out"
        reports = []
        table = run(study_file, out, on_progress=lambda *words: reports.append(words))
        assert [(done, total) for done, total, _ in reports] == [(n, 4) for n in range(5)]
        assert [row["label"] for row in table["rows"]] == ["axial", "no position"]
        cell = table["rows"][0]["PF-val @ 0.1"]
        values = [json.loads((out / f"axial/seed-{s}" / RESULT).read_text())["pck"]["PF-val"]["0.1"] for s in (0, 1)]
        assert cell["mean"] == pytest.approx(sum(values) / 2, abs=0.01)
        assert cell["spread"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5, abs=0.01)
        assert table["rows"][0]["ms_per_pair"] > 0
        assert "| axial | " in (out / "table.md").read_text()
        assert not list(out.rglob("*.safetensors"))

        ran = []
        real = ablate.run_task
        monkeypatch.setattr(ablate, "run_task", lambda task, *rest: (ran.append(task.out.name), real(task, *rest)))
        shutil.rmtree(out / "no-position" / "seed-1")
        run(study_file, out)
        assert ran == ["seed-1"]  # the one that was missing, and no other

        study_file.write_text(study_file.read_text().replace("depth = 1", "depth = 2"))
        with pytest.raises(InputError, match=r"was run with model.match2match.depth = 1, this study says 2"):
            run(study_file, out)

    def test_a_killed_run_starts_again(self, study_file, tmp_path):
        folder = tmp_path / "out" / "axial" / "seed-0"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text("{")  # killed before its first checkpoint
        study = read_study(str(study_file), seeds=[0])
        table = run_study(study, tmp_path / "out", torch.device("cpu"), only=["axial"], keep_weights=True)
        assert [row["seeds"] for row in table["rows"]] == [1]
        assert (folder / "best" / "model.safetensors").is_file()
        assert not (folder / "last.safetensors").exists()
        assert table == gather(study, tmp_path / "out")

    def test_a_run_of_another_study_serves_again(self, study_file, tmp_path, monkeypatch):
        run(study_file, tmp_path / "runs" / "first", only=["axial"])
        monkeypatch.setattr(ablate, "run_task", pytest.fail)
        table = run(study_file, tmp_path / "runs" / "second", only=["axial"])
        assert table["rows"][0]["seeds"] == 2
        monkeypatch.setattr(ablate, "run_task", lambda *_: pytest.exit("it was run"))  # other settings: not the same
        study = read_study(str(study_file), {"train.lr": 0.5})
        with pytest.raises(pytest.exit.Exception):
            run_study(study, tmp_path / "runs" / "third", torch.device("cpu"), only=["axial"])

    def test_what_is_not_the_same_is_not_taken_for_it(self, study_file, tmp_path, monkeypatch):
        """Rows that differ in their first weights, sets of another size, seeds with other settings."""
        out = tmp_path / "runs" / "first"
        run(study_file, out, only=["axial"])
        result = json.loads((out / "axial" / "seed-0" / RESULT).read_text())
        assert result["measured"] == [to_plain(PairSource("pfpascal", "PF", "val"))]
        (tmp_path / "runs" / "other" / "x" / "seed-0").mkdir(parents=True)
        (tmp_path / "runs" / "other" / "x" / "seed-0" / RESULT).write_text("{}")  # no matter whose
        monkeypatch.setattr(ablate, "run_task", lambda *_: pytest.exit("it was run"))
        monkeypatch.setattr(ablate, "init_model", lambda *_: None)
        weights = read_study(str(study_file), {"train.backbone_weights": "other.safetensors"})
        study = read_study(str(study_file))
        fewer = replace(study, measure=[replace(item, limit=1) for item in study.measure])
        for other in (weights, fewer):
            with pytest.raises(pytest.exit.Exception):
                run_study(other, tmp_path / "runs" / "second", torch.device("cpu"), only=["axial"])
            (out / "axial" / "seed-3").mkdir(exist_ok=True)
            (out / "axial" / "seed-3" / RESULT).write_text("[]")
            with pytest.raises(InputError, match=r"seed-3.*: not what ablate writes now"):
                run_study(study, out, torch.device("cpu"), only=["axial"])
            shutil.rmtree(out / "axial" / "seed-3")
            with pytest.raises(InputError, match=r"was run with (train\.backbone_weights|measure) = .*another --out"):
                run_study(replace(other, seeds=[7]), out, torch.device("cpu"), only=["axial"])

    def test_a_run_that_was_interrupted_goes_on(self, study_file, tmp_path, monkeypatch):
        task = ablate.Task(read_study(str(study_file)).rows[0], 0, tmp_path / "out" / "axial" / "seed-0")
        task.out.mkdir(parents=True)
        (task.out / "last.safetensors").touch()
        seen = []
        monkeypatch.setattr(ablate, "train", lambda *_, **options: seen.append(options["resume"]) or pytest.exit("…"))
        with pytest.raises(pytest.exit.Exception):
            ablate.run_task(task, [], torch.device("cpu"), keep_weights=False)
        assert seen == [True]
        (task.out / "last.safetensors").unlink()
        with exclusive_lock(task.out), pytest.raises(InputError, match="another process is writing there"):
            ablate.run_task(task, [], torch.device("cpu"), keep_weights=False)

    def test_inputs_that_are_not_there(self, study_file, tmp_path, monkeypatch):
        monkeypatch.setattr(ablate, "run_task", pytest.fail)
        study = read_study(str(study_file))
        gone = replace(study, measure=[replace(study.measure[0], folder="gone")])
        with pytest.raises(InputError, match="gone"):
            run_study(gone, tmp_path / "out", torch.device("cpu"))
        with pytest.raises(InputError, match=r"nowhere\.safetensors: no such"):
            run_study(
                read_study(str(study_file), {"train.backbone_weights": "nowhere.safetensors"}),
                tmp_path / "out", torch.device("cpu"),
            )  # fmt: skip
        assert not (tmp_path / "out").exists()

    def test_unknown_row(self, study_file, tmp_path):
        with pytest.raises(InputError, match="no row 'axal'; there are 'axial', 'no position'"):
            run(study_file, tmp_path / "out", only=["axal"])

    def test_a_row_that_cannot_work_is_refused_before_any_is_trained(self, study_file, tmp_path, monkeypatch):
        study_file.write_text(study_file.read_text() + '[[row]]\nlabel = "soft"\nset = { "model.sampler" = "soft" }\n')
        monkeypatch.setattr(ablate, "run_task", pytest.fail)
        with pytest.raises(InputError, match=r"study, row 'soft': soft sampler: threshold 0.1 leaves points of a"):
            run(study_file, tmp_path / "out")
        run(study_file, tmp_path / "out", only=[])  # which is not one of them

    def test_from_the_command_line(self, study_file, tmp_path, capsys, monkeypatch):
        out, other = tmp_path / "out", study_file.with_name("other.toml")
        other.write_text(study_file.read_text())
        command = ["ablate", str(study_file), "--seeds", "0", "--device", "cpu", "--only", "axial"]
        assert main([*command, "--out", str(out)]) == 0
        printed = capsys.readouterr().out
        assert "A question?" in printed
        assert "± their deviation @ 0.1" in printed
        assert (
            json.loads((out / "ablation.json").read_text())["command"]
            == f"transformatcher ablate {study_file} --seeds 0"
        )
        assert (out / "plot.png").stat().st_size > 1000
        assert main(["ablate", "postion"]) == 2
        assert main([*command[:2], str(other), "--out", str(out)]) == 2
        assert f"--out {out}: is for one study, not 2" in capsys.readouterr().err
        monkeypatch.chdir(tmp_path)
        assert main([*command[:2], str(other), *command[2:]]) == 0
        assert [path.parent.name for path in sorted((tmp_path / "runs").glob("*/plot.png"))] == [
            "ablate-other",
            "ablate-study",
        ]

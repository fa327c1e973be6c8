"""Study files are read with all their rows checked."""

import json
from dataclasses import replace

import pytest
from helpers.training import write_study

from transformatcher.errors import InputError
from transformatcher.models.build import build_refiner
from transformatcher.training.model import dry_run
from transformatcher.training.study import known_studies, read_study


@pytest.fixture
def study_file(tmp_path):
    return write_study(tmp_path)


@pytest.mark.parametrize("name", known_studies())
def test_studies_of_the_package(name):
    study = read_study(name)
    assert len(study.rows) > 1
    assert study.question
    paper = name.startswith("paper-")
    assert {row.config.train.epochs for row in study.rows} == {10 if paper else 6}
    assert len({json.dumps(str(row.config)) for row in study.rows}) == len(study.rows)  # no two rows are equal
    for row in study.rows:
        model = row.config.model
        one_block = replace(model, match2match=replace(model.match2match, depth=1))  # all blocks have the same shapes
        dry_run(one_block, row.label)


def test_settings_reach_all_rows_and_rows_win(study_file):
    study = read_study(
        str(study_file), {"model.match2match.position": "checkerboard", "model.match2match.depth": 2}, [7]
    )
    assert [row.config.model.match2match.position for row in study.rows] == ["checkerboard", "none"]
    assert [row.config.model.match2match.depth for row in study.rows] == [2, 2]
    assert study.seeds == [7]


def test_settings_of_one_refiner_reach_its_rows_alone(study_file):
    row = '[[row]]\nlabel = "cats"\nset = { "model.refiner" = "cats", "model.match2match" = {} }\n'
    study_file.write_text(study_file.read_text() + row)
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
        ('label = "no position"', 'label = "Axial"', "'Axial' and 'axial' have the same folder, axial"),
        ('label = "no position"', "label = 5", 'row 2: expected label = "…" and set = '),
        ('set = { "model.match2match.position" = "none" }', "set = 5", 'row 2: expected label = "…" and set = '),
        ('title = "A title"', "title = 5", "study.toml: title = 5 is not text"),
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
def test_errors_name_the_file_and_the_key(study_file, old, new, message):
    study_file.write_text(study_file.read_text().replace(old, new))
    with pytest.raises(InputError, match=message.replace("[", r"\[")):
        read_study(str(study_file))


def test_a_base_of_the_package(study_file):
    study_file.write_text('base = "base.toml"\n' + study_file.read_text())
    study = read_study(str(study_file))
    assert study.rows[0].config.train.validate_every == 6  # only the base sets it
    assert study.rows[0].config.train.epochs == 1


def test_refiners_are_of_a_size():
    sizes = [
        sum(p.numel() for p in build_refiner(row.config.model, 9).parameters())
        for row in read_study("refiners").rows
        if row.config.model.refiner != "none"
        and not row.config.model.match2match.conv_branch_depth  # which is two of them
    ]
    assert len(sizes) == 4
    assert max(sizes) < 2 * min(sizes)


def test_unknown_name():
    with pytest.raises(InputError, match="no such study; there are attention"):
        read_study("postion")

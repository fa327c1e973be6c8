from pathlib import Path

import pytest

from transformatcher.config import (
    merged,
    model_config,
    nested,
    parse_overrides,
    read_model_config,
    read_run_config,
)
from transformatcher.errors import InputError

RUN_TOML = """
[model]
grid = 15

[model.match2match]
depth = 3

[data]
train = [{ benchmark = "pfpascal", folder = "PF-PASCAL" }]
validate = [{ benchmark = "pfpascal", folder = "PF-PASCAL", split = "val", limit = 5 }]

[train]
epochs = 2
"""


def test_toml_file(tmp_path: Path):
    path = tmp_path / "c.toml"
    path.write_text('[model]\nvariant = "released"\n\n[model.match2match]\ndepth = 3\n')
    assert read_model_config(path).match2match.depth == 3
    path.write_text("[modle]\n")
    with pytest.raises(InputError, match=r"c\.toml: unknown key 'modle'; did you mean 'model'"):
        read_model_config(path)
    path.write_text("model = 3")
    with pytest.raises(InputError, match="expected a table of keys, found int"):
        read_model_config(path)
    path.write_text("depth =")
    with pytest.raises(InputError, match="not valid toml"):
        read_model_config(path)
    with pytest.raises(InputError, match="no such config file"):
        read_model_config(tmp_path / "nowhere.toml")


def test_overrides():
    settings = ["match2match.depth=4", "grid=[15, 20]", "match2match.position=none", "kernel_sigma = 2.5"]
    assert parse_overrides(settings) == {
        "match2match.depth": 4,
        "grid": [15, 20],
        "match2match.position": "none",
        "kernel_sigma": 2.5,
    }
    assert model_config(parse_overrides(settings)).match2match.position == "none"
    with pytest.raises(InputError, match="expected key=value"):
        parse_overrides(["grid"])


def test_dotted_keys_are_paths():
    values = {"train": {"lr": 1}, "model.match2match.depth": 2, "model.grid": 3, "train.lr": 4}
    assert nested(values, "here") == {"train": {"lr": 4}, "model": {"match2match": {"depth": 2}, "grid": 3}}
    assert values["train"] == {"lr": 1}  # unchanged
    assert merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 4}, "d": {"e": 5}}) == {
        "a": {"b": 1, "c": 4},
        "d": {"e": 5},
    }


def test_settings_change_the_file(tmp_path: Path):
    path = tmp_path / "run.toml"
    path.write_text(RUN_TOML)
    config = read_run_config(path)
    assert (config.model.match2match.depth, config.train.epochs, config.data.validate[0].limit) == (3, 2, 5)
    settings = ["model.match2match.depth=4", "train.lr=2e-4", "data.image_cache=disk"]
    changed = read_run_config(path, [*settings, 'data.train=[{benchmark="spair", folder="S"}]'])
    assert (changed.model.match2match.depth, changed.train.lr, changed.data.image_cache) == (4, 2e-4, "disk")
    assert (changed.model.grid, changed.train.epochs) == ((15, 15), 2)
    assert changed.data.train[0].benchmark == "spair"
    path.write_text(RUN_TOML.split("[train]")[0])  # a table may come from settings alone
    assert read_run_config(path, ["train.epochs=7"]).train.epochs == 7
    assert read_model_config(path).match2match.depth == 3


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("epochs=3", r"--set: unknown key 'epochs'; did you mean 'train.epochs'"),
        ("depth=3", r"--set: unknown key 'depth'; did you mean 'model.match2match.depth'"),
        ("model.depth=3", r"--set: unknown key 'model.depth'; did you mean 'model.match2match.depth'"),
        ("trian.epochs=3", r"--set: unknown key 'trian'; did you mean 'train'"),
        ("train.epoch=3", r"--set: unknown key 'train.epoch'; did you mean 'train.epochs'"),
        ("train.epochs=0", r"--set: train\.epochs = 0: must be between 1 and"),
        ("data.train=[]", r"--set: data\.train = \[\]: name at least one source"),
        ("train.epochs", "--set 'train.epochs': expected key=value"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, setting, message):
    path = tmp_path / "run.toml"
    path.write_text(RUN_TOML)
    with pytest.raises(InputError, match=message):
        read_run_config(path, [setting])


def test_bad_files_are_named(tmp_path: Path):
    path = tmp_path / "run.toml"
    with pytest.raises(InputError, match=r"run\.toml: no such config file"):
        read_run_config(path)
    path.write_text("train = 3")
    with pytest.raises(InputError, match=r"run\.toml: train\.epochs: train = 3 is not a table of keys"):
        read_run_config(path, ["train.epochs=3"])

import json
from pathlib import Path

import pytest

from transformatcher.config import (
    ModelConfig,
    SourceConfig,
    model_config,
    parse_overrides,
    read_model_config,
    read_run_config,
    run_config,
    to_plain,
)
from transformatcher.errors import InputError


def test_paper_is_the_default():
    assert model_config() == ModelConfig()
    assert (model_config().attention, model_config().position) == ("paper", "axial")


def test_a_variant_sets_what_it_must_and_given_keys_win():
    config = model_config({"variant": "released", "position": "none", "depth": 2})
    assert (config.attention, config.position, config.depth) == ("released", "none", 2)


def test_round_trip_through_plain_data():
    config = model_config({"variant": "released", "grid": [15, 20], "sigma": 7})
    assert config.grid == (15, 20)
    assert config.sigma == 7.0
    assert model_config(json.loads(json.dumps(to_plain(config)))) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"detph": 3}, "unknown key 'detph'; did you mean 'depth'"),
        ({"zzz": 3}, "unknown key 'zzz'; valid keys: variant"),
        ({"variant": "papre"}, "variant 'papre' is none of paper, released, raw"),
        ({"depth": "six"}, r"depth = 'six': expected int"),
        ({"sigma": "wide"}, r"sigma = 'wide': expected float"),
        ({"attention": "vanila"}, r"attention = 'vanila': expected one of paper, released, .*did you mean 'vanilla'"),
        ({"matcher": "nc4"}, r"matcher = 'nc4': expected one of match2match, nc4d, cats, none; did you mean 'nc4d'"),
        ({"matcher": ["nc4d"]}, r"matcher = \['nc4d'\]: expected one of"),
        ({"matcher": "nc4d", "depth": 0}, "depth = 0: nc4d needs at least 1"),
        ({"consensus": -1}, "consensus = -1: must not be negative"),
        ({"matcher": "cats", "consensus": 3}, "consensus = 3: stands beside match2match alone"),
        ({"position": "absolut"}, "did you mean 'absolute'"),
        ({"chanels": "mean"}, "unknown key 'chanels'; did you mean 'channels'"),
        ({"channels": "sum"}, "expected one of multi, concat, mean"),
        ({"layers": "some"}, r"layers = 'some': expected tuple\[int, ...\] or one of all, every-other"),
        ({"layers": []}, r"layers = \(\): choose some, numbered from 0"),
        ({"layers": [-1, 2]}, r"layers = \(-1, 2\): choose some, numbered from 0"),
        ({"layers": [2, 1]}, r"layers = \(2, 1\): list each layer once, in rising order"),
        ({"conv_kernel": 4}, "conv_kernel = 4: must be odd"),
        ({"mutual": 1}, "mutual = 1: expected bool"),
        ({"linformer_rank": 0}, "linformer_rank = 0: must be at least 1"),
        ({"temperature": 0}, r"temperature = 0\.0: must be positive"),
        ({"stages": [4, 3]}, "rising order"),
        ({"stages": []}, "choose some of"),
        ({"image_size": [8, 240]}, "at least 32"),
        ({"grid": [1, 15]}, "at least 2 cells"),
        ({"heads": 0}, "at least 1"),
        ({"depth": True}, "depth = True: expected int"),
        ({"sigma": float("inf")}, "positive and finite"),
        ({"raw_gain": -1}, r"raw_gain = -1\.0: must not be negative"),
        ({"grid": "wide"}, "grid = 'wide': expected"),
    ],
)
def test_bad_values_are_named(values, message):
    with pytest.raises(InputError, match=message):
        model_config(values)


def test_one_number_stands_for_a_square():
    config = model_config({"image_size": 480, "grid": 30, "stages": 3})
    assert (config.image_size, config.grid, config.stages) == ((480, 480), (30, 30), (3,))


def test_layers_are_a_word_or_numbers():
    assert model_config({"layers": "every-other"}).layers == "every-other"
    assert model_config({"layers": [0, 2]}).layers == (0, 2)
    assert model_config({"layers": 3}).layers == (3,)
    config = model_config({"layers": [0, 2]})
    assert model_config(json.loads(json.dumps(to_plain(config)))) == config


def test_another_matcher_brings_its_size_and_given_keys_win():
    assert model_config({"matcher": "nc4d"}).depth == 3
    config = model_config({"matcher": "cats", "depth": 2})
    assert (config.dim, config.depth) == (32, 2)
    assert model_config(to_plain(config)) == config


def test_toml_file(tmp_path: Path):
    path = tmp_path / "c.toml"
    path.write_text('[model]\nvariant = "released"\ndepth = 3\n')
    assert read_model_config(path).depth == 3
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
    assert parse_overrides(["depth=4", "grid=[15, 20]", "position=none", "sigma = 2.5"]) == {
        "depth": 4,
        "grid": [15, 20],
        "position": "none",
        "sigma": 2.5,
    }
    with pytest.raises(InputError, match="expected key=value"):
        parse_overrides(["depth"])


PASCAL = {"benchmark": "pfpascal", "folder": "PF-PASCAL"}
COCO = {"benchmark": "coco", "folder": "animals"}
RUN_TOML = """
[model]
depth = 3

[data]
train = [{ benchmark = "pfpascal", folder = "PF-PASCAL" }]
validate = [{ benchmark = "pfpascal", folder = "PF-PASCAL", split = "val", limit = 5 }]

[train]
epochs = 2
"""


def tables(**changes):
    """The smallest run, with some keys of its [data] and [train] changed."""
    data = {"train": [PASCAL], "validate": [PASCAL]}
    return {
        "data": data | {key[5:]: value for key, value in changes.items() if key.startswith("data_")},
        "train": {key[6:]: value for key, value in changes.items() if key.startswith("train_")},
        **{key: value for key, value in changes.items() if "_" not in key},
    }


class TestRun:
    def test_defaults_are_the_papers_recipe(self):
        config = run_config(tables())
        assert config.model == ModelConfig()
        assert config.data.train == (SourceConfig("pfpascal", "PF-PASCAL", split="trn"),)
        assert (config.train.lr, config.train.lr_backbone, config.train.batch) == (1e-3, 1e-5, 16)
        assert (config.train.regression, config.train.cross_entropy) == (1.0, 0.0)
        assert config.data.pairs_per_epoch is None

    def test_round_trip_through_plain_data(self):
        changes = {"data_train": [COCO | {"share": 2}, PASCAL], "data_pairs_per_epoch": 10, "train_clip": 1}
        config = run_config(tables(model={"variant": "released", "grid": 15}, **changes))
        assert config.train.clip == 1.0
        assert [item.share for item in config.data.train] == [2.0, 1.0]
        assert run_config(json.loads(json.dumps(to_plain(config)))) == config

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"trian": {}}, "here: unknown key 'trian'; did you mean 'train'"),
            ({"model": 3}, "here: model is not a table of keys"),
            ({"model": {"detph": 3}}, r"here, \[model\]: unknown key 'detph'; did you mean 'depth'"),
            ({"data_collor": 1}, r"here, \[data\]: unknown key 'collor'; did you mean 'colour'"),
            ({"train_epoch": 1}, r"here, \[train\]: unknown key 'epoch'; did you mean 'epochs'"),
            (
                {"data_train": [PASCAL | {"splt": "val"}]},
                r"here, data\.train: unknown key 'splt'; did you mean 'split'",
            ),
            ({"data_train": [{"benchmark": "coco"}]}, r'here, data\.train: missing value for field "folder"'),
            (
                {"data_train": [PASCAL | {"benchmark": "cub"}]},
                r"here, data\.train: benchmark = 'cub': expected one of spair, pfpascal, pfwillow, coco",
            ),
            ({"data_validate": "val"}, r"here: data\.validate must be a list of \{benchmark = …, folder = …\}"),
            ({"data_train": ["x"]}, r"here: data\.train must be a list of"),
            ({"data_validate": []}, r"here: data\.validate = \(\): name at least one source"),
            ({"data_validate": [PASCAL | {"limit": 0}]}, r"here: data\.validate = .*limit is at least 1"),
            ({"data_leave_out": [PASCAL | {"limit": 9}]}, r"here: data\.leave_out = .*and split, and nothing else"),
            ({"data_leave_out": "test"}, r"here: data\.leave_out must be a list of"),
            ({"data_train": [PASCAL | {"share": 0}]}, r"here: data\.train = .*shares must be positive"),
            ({"data_flip": 1.5}, r"here: data\.flip = 1\.5: must lie between 0 and 1"),
            ({"data_min_overlap": float("nan")}, r"here: data\.min_overlap = nan: must lie between 0 and 1"),
            ({"data_canvas": 0}, r"here: data\.canvas = 0: must be at least 1"),
            ({"data_keep": "ram"}, r"here, \[data\]: keep = 'ram': expected one of auto, device, host, disk"),
            ({"data_pairs_per_epoch": 0}, r"here: data\.pairs_per_epoch = 0: must be at least 1"),
            ({"data_train": [COCO]}, r"here: data\.pairs_per_epoch = None: .* coco .* is endless: say it"),
            ({"train_batch": 0}, r"here: train\.batch = 0: must be at least 1"),
            ({"train_batch": 2.5}, r"here, \[train\]: batch = 2\.5: expected int"),
            ({"train_lr": 0}, r"here: train\.lr = 0\.0: must be positive"),
            ({"train_lr": "fast"}, r"here, \[train\]: lr = 'fast': expected float"),
            ({"train_seed": -1}, r"here: train\.seed = -1: must not be negative"),
            ({"train_lr_backbone": -1}, r"here: train\.lr_backbone = -1\.0: must not be negative"),
            ({"train_clip": -1}, r"here: train\.clip = -1\.0: must not be negative"),
            ({"train_average": 1}, r"here: train\.average = 1\.0: must lie between 0 and 1"),
            ({"train_regression": 0}, r"here: train\.regression = 0\.0: without cross_entropy it must be positive"),
            ({"train_start": "a", "train_backbone_weights": "b"}, r"train\.start = 'a': .* drop backbone_weights"),
            ({"model": {"variant": "raw"}, "train_lr_backbone": 0}, r"train\.lr_backbone = 0\.0: nothing else could"),
        ],
    )
    def test_bad_values_are_named(self, changes, message):
        with pytest.raises(InputError, match=message):
            run_config(tables(**changes), source="here")

    def test_a_run_needs_data(self):
        with pytest.raises(InputError, match=r"no \[data\] table; it says which pairs"):
            run_config({"train": {}})

    def test_settings_change_the_file(self, tmp_path: Path):
        path = tmp_path / "run.toml"
        path.write_text(RUN_TOML)
        config = read_run_config(path)
        assert (config.model.depth, config.train.epochs, config.data.validate[0].limit) == (3, 2, 5)
        settings = ["model.depth=4", "train.lr=2e-4", "data.keep=disk", 'data.train=[{benchmark="spair", folder="S"}]']
        changed = read_run_config(path, settings)
        assert (changed.model.depth, changed.train.lr, changed.data.keep) == (4, 2e-4, "disk")
        assert (changed.train.epochs, changed.data.train[0].benchmark) == (2, "spair")
        path.write_text(RUN_TOML.split("[train]")[0])  # a table may come from settings alone
        assert read_run_config(path, ["train.epochs=7"]).train.epochs == 7
        assert read_model_config(path).depth == 3

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ("epochs=3", r"--set epochs: name the table too: model\.epochs, data\.epochs or train\.epochs"),
            ("trian.epochs=3", r"--set trian\.epochs: unknown key 'trian'; did you mean 'train'"),
            ("train.epoch=3", r"run\.toml, \[train\]: unknown key 'epoch'; did you mean 'epochs'"),
            ("train.epochs=0", r"run\.toml: train\.epochs = 0: must be at least 1"),
            ("train.epochs", "--set 'train.epochs': expected key=value"),
        ],
    )
    def test_bad_settings_are_named(self, tmp_path: Path, setting, message):
        path = tmp_path / "run.toml"
        path.write_text(RUN_TOML)
        with pytest.raises(InputError, match=message):
            read_run_config(path, [setting])

    def test_bad_files_are_named(self, tmp_path: Path):
        path = tmp_path / "run.toml"
        with pytest.raises(InputError, match=r"run\.toml: no such config file"):
            read_run_config(path)
        path.write_text("train = 3")
        with pytest.raises(InputError, match=r"run\.toml: train is not a table of keys"):
            read_run_config(path, ["train.epochs=3"])

    @pytest.mark.parametrize(
        "path", sorted((Path(__file__).parents[1] / "configs").glob("*.toml")), ids=lambda p: p.stem
    )
    def test_the_configs_that_ship(self, path: Path):
        assert read_run_config(path).train.backbone_weights

import json
import pickle
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from transformatcher.config import (
    ModelConfig,
    PairSource,
    merged,
    model_config,
    nested,
    parse_overrides,
    read_model_config,
    read_run_config,
    run_config,
    to_plain,
)
from transformatcher.errors import InputError


def test_paper_is_the_default():
    assert model_config() == ModelConfig()
    assert (model_config().match2match.attention, model_config().match2match.position) == ("paper", "axial")


def test_a_variant_sets_what_it_must_and_given_keys_win():
    config = model_config({"variant": "released", "match2match": {"position": "none", "depth": 2}})
    blocks = config.match2match
    assert (config.correlation, blocks.attention, blocks.position, blocks.depth) == (
        "resize-features",
        "released",
        "none",
        2,
    )


def test_round_trip_through_plain_data():
    config = model_config({"variant": "released", "grid": [15, 20], "kernel_sigma": 7})
    assert config.grid == (15, 20)
    assert isinstance(config.kernel_sigma, float)
    assert model_config(json.loads(json.dumps(to_plain(config)))) == config


def test_configs_are_values():
    config, other = model_config({"grid": 15}), model_config({"grid": 16})
    assert len({config, model_config({"grid": 15}), other}) == 2
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 (made here)
    assert replace(config, grid=(16, 16)) == other
    with pytest.raises(FrozenInstanceError):
        config.grid = (1, 1)
    with pytest.raises(ValueError, match="upsample"):
        replace(config, upsample=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"detph": 3}, "unknown key 'detph'; did you mean 'match2match.depth'"),
        ({"depth": 3}, "unknown key 'depth'; did you mean 'match2match.depth'"),
        ({"refiner": "nc4d", "depth": 3}, "unknown key 'depth'; did you mean 'nc4d.depth'"),
        ({"match2match.detph": 3}, "unknown key 'match2match.detph'; did you mean 'match2match.depth'"),
        ({"sampler_treshold": 3}, "unknown key 'sampler_treshold'; did you mean 'sampler_threshold'"),
        ({"zzz": 3}, "unknown key 'zzz'; valid keys: variant"),
        ({"variant": "papre"}, "variant = 'papre': expected one of paper, released, raw; did you mean 'paper'"),
        ({"variant": ["paper"]}, r"variant = \['paper'\]: expected one of"),
        ({"match2match": {"depth": "six"}}, "match2match.depth = 'six': expected a whole number"),
        ({"match2match.depth": True}, "match2match.depth = True: expected a whole number"),
        ({"match2match.depth": 2.0}, "match2match.depth = 2.0: expected a whole number"),
        ({"match2match.depth": 65}, "match2match.depth = 65: must be between 0 and 64"),
        ({"match2match.heads": 0}, "match2match.heads = 0: must be between 1 and 64"),
        ({"match2match.depth.x": 1}, r"match2match.depth = {'x': 1}: expected a whole number"),
        ({"match2match": 3}, "match2match = 3: expected a table of keys"),
        ({"match2match": 3, "match2match.depth": 3}, "match2match.depth: match2match = 3 is not a table of keys"),
        ({"match2match.conv_branch_kernel": 4}, "match2match.conv_branch_kernel = 4: must be odd"),
        ({"match2match.conv_branch_mutual_filter": 1}, "conv_branch_mutual_filter = 1: expected true or false"),
        ({"match2match.conv_branch_depth": -1}, "match2match.conv_branch_depth = -1: must be between 0 and 16"),
        ({"match2match.linformer_rank": 0}, "linformer_rank = 0: must be between 1 and 4,096"),
        ({"match2match.position": "absolut"}, "did you mean 'absolute'"),
        (
            {"match2match.attention": "vanila"},
            r"match2match.attention = 'vanila': expected one of paper, released, .*did you mean 'vanilla'",
        ),
        ({"refiner": "nc4"}, r"refiner = 'nc4': expected one of match2match, nc4d, cats, none; did you mean 'nc4d'"),
        ({"refiner": ["nc4d"]}, r"refiner = \['nc4d'\]: expected one of"),
        ({"refiner": "nc4d", "nc4d.depth": 0}, "nc4d.depth = 0: must be between 1 and 16"),
        ({"refiner": "nc4d", "nc4d.kernel": 2}, "nc4d.kernel = 2: must be odd"),
        (
            {"refiner": "cats", "match2match": {"depth": 6}},
            "match2match.depth = 6: is for refiner = 'match2match', and the refiner here is 'cats'",
        ),
        ({"nc4d.dim": 16}, "nc4d.dim = 16: is for refiner = 'nc4d', and the refiner here is 'match2match'"),
        ({"variant": "raw", "cats.dim": 9}, "cats.dim = 9: is for refiner = 'cats', and the refiner here is 'none'"),
        ({"layer_fuson": "mean"}, "unknown key 'layer_fuson'; did you mean 'layer_fusion'"),
        ({"layer_fusion": "sum"}, "expected one of multi, concat, mean"),
        ({"layers": "some"}, "layers = 'some': expected a list of whole numbers or one of all, every-other"),
        ({"layers": []}, r"layers = \[\]: choose one or more"),
        ({"layers": [-1, 2]}, r"layers = \[-1, 2\]: each must be between 0 and 1,000"),
        ({"layers": [2, 1]}, r"layers = \[2, 1\]: choose one or more, each once, in rising order"),
        ({"stages": [4, 3]}, r"stages = \[4, 3\]: choose one or more of 1, 2, 3, 4, in rising order"),
        ({"stages": []}, r"stages = \[\]: choose one or more"),
        ({"stages": [5]}, r"stages = \[5\]: each must be between 1 and 4"),
        ({"image_size": [8, 240]}, r"image_size = \[8, 240\]: each must be between 32 and 4,096"),
        ({"image_size": 100_000}, "image_size = 100000: must be between 32 and 4,096"),
        ({"image_size": True}, "image_size = True: expected 2 whole numbers"),
        ({"grid": [1, 15]}, r"grid = \[1, 15\]: each must be between 2 and 128"),
        ({"grid": "wide"}, "grid = 'wide': expected 2 whole numbers"),
        ({"grid": [1, 2, 3]}, r"grid = \[1, 2, 3\]: expected 2 whole numbers"),
        ({"temperature": 0}, "temperature = 0: must be above 0 and at most 10,000"),
        ({"kernel_sigma": "wide"}, "kernel_sigma = 'wide': expected a number"),
        ({"kernel_sigma": float("inf")}, "kernel_sigma = inf: must be above 0 and at most 10,000"),
        ({"kernel_sigma": 10**400}, "kernel_sigma = 10{99}…: must be above 0 and at most 10,000"),
        ({"kernel_sigma": 10**5000}, "kernel_sigma = a very long int: must be above 0"),
        ({"correlation_skip": -1}, "correlation_skip = -1: must be between 0 and 10,000"),
        ({"refiner_scale": 0}, r"refiner_scale = 0\.0: must be above 0 if correlation_skip is 0"),
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


def test_each_refiner_has_a_table_of_its_own():
    assert model_config({"refiner": "nc4d"}).nc4d.depth == 3
    config = model_config({"variant": "released", "refiner": "cats", "cats": {"depth": 2}})
    assert (config.cats.dim, config.cats.depth) == (32, 2)
    assert {"match2match", "nc4d", "cats"} & set(to_plain(config)) == {"cats"}  # the others have no effect
    assert model_config(to_plain(config)) == config
    assert model_config({"match2match.depth": 2, "refiner": "cats", "match2match": {}}) == model_config(
        {"refiner": "cats"}
    )  # an emptied table gives nothing


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


PASCAL = {"benchmark": "pfpascal", "folder": "PF-PASCAL"}
COCO = {"benchmark": "coco", "folder": "animals"}
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
        assert config.data.train == (PairSource("pfpascal", "PF-PASCAL", split="trn"),)
        assert (config.train.lr, config.train.lr_backbone, config.train.batch_size) == (1e-3, 1e-5, 16)
        assert (config.train.w_regression, config.train.w_cross_entropy) == (1.0, 0.0)
        assert config.data.pairs_per_epoch is None

    def test_round_trip_through_plain_data(self):
        changes = {"data_train": [COCO | {"weight": 2}, PASCAL], "data_pairs_per_epoch": 10, "train_max_grad_norm": 1}
        config = run_config(tables(model={"variant": "released", "grid": 15}, **changes))
        assert config.train.max_grad_norm == 1.0
        assert [item.weight for item in config.data.train] == [2.0, 1.0]
        assert run_config(json.loads(json.dumps(to_plain(config)))) == config

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"trian": {}}, "here: unknown key 'trian'; did you mean 'train'"),
            ({"model": 3}, "here: model = 3: expected a table of keys"),
            ({"model": {"detph": 3}}, "here: unknown key 'model.detph'; did you mean 'model.match2match.depth'"),
            ({"model": {"epochs": 3}}, "here: unknown key 'model.epochs'; did you mean 'train.epochs'"),
            (
                {"model": {"refiner": "nc4d", "match2match": {"depth": 3}}},
                "here: model.match2match.depth = 3: is for model.refiner = 'match2match', and the refiner",
            ),
            ({"data_p_collor": 1}, "here: unknown key 'data.p_collor'; did you mean 'data.p_color'"),
            ({"train_epoch": 1}, "here: unknown key 'train.epoch'; did you mean 'train.epochs'"),
            (
                {"data_train": [PASCAL | {"splt": "val"}]},
                r"here: unknown key 'data.train\[0\].splt'; did you mean 'data.train\[0\].split'",
            ),
            ({"data_train": [PASCAL, {"benchmark": "coco"}]}, r"here: data\.train\[1\]\.folder must be given"),
            (
                {"data_train": [PASCAL | {"benchmark": "cub"}]},
                r"here: data\.train\[0\]\.benchmark = 'cub': expected one of spair, pfpascal, pfwillow, coco",
            ),
            ({"data_validate": "val"}, r"here: data\.validate = 'val': expected a list of tables of keys"),
            ({"data_train": ["x"]}, r"here: data\.train\[0\] = 'x': expected a table of keys"),
            ({"data_validate": []}, r"here: data\.validate = \[\]: name at least one source"),
            (
                {"data_validate": [PASCAL | {"limit": 0}]},
                r"here: data\.validate\[0\]\.limit = 0: must be between 1 and",
            ),
            (
                {"data_exclude_images_of": [PASCAL | {"self_pairs": True}]},
                r"here: unknown key 'data.exclude_images_of\[0\].self_pairs'; valid keys: benchmark, folder, split",
            ),
            ({"data_exclude_images_of": "test"}, r"here: data\.exclude_images_of = 'test': expected a list of"),
            ({"data_train": [PASCAL | {"weight": 0}]}, r"here: data\.train\[0\]\.weight = 0: must be above 0"),
            ({"data_p_flip": 1.5}, r"here: data\.p_flip = 1\.5: must be between 0 and 1"),
            ({"data_min_overlap": float("nan")}, r"here: data\.min_overlap = nan: must be between 0 and 1"),
            ({"data_cache_size": 0}, r"here: data\.cache_size = 0: must be between 8 and 4,096"),
            ({"data_image_cache": "ram"}, r"here: data\.image_cache = 'ram': expected one of auto, device, host, disk"),
            ({"data_pairs_per_epoch": 0}, r"here: data\.pairs_per_epoch = 0: must be between 1 and"),
            ({"data_train": [COCO]}, r"here: data\.pairs_per_epoch: must be given, because a source with coco"),
            ({"data_workers": 100_000}, r"here: data\.workers = 100000: must be between 0 and 256"),
            ({"train_batch_size": 0}, r"here: train\.batch_size = 0: must be between 1 and 65,536"),
            ({"train_batch_size": 2.5}, r"here: train\.batch_size = 2\.5: expected a whole number"),
            ({"train_lr": 0}, r"here: train\.lr = 0: must be above 0 and at most 10"),
            ({"train_lr": "fast"}, r"here: train\.lr = 'fast': expected a number"),
            ({"train_lr": True}, r"here: train\.lr = True: expected a number"),
            ({"train_seed": -1}, r"here: train\.seed = -1: must be between 0 and"),
            ({"train_lr_backbone": -1}, r"here: train\.lr_backbone = -1: must be between 0 and 10"),
            ({"train_max_grad_norm": -1}, r"here: train\.max_grad_norm = -1: must be between 0 and"),
            ({"train_ema_decay": 1}, r"here: train\.ema_decay = 1: must be at least 0 and below 1"),
            ({"train_select_alphas": [0.1, 2]}, r"here: train\.select_alphas = \[0\.1, 2\]: each must be above 0"),
            ({"train_backbone_weights": 3}, r"here: train\.backbone_weights = 3: expected text"),
            ({"train_w_regression": 0}, r"here: train\.w_regression = 0\.0: must be above 0 if w_cross_entropy is 0"),
            (
                {"train_init_from": "a", "train_backbone_weights": "b"},
                r"train\.init_from = 'a': brings its own backbone",
            ),
            (
                {"model": {"variant": "raw"}, "train_lr_backbone": 0},
                r"train\.lr_backbone = 0\.0: must be above 0: without a refiner",
            ),
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
        with pytest.raises(InputError, match=r"run\.toml: train\.epochs: train = 3 is not a table of keys"):
            read_run_config(path, ["train.epochs=3"])

    @pytest.mark.parametrize(
        "path", sorted((Path(__file__).parents[1] / "configs").glob("*.toml")), ids=lambda p: p.stem
    )
    def test_the_configs_that_ship(self, path: Path):
        assert read_run_config(path).train.backbone_weights

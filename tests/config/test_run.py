import json
from pathlib import Path

import pytest

from transformatcher.config import ModelConfig, PairSource, read_run_config, run_config, to_plain
from transformatcher.errors import InputError

PASCAL = {"benchmark": "pfpascal", "folder": "PF-PASCAL"}
COCO = {"benchmark": "coco", "folder": "animals"}


def tables(**changes):
    """The smallest run, with some keys of its [data] and [train] changed."""
    data = {"train": [PASCAL], "validate": [PASCAL]}
    return {
        "data": data | {key[5:]: value for key, value in changes.items() if key.startswith("data_")},
        "train": {key[6:]: value for key, value in changes.items() if key.startswith("train_")},
        **{key: value for key, value in changes.items() if "_" not in key},
    }


def test_defaults_are_the_papers_recipe():
    config = run_config(tables())
    assert config.model == ModelConfig()
    assert config.data.train == (PairSource("pfpascal", "PF-PASCAL", split="trn"),)
    assert (config.train.lr, config.train.lr_backbone, config.train.batch_size) == (1e-3, 1e-5, 16)
    assert (config.train.w_regression, config.train.w_cross_entropy) == (1.0, 0.0)
    assert config.data.pairs_per_epoch is None


def test_round_trip_through_plain_data():
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
            r"here: data\.train\[0\]\.benchmark = 'cub': expected one of spair, spair-u, .*, coco",
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
def test_bad_values_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        run_config(tables(**changes), source="here")


def test_a_run_needs_data():
    with pytest.raises(InputError, match=r"no \[data\] table; it says which pairs"):
        run_config({"train": {}})


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "configs").glob("*.toml")), ids=lambda p: p.stem)
def test_the_configs_that_ship(path: Path):
    assert read_run_config(path).train.backbone_weights

import json
from pathlib import Path

import pytest

from transformatcher.config import ModelConfig, model_config, parse_overrides, read_model_config, to_plain
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
        ({"attention": "vanilla"}, r"attention = 'vanilla': expected one of paper, released"),
        ({"temperature": 0}, r"temperature = 0\.0: must be positive"),
        ({"stages": [4, 3]}, "rising order"),
        ({"stages": []}, "choose some of"),
        ({"image_size": [8, 240]}, "at least 32"),
        ({"grid": [1, 15]}, "at least 2 cells"),
        ({"heads": 0}, "at least 1"),
        ({"depth": True}, "depth = True: expected int"),
        ({"sigma": float("inf")}, "positive and finite"),
        ({"grid": "wide"}, "grid = 'wide': expected"),
    ],
)
def test_bad_values_are_named(values, message):
    with pytest.raises(InputError, match=message):
        model_config(values)


def test_one_number_stands_for_a_square():
    config = model_config({"image_size": 480, "grid": 30, "stages": 3})
    assert (config.image_size, config.grid, config.stages) == ((480, 480), (30, 30), (3,))


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

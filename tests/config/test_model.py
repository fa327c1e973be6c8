import json
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from transformatcher.config import ModelConfig, model_config, to_plain
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


def test_passes_are_written_where_there_are_several():
    """So that the settings of models that match once, and what depends on them, are what they were."""
    assert "coarse_to_fine" not in to_plain(model_config({"coarse_to_fine.region": "object"}))
    config = model_config({"coarse_to_fine": {"passes": 2, "min_side": 0.5}})
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
        ({"coarse_to_fine.pases": 2}, "unknown key 'coarse_to_fine.pases'; did you mean 'coarse_to_fine.passes'"),
        ({"coarse_to_fine.passes": 5}, "coarse_to_fine.passes = 5: must be between 1 and 4"),
        ({"coarse_to_fine.region": "box"}, "coarse_to_fine.region = 'box': expected one of points, object"),
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
        ({"temperature": 0}, "temperature = 0: must be between 0.0001 and 10,000"),
        ({"kernel_sigma": "wide"}, "kernel_sigma = 'wide': expected a number"),
        ({"kernel_sigma": float("inf")}, "kernel_sigma = inf: must be between 0.01 and 10,000"),
        ({"kernel_sigma": 10**400}, "kernel_sigma = 10{99}…: must be between 0.01 and 10,000"),
        ({"kernel_sigma": 10**5000}, "kernel_sigma = a very long int: must be between 0.01"),
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

"""Every number of a config has a range that keeps computations finite."""

import json
import sys
from dataclasses import is_dataclass

import pytest

from transformatcher.config import ModelConfig, model_config, read_model_config, run_config
from transformatcher.config.check import fields_of
from transformatcher.config.run import RunConfig
from transformatcher.errors import InputError

HUGE = 10**30
DATA = {"train": [{"benchmark": "pfpascal", "folder": "x"}], "validate": [{"benchmark": "pfpascal", "folder": "x"}]}


def numbers(kind: type, prefix: str = "") -> list[str]:
    """The dotted keys of all numbers, and of lists of them."""
    found = []
    for name, field in fields_of(kind).items():
        if is_dataclass(field.annotation):
            found += numbers(field.annotation, f"{prefix}{name}.")
        elif "int" in str(field.annotation) or "float" in str(field.annotation):
            found.append(f"{prefix}{name}")
    return found


@pytest.mark.parametrize("key", numbers(ModelConfig))
@pytest.mark.parametrize("value", [HUGE, -HUGE, 1e300, -1e-300, sys.float_info.max, float("inf"), float("nan")])
def test_no_number_of_a_model_without_a_range(key, value):
    with pytest.raises(InputError, match=key.replace(".", r"\.")):
        model_config(
            {"refiner": key.split(".")[0], key: value} if key.split(".")[0] in ("nc4d", "cats") else {key: value}
        )


@pytest.mark.parametrize("key", [key for key in numbers(RunConfig) if not key.startswith(("model", "data.train"))])
@pytest.mark.parametrize("value", [HUGE, -HUGE, 1e300, -1e-300])
def test_no_number_of_a_run_without_a_range(key, value):
    with pytest.raises(InputError, match=key.split(".")[0]):
        run_config({"data": DATA}, overrides={key: value})


@pytest.mark.parametrize(
    "key",
    ["kernel_sigma", "temperature", "sampler_threshold", "coarse_to_fine.kernel_sigma", "match2match.rotary_base"],
)
def test_what_is_divided_by_is_not_tiny(key, tmp_path):
    with pytest.raises(InputError, match=f"{key} = 1e-300: must be between"):
        model_config({key: 1e-300})
    file = tmp_path / "config.json"
    file.write_text(json.dumps({key: 1e-30}))
    with pytest.raises(InputError, match=rf"config\.json: {key} = 1e-30: must be between"):
        read_model_config(file)

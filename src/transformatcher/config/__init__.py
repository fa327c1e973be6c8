"""TOML or JSON → frozen, checked config dataclasses → the resolved config as plain data.

``model`` and ``run`` declare the keys, with types, ranges and choices; ``read`` makes configs of files and settings;
``check`` words what is wrong with them. Configs never enter the model's classes: ``models/build.py`` alone turns them
into constructor arguments.
"""

from transformatcher.config.check import check_keys
from transformatcher.config.model import (
    INPUT,
    READ_OUT,
    REFINERS,
    RESNETS,
    TIMM,
    VARIANTS,
    CATsConfig,
    CoarseToFineConfig,
    Match2MatchConfig,
    ModelConfig,
    NC4DConfig,
    Variant,
)
from transformatcher.config.read import (
    chosen_refiner,
    merged,
    model_config,
    nested,
    pair_source,
    parse_overrides,
    read_model_config,
    read_model_table,
    read_run_config,
    read_tables,
    run_config,
    to_plain,
)
from transformatcher.config.run import DataConfig, PairSet, PairSource, RunConfig, TrainConfig

__all__ = [
    "INPUT",
    "READ_OUT",
    "REFINERS",
    "RESNETS",
    "TIMM",
    "VARIANTS",
    "CATsConfig",
    "CoarseToFineConfig",
    "DataConfig",
    "Match2MatchConfig",
    "ModelConfig",
    "NC4DConfig",
    "PairSet",
    "PairSource",
    "RunConfig",
    "TrainConfig",
    "Variant",
    "check_keys",
    "chosen_refiner",
    "merged",
    "model_config",
    "nested",
    "pair_source",
    "parse_overrides",
    "read_model_config",
    "read_model_table",
    "read_run_config",
    "read_tables",
    "run_config",
    "to_plain",
]

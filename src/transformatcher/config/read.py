"""TOML, JSON and ``--set key=value`` → configs → plain data."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformatcher.config.check import check_keys, show, validate
from transformatcher.config.model import REFINERS, VARIANTS, ModelConfig
from transformatcher.config.run import PairSource, RunConfig
from transformatcher.errors import InputError

TABLES = ("model", "data", "train")


def model_config(values: Mapping[str, Any] | None = None, source: str = "model config") -> ModelConfig:
    """Keys of [model], which win over those of their ``variant`` → a checked ModelConfig.

    >>> model_config({"variant": "released", "match2match": {"depth": 2}}).match2match.attention
    'released'
    >>> model_config({"match2match.depth": 2}).match2match.depth
    2
    """
    given = _with_variant(values or {}, source)
    return validate(ModelConfig, given, source, unused=_unused_tables(given))


def run_config(
    tables: Mapping[str, Any], source: str = "run config", overrides: Mapping[str, Any] | None = None
) -> RunConfig:
    """The tables [model], [data] and [train], with some dotted keys changed by ``--set`` → a checked RunConfig."""
    overrides = overrides or {}
    given = nested({**tables, **overrides}, source)
    if "data" not in given:
        raise InputError(f"{source}: no [data] table; it says which pairs to train and validate on")
    given = {"model": {}, "train": {}, **given}
    unused: Sequence[str] = ()
    if isinstance(given["model"], Mapping):
        given["model"] = _with_variant(given["model"], source, "model.")
        unused = [f"model.{name}" for name in _unused_tables(given["model"])]
    return validate(RunConfig, given, source, overridden=overrides, unused=unused)


def pair_source(values: Mapping[str, Any], source: str) -> PairSource:
    """Keys → a checked PairSource."""
    return validate(PairSource, values, source)


def read_run_config(path: Path, settings: Sequence[str] = ()) -> RunConfig:
    """A .toml file with the tables of a run, changed by ``table.key=value`` settings → RunConfig."""
    return run_config(read_tables(path), str(path), parse_overrides(settings))


def read_model_config(path: Path) -> ModelConfig:
    """A .toml file (its [model] table) or a .json file (the whole) → ModelConfig."""
    return model_config(read_model_table(path), source=str(path))


def read_model_table(path: Path) -> dict[str, Any]:
    """The keys that a .toml file (in its [model] table) or a .json file gives, unchecked."""
    data = read_tables(path)
    if path.suffix != ".json":
        check_keys(data, TABLES, str(path))  # a training config's [model] serves too
        data = data.get("model", {})
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected a table of keys, found {type(data).__name__}")
    return data


def read_tables(path: Path) -> dict[str, Any]:
    """A .toml or .json file as it stands."""
    if not path.is_file():
        raise InputError(f"{path}: no such config file")
    try:
        text = path.read_text(encoding="utf-8-sig")
        data: dict[str, Any] = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid {path.suffix.lstrip('.') or 'TOML'}: {error}") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected a table of keys, found {type(data).__name__}")
    return data


def parse_overrides(settings: Sequence[str]) -> dict[str, Any]:
    """``["grid=[15, 20]", "match2match.position=none"]`` → values by key; they are TOML, a bare word is a string."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise InputError(f"--set {setting!r}: expected key=value")
        try:
            table = tomllib.loads(f"value = {text}")
        except tomllib.TOMLDecodeError:
            table = {"value": text.strip()}
        except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
            raise InputError(f"--set {key.strip()}: not a value ({error})") from error
        if len(table) > 1:
            raise InputError(f"--set {setting!r}: expected one key=value")
        values[key.strip()] = table["value"]
    return values


def nested(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """``{"model.grid": 15, "train": {…}}`` → ``{"model": {"grid": 15}, "train": {…}}``; later keys win."""
    tables: dict[str, Any] = {}
    for path, value in values.items():
        *parents, name = str(path).split(".")
        table = tables
        for parent in parents:
            inner = table.get(parent, {})
            if not isinstance(inner, Mapping):
                raise InputError(f"{source}: {path}: {parent} = {show(inner)} is not a table of keys")
            table[parent] = dict(inner)
            table = table[parent]
        table[name] = value
    return tables


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of keys with some of them changed; tables inside tables are merged, too."""
    both = dict(base)
    for key, value in changes.items():
        inner = both.get(key)
        both[key] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return both


def to_plain(config: ModelConfig | RunConfig | PairSource) -> dict[str, Any]:
    """A config as JSON-ready data, every key that has an effect resolved."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    model = plain if isinstance(config, ModelConfig) else plain.get("model", {})
    for name in _unused_tables(model):
        model.pop(name, None)
    if model.get("coarse_to_fine", {}).get("passes") == 1:
        del model["coarse_to_fine"]
    return plain


def _with_variant(values: Mapping[str, Any], source: str, prefix: str = "") -> dict[str, Any]:
    """Keys of [model] on top of those that their variant sets; a table of another refiner than theirs is refused."""
    given = nested(values, source)
    preset, refiner = _preset(given), chosen_refiner(given)
    for name in _unused_tables({"refiner": refiner}):
        if isinstance(table := given.get(name), Mapping) and table:
            key, value = next(iter(table.items()))
            rule = f"is for {prefix}refiner = {name!r}, and the refiner here is {refiner!r}"
            raise InputError(f"{source}: {prefix}{name}.{key} = {show(value)}: {rule}")
        preset = {key: value for key, value in preset.items() if key != name}
    return merged(preset, given)


def chosen_refiner(model: Mapping[str, Any]) -> Any:
    """The refiner that keys of [model] choose, by themselves or by their variant; unchecked."""
    return model.get("refiner", _preset(model).get("refiner", "match2match"))


def _preset(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the variant of a model sets; nothing for an unknown variant, which is refused later."""
    variant = model.get("variant", "paper")
    return VARIANTS.get(variant, {}) if isinstance(variant, str) else {}


def _unused_tables(model: Mapping[str, Any]) -> list[str]:
    """Tables of refiners that are not the chosen one."""
    refiner = model.get("refiner", "match2match")
    known = isinstance(refiner, str) and refiner in (*REFINERS, "none")
    return [name for name in REFINERS if name != refiner] if known else []

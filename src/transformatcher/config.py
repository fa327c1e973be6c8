"""TOML or JSON → frozen, checked config dataclasses → the resolved config as plain data.

Configs never enter the model's classes: ``models/build.py`` alone turns them into constructor arguments.
"""

import difflib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import dacite

from transformatcher.errors import InputError

BackboneName = Literal["resnet50", "resnet50_v1", "resnet101"]
Variant = Literal["paper", "released", "raw"]


@dataclass(frozen=True)
class ModelConfig:
    """Everything that defines a matcher. The defaults are the ``paper`` variant; VARIANTS has the others."""

    variant: Variant = "paper"
    image_size: tuple[int, int] = (240, 240)  # (h, w); the aspect ratio is not kept

    backbone: BackboneName = "resnet101"
    stages: tuple[int, ...] = (3, 4)  # torchvision's layer3 and layer4 are conv4_x and conv5_x of the paper

    correlation: Literal["resize-correlation", "resize-features"] = "resize-correlation"
    grid: tuple[int, int] | None = None  # (h, w) of the correlation map; None: that of the finest chosen stage

    matcher: Literal["match2match", "none"] = "match2match"  # none: the mean of the raw correlation maps
    attention: Literal["paper", "released"] = "paper"
    position: Literal["axial", "checkerboard", "none"] = "axial"
    rotary_base: float = 100.0
    rotary_frequencies: int | None = None  # per axis; None: as many as the heads have planes for
    dim: int = 16
    heads: int = 8
    head_dim: int = 4
    depth: int = 6
    ffn_ratio: int = 4

    upsample: int = 2
    gaussian: Literal["logits", "probabilities", "none"] = "logits"
    sigma: float = 10.0  # of the Gaussian, in cells of the upsampled grid
    temperature: float = 1.0
    sampler: Literal["soft", "bilinear"] = "soft"
    sampler_threshold: float = 0.05  # reach of the soft sampler at test time, normalised
    sampler_threshold_train: float = 0.1


VARIANTS: Mapping[Variant, Mapping[str, Any]] = {
    "paper": {},
    "released": {"correlation": "resize-features", "attention": "released", "position": "checkerboard"},
    # No learned matcher. Cosines differ by hundredths where learned logits differ by units, hence the temperature. Of
    # 0.005, 0.01, 0.02, 0.05, with the Gaussian on logits or probabilities and σ of 1.5, 3, 5, 10, this and the paper's
    # own Gaussian (logits, 10) were the best on PF-PASCAL val at α = 0.1.
    "raw": {"matcher": "none", "correlation": "resize-features", "temperature": 0.02, "sampler": "bilinear"},
}


def model_config(values: Mapping[str, Any] | None = None, source: str = "model config") -> ModelConfig:
    """Given keys, on top of what their ``variant`` says, on top of the paper → a checked ModelConfig."""
    given = dict(values or {})
    check_keys(given, [f.name for f in fields(ModelConfig)], source)
    variant = given.get("variant", "paper")
    if variant not in VARIANTS:
        raise InputError(f"{source}: variant {variant!r} is none of {', '.join(VARIANTS)}")
    for key in ("image_size", "grid"):
        if _is_number(given.get(key)):  # one side stands for a square
            given[key] = [given[key], given[key]]
    if _is_number(given.get("stages")):
        given["stages"] = [given["stages"]]
    options = dacite.Config(cast=[tuple], type_hooks={float: _number, int: _whole}, strict=True)
    try:
        config = dacite.from_dict(ModelConfig, {**VARIANTS[variant], **given}, options)
    except TypeError as error:  # a tuple was wanted, and what came cannot be one
        raise InputError(f"{source}: a value has the wrong form ({error})") from error
    except dacite.DaciteError as error:
        raise InputError(f"{source}: {_explain(error, given)}") from error
    _check_ranges(config, source)
    return config


def check_keys(given: Mapping[str, Any], valid: Sequence[str], source: str) -> None:
    """Refuse the first unknown key, and name the valid one that is nearest to it."""
    for key in given:
        if key not in valid:
            near = difflib.get_close_matches(key, valid, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(valid)}"
            raise InputError(f"{source}: unknown key {key!r}; {hint}")


def read_model_config(path: Path) -> ModelConfig:
    """A .toml file (its [model] table) or a .json file (the whole) → ModelConfig."""
    return model_config(read_model_table(path), source=str(path))


def read_model_table(path: Path) -> dict[str, Any]:
    """The keys that a .toml file (in its [model] table) or a .json file gives, unchecked."""
    if not path.is_file():
        raise InputError(f"{path}: no such config file")
    try:
        text = path.read_text(encoding="utf-8-sig")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid {path.suffix.lstrip('.') or 'TOML'}: {error}") from error
    if path.suffix != ".json":
        check_keys(data, ["model"], str(path))
        data = data.get("model", {})
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected a table of keys, found {type(data).__name__}")
    return data


def parse_overrides(settings: Sequence[str]) -> dict[str, Any]:
    """``["depth=4", "grid=[15, 20]", "position=none"]`` → a dict; values are TOML, a bare word is a string."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise InputError(f"--set {setting!r}: expected key=value")
        try:
            values[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            values[key.strip()] = text.strip()
    return values


def to_plain(config: ModelConfig) -> dict[str, Any]:
    """A config as JSON-ready data, every key resolved."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return plain


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> Any:
    """TOML's 10 is as good a float as 10.0; a string or a boolean is not."""
    return float(value) if _is_number(value) else str(value)


def _whole(value: Any) -> Any:
    """Python counts True as 1; a config does not."""
    return str(value) if isinstance(value, bool) else value


def _explain(error: dacite.DaciteError, given: Mapping[str, Any]) -> str:
    if isinstance(error, dacite.WrongTypeError):
        key, kind = error.field_path, error.field_type
        choices = get_args(kind) if getattr(kind, "__origin__", None) is Literal else ()
        wanted = f"one of {', '.join(map(str, choices))}" if choices else getattr(kind, "__name__", str(kind))
        return f"{key} = {given.get(str(key))!r}: expected {wanted}"
    return str(error)


def _check_ranges(config: ModelConfig, source: str) -> None:
    def need(ok: bool, key: str, rule: str) -> None:
        if not ok:
            raise InputError(f"{source}: {key} = {getattr(config, key)!r}: {rule}")

    need(min(config.image_size) >= 32, "image_size", "both sides must be at least 32 pixels")
    need(config.grid is None or min(config.grid) >= 2, "grid", "both sides must be at least 2 cells")
    need(bool(config.stages) and set(config.stages) <= {1, 2, 3, 4}, "stages", "choose some of 1, 2, 3, 4")
    need(list(config.stages) == sorted(set(config.stages)), "stages", "list each stage once, in rising order")
    for key in ("dim", "heads", "head_dim", "ffn_ratio", "upsample"):
        need(getattr(config, key) >= 1, key, "must be at least 1")
    need(config.depth >= 0, "depth", "must not be negative")
    for key in ("sigma", "temperature", "rotary_base", "sampler_threshold", "sampler_threshold_train"):
        need(0 < getattr(config, key) < math.inf, key, "must be positive and finite")

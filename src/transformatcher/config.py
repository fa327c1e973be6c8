"""TOML or JSON → frozen, checked config dataclasses → the resolved config as plain data.

Configs never enter the model's classes: ``models/build.py`` alone turns them into constructor arguments.
"""

import difflib
import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

import dacite

from transformatcher.errors import InputError

RESNETS = ("resnet50", "resnet50_v1", "resnet101")
TIMM = "timm:"  # and the name of any network that timm has, with or without a tag
Variant = Literal["paper", "released", "raw"]


@dataclass(frozen=True)
class ModelConfig:
    """Everything that defines a matcher. The defaults are the ``paper`` variant; VARIANTS has the others."""

    variant: Variant = "paper"
    image_size: tuple[int, int] = (240, 240)  # (h, w); the aspect ratio is not kept

    # resnet50, resnet50_v1 or resnet101; or timm:NAME, any network of timm: timm:vit_small_patch14_dinov2
    backbone: str = "resnet101"
    # ResNets alone: torchvision's layer3 and layer4 are conv4_x and conv5_x of the paper
    stages: tuple[int, ...] = (3, 4)
    # Each becomes a channel of the correlation. ResNets: bottlenecks of these stages, numbered from 0. timm: blocks of
    # a transformer or stages of a CNN, numbered as in its forward_intermediates; "all" stages are those whose cells are
    # 16 pixels or more
    layers: tuple[int, ...] | Literal["all", "every-other"] = "all"

    correlation: Literal["resize-correlation", "resize-features"] = "resize-correlation"
    grid: tuple[int, int] | None = None  # (h, w) of the correlation map; None: that of the finest chosen layer
    # multi: one for each layer; one in all: concat, of the layers' features one behind the other; mean, of the maps
    channels: Literal["multi", "concat", "mean"] = "multi"

    # nc4d: 4-D convolutions; cats: attention between cells; none: the mean of the raw correlation maps
    matcher: Literal["match2match", "nc4d", "cats", "none"] = "match2match"
    attention: Literal["paper", "released", "vanilla", "linformer", "performer"] = "paper"
    max_matches: int = 12**4  # vanilla attention refuses more
    linformer_rank: int = 64  # keys that remain
    performer_features: int = 16  # of each query and key
    # absolute: a learned vector for each cell of each axis; absolute-table: for each match
    position: Literal["axial", "checkerboard", "none", "absolute", "absolute-table"] = "axial"
    rotary_base: float = 100.0
    rotary_frequencies: int | None = None  # per axis; None: as many as the heads have planes for
    dim: int = 16  # channels of a match; cats: of a cell
    heads: int = 8
    head_dim: int = 4
    depth: int = 6  # blocks; nc4d: convolutions; cats: rounds of two blocks
    ffn_ratio: int = 4
    consensus: int = 0  # match2match: convolutions as of nc4d beside the blocks, what both say is summed; 0: none
    conv_kernel: int = 3  # convolutions: cells along each axis
    mutual: bool = True  # convolutions: soft mutual nearest-neighbour filter before them
    raw_gain: float = 0.0  # the refined map starts as this times the mean raw correlation; 0: without, as in the paper
    block_gain: float = 1.0  # and this times what the matcher says, convolutions included, is added

    upsample: int = 2
    gaussian: Literal["logits", "probabilities", "none"] = "logits"
    sigma: float = 10.0  # of the Gaussian, in cells of the upsampled grid
    temperature: float = 1.0
    sampler: Literal["soft", "bilinear"] = "soft"
    sampler_threshold: float = 0.05  # reach of the soft sampler at test time, normalised
    sampler_threshold_train: float = 0.1


@dataclass(frozen=True)
class SourceConfig:
    """Where pairs come from."""

    benchmark: Literal["spair", "pfpascal", "pfwillow", "coco"]
    folder: str  # in ``root``
    split: str = "trn"
    share: float = 1.0  # of the pairs of an epoch, in proportion to the other sources'
    with_itself: bool = False  # training: each object with itself, by random points, through two crops
    limit: int | None = None  # the first so many pairs of the list; validation on coco: so many


@dataclass(frozen=True)
class DataConfig:
    """What is trained on, and how pairs are made of it. Probabilities are each pair's or image's own."""

    train: tuple[SourceConfig, ...]
    validate: tuple[SourceConfig, ...]
    root: str = "data"
    # sets of pairs none of whose photos, known by the names of their files, may be trained on
    leave_out: tuple[SourceConfig, ...] = ()
    pairs_per_epoch: int | None = None  # None: as many as the lists of pairs hold
    keep: Literal["auto", "device", "host", "disk"] = "auto"  # where decoded images stay
    canvas: int = 320  # the side of the square that kept images are resized to
    threads: int = 4  # that decode images
    workers: int = 4  # processes that draw samples, at most one for each core; 0 for none
    colour: float = 0.2  # each of the seven changes of colour
    crop: float = 0.5  # a crop that keeps every keypoint
    focus: float = 0.0  # a crop around the object instead, where its box is known
    flip: float = 0.0  # both images mirrored
    swap: float = 0.0  # source and target exchanged
    mirror: float = 0.0  # coco: the target alone mirrored, left and right keypoints exchanged
    min_shared: int = 3  # coco: keypoints visible in both
    min_overlap: float = 0.0  # coco: shared keypoints among those visible in either
    min_object: float = 0.0  # coco: longer side of an object's box in that of its image
    balanced: bool = True  # coco: categories drawn alike


@dataclass(frozen=True)
class TrainConfig:
    """How weights are found. The defaults are the paper's recipe (section 5, and the released code's batch size)."""

    seed: int = 0
    epochs: int = 10
    batch: int = 16  # of all processes together
    lr: float = 1e-3  # of the matcher
    lr_backbone: float = 1e-5  # 0 keeps the backbone as it is
    schedule: Literal["constant", "cosine"] = "constant"
    warmup: int = 0  # steps
    weight_decay: float = 0.0
    clip: float | None = None  # of the gradient's norm; 0 or nothing: none
    average: float | None = None  # decay of a running average of the weights, which is then what is validated and kept
    batch_norm: Literal["train", "frozen"] = "train"
    regression: float = 1.0  # weight of the squared distance (the paper's loss)
    cross_entropy: float = 0.0  # weight of a cross-entropy over target cells
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # of the backbone; auto: bfloat16 on a GPU
    # a .safetensors file; or, from the cache alone, torchvision's name for weights, or "timm" for timm's own
    backbone_weights: str | None = None
    start: str | None = None  # a checkpoint folder to start from
    save_every: int = 500  # steps, besides each validation
    validate_every: int = 1  # epochs
    select_alphas: tuple[float, ...] = (0.1,)  # best is the highest mean PCK of the validation sets at these


@dataclass(frozen=True)
class RunConfig:
    """All that a training run depends on."""

    model: ModelConfig
    data: DataConfig
    train: TrainConfig


# Settings that say how a trained model is read out: they may be changed without training again.
READ_OUT = ("block_gain", "upsample", "gaussian", "sigma", "temperature", "sampler", "sampler_threshold")
INPUT = ("image_size",)  # and the size that images are brought to, unless weights belong to single cells of its grid

VARIANTS: Mapping[Variant, Mapping[str, Any]] = {
    "paper": {},
    "released": {"correlation": "resize-features", "attention": "released", "position": "checkerboard"},
    # No learned matcher. Cosines differ by hundredths where learned logits differ by units, hence the temperature. Of
    # 0.005, 0.01, 0.02, 0.05, with the Gaussian on logits or probabilities and σ of 1.5, 3, 5, 10, this and the paper's
    # own Gaussian (logits, 10) were the best on PF-PASCAL val at α = 0.1.
    "raw": {"matcher": "none", "correlation": "resize-features", "temperature": 0.02, "sampler": "bilinear"},
}


# What other matchers need to be of about the size of match-to-match attention.
MATCHERS: Mapping[str, Mapping[str, Any]] = {"nc4d": {"depth": 3}, "cats": {"dim": 32, "depth": 1}}


def model_config(values: Mapping[str, Any] | None = None, source: str = "model config") -> ModelConfig:
    """Given keys, on top of what their ``matcher`` and ``variant`` say, on top of the paper → a checked ModelConfig."""
    given = dict(values or {})
    check_keys(given, [f.name for f in fields(ModelConfig)], source)
    variant: Any = given.get("variant", "paper")
    if not isinstance(variant, str) or variant not in VARIANTS:
        raise InputError(f"{source}: variant {variant!r} is none of {', '.join(VARIANTS)}")
    for key in ("image_size", "grid"):
        if _is_number(given.get(key)):  # one side stands for a square
            given[key] = [given[key], given[key]]
    for key in ("stages", "layers"):
        if _is_number(given.get(key)):
            given[key] = [given[key]]
    config = _build(
        ModelConfig,
        {**VARIANTS[cast(Variant, variant)], **MATCHERS.get(str(given.get("matcher")), {}), **given},
        source,
    )
    _check_ranges(config, source)
    return config


def run_config(tables: Mapping[str, Any], source: str = "run config") -> RunConfig:
    """The tables [model], [data] and [train] → a checked RunConfig."""
    check_keys(tables, ["model", "data", "train"], source)
    for name in tables:
        if not isinstance(tables[name], Mapping):
            raise InputError(f"{source}: {name} is not a table of keys")
    if "data" not in tables:
        raise InputError(f"{source}: no [data] table; it says which pairs to train and validate on")
    data, train = dict(tables["data"]), tables.get("train", {})
    check_keys(data, [f.name for f in fields(DataConfig)], f"{source}, [data]")
    check_keys(train, [f.name for f in fields(TrainConfig)], f"{source}, [train]")
    for key in ("train", "validate", "leave_out"):
        sources = data.get(key, [] if key == "leave_out" else None)
        if not isinstance(sources, list | tuple) or not all(isinstance(item, Mapping) for item in sources):
            raise InputError(f"{source}: data.{key} must be a list of {{benchmark = …, folder = …}}")
        data[key] = [source_config(item, f"{source}, data.{key}") for item in sources]
    config = RunConfig(
        model=model_config(tables.get("model", {}), f"{source}, [model]"),
        data=_build(DataConfig, data, f"{source}, [data]"),
        train=_build(TrainConfig, train, f"{source}, [train]"),
    )
    _check_run(config, source)
    return config


def source_config(values: Mapping[str, Any], source: str) -> SourceConfig:
    """Keys → a checked SourceConfig."""
    check_keys(values, [f.name for f in fields(SourceConfig)], source)
    return _build(SourceConfig, values, source)


def read_run_config(path: Path, settings: Sequence[str] = ()) -> RunConfig:
    """A .toml file with the tables of a run, changed by ``table.key=value`` settings → RunConfig."""
    tables = read_tables(path)
    for key, value in parse_overrides(settings).items():
        table, dot, name = key.partition(".")
        if not dot:
            raise InputError(f"--set {key}: name the table too: model.{key}, data.{key} or train.{key}")
        check_keys({table: value}, ["model", "data", "train"], f"--set {key}")
        if not isinstance(tables.setdefault(table, {}), dict):
            raise InputError(f"{path}: {table} is not a table of keys")
        tables[table][name] = value
    return run_config(tables, source=str(path))


Config = TypeVar("Config")


def _build(kind: type[Config], values: Mapping[str, Any], source: str) -> Config:
    options = dacite.Config(cast=[tuple], type_hooks={float: _number, int: _whole}, strict=True)
    try:
        return dacite.from_dict(kind, values, options)
    except (TypeError, ValueError) as error:  # a tuple was wanted, and what came cannot be one
        raise InputError(f"{source}: a value has the wrong form ({error})") from error
    except dacite.DaciteError as error:
        raise InputError(f"{source}: {_explain(error, values)}") from error


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
    data = read_tables(path)
    if path.suffix != ".json":
        check_keys(data, ["model", "data", "train"], str(path))  # a training config's [model] serves too
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
    """``["depth=4", "grid=[15, 20]", "position=none"]`` → a dict; values are TOML, a bare word is a string."""
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


def to_plain(config: ModelConfig | RunConfig | SourceConfig) -> dict[str, Any]:
    """A config as JSON-ready data, every key resolved."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return plain


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> Any:
    """TOML's 10 is as good a float as 10.0; a string or a boolean is not."""
    try:
        return float(value) if _is_number(value) else str(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _whole(value: Any) -> Any:
    """Python counts True as 1; a config does not."""
    return str(value) if isinstance(value, bool) else value


def _explain(error: dacite.DaciteError, given: Mapping[str, Any]) -> str:
    if isinstance(error, dacite.WrongTypeError):
        key, kind = error.field_path, error.field_type
        value = given.get(str(key))
        near = difflib.get_close_matches(str(value), _choices(kind), n=1)
        return f"{key} = {value!r}: expected {_wanted(kind)}" + (f"; did you mean {near[0]!r}?" if near else "")
    return str(error)


def _choices(kind: Any) -> list[str]:
    """The words that a key of this type takes."""
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    return [choice for part in get_args(kind) for choice in _choices(part)]


def _wanted(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(_choices(kind))}"
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_wanted(part) for part in get_args(kind) if part is not NoneType)
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


def _check_ranges(config: ModelConfig, source: str) -> None:
    def need(ok: bool, key: str, rule: str) -> None:
        if not ok:
            raise InputError(f"{source}: {key} = {getattr(config, key)!r}: {rule}")

    need(min(config.image_size) >= 32, "image_size", "both sides must be at least 32 pixels")
    need(config.grid is None or min(config.grid) >= 2, "grid", "both sides must be at least 2 cells")
    _check_backbone(config, need)
    need(bool(config.stages) and set(config.stages) <= {1, 2, 3, 4}, "stages", "choose some of 1, 2, 3, 4")
    need(list(config.stages) == sorted(set(config.stages)), "stages", "list each stage once, in rising order")
    numbers = () if isinstance(config.layers, str) else config.layers
    need(bool(config.layers) and min(numbers, default=0) >= 0, "layers", "choose some, numbered from 0")
    need(list(numbers) == sorted(set(numbers)), "layers", "list each layer once, in rising order")
    for key in ("dim", "heads", "head_dim", "ffn_ratio", "upsample"):
        need(getattr(config, key) >= 1, key, "must be at least 1")
    for key in ("max_matches", "linformer_rank", "performer_features"):
        need(getattr(config, key) >= 1, key, "must be at least 1")
    need(config.conv_kernel >= 1 and config.conv_kernel % 2 == 1, "conv_kernel", "must be odd")
    need(config.depth >= 0, "depth", "must not be negative")
    need(config.depth >= 1 or config.matcher not in MATCHERS, "depth", f"{config.matcher} needs at least 1")
    need(config.consensus >= 0, "consensus", "must not be negative")
    need(config.consensus == 0 or config.matcher == "match2match", "consensus", "stands beside match2match alone")
    for key in ("raw_gain", "block_gain"):
        need(0 <= getattr(config, key) < math.inf, key, "must not be negative")
    need(config.raw_gain + config.block_gain > 0, "block_gain", "without raw_gain nothing would be left")
    for key in ("sigma", "temperature", "rotary_base", "sampler_threshold", "sampler_threshold_train"):
        need(0 < getattr(config, key) < math.inf, key, "must be positive and finite")


def _check_backbone(config: ModelConfig, need: Callable[[bool, str, str], None]) -> None:
    ours, timm = config.backbone in RESNETS, config.backbone.removeprefix(TIMM) not in ("", config.backbone)
    near = difflib.get_close_matches(config.backbone, RESNETS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "networks of timm are called timm:NAME"
    need(ours or timm, "backbone", f"expected one of {', '.join(RESNETS)}, or timm:NAME; {hint}")
    need(ours or config.stages == (3, 4), "stages", "only ResNets have them; choose layers of networks of timm")


def _check_run(config: RunConfig, source: str) -> None:
    def need(ok: bool, table: str, key: str, rule: str) -> None:
        if not ok:
            raise InputError(f"{source}: {table}.{key} = {getattr(getattr(config, table), key)!r}: {rule}")

    data, train = config.data, config.train
    for key in ("train", "validate"):
        need(bool(getattr(data, key)), "data", key, "name at least one source of pairs")
    plain = [SourceConfig(item.benchmark, item.folder, item.split) for item in data.leave_out]
    need(list(data.leave_out) == plain, "data", "leave_out", "takes benchmark, folder and split, and nothing else")
    for key in ("colour", "crop", "focus", "flip", "swap", "mirror", "min_overlap", "min_object"):
        need(0 <= getattr(data, key) <= 1, "data", key, "must lie between 0 and 1")
    need(all(0 < item.share < math.inf for item in data.train), "data", "train", "shares must be positive")
    need(
        all(item.limit is None or item.limit >= 1 for item in data.validate), "data", "validate", "limit is at least 1"
    )
    for key in ("canvas", "threads", "min_shared"):
        need(getattr(data, key) >= 1, "data", key, "must be at least 1")
    need(data.pairs_per_epoch is None or data.pairs_per_epoch >= 1, "data", "pairs_per_epoch", "must be at least 1")
    endless = any(item.benchmark == "coco" or item.with_itself for item in data.train)
    rule = "a source that is coco or with_itself is endless: say it"
    need(not endless or data.pairs_per_epoch is not None, "data", "pairs_per_epoch", rule)
    for key in ("epochs", "batch", "save_every", "validate_every"):
        need(getattr(train, key) >= 1, "train", key, "must be at least 1")
    need(0 < train.lr < math.inf, "train", "lr", "must be positive")
    need(data.workers >= 0, "data", "workers", "must not be negative")
    for key in ("seed", "lr_backbone", "warmup", "weight_decay", "regression", "cross_entropy"):
        need(0 <= getattr(train, key) < math.inf, "train", key, "must not be negative")
    need(train.regression + train.cross_entropy > 0, "train", "regression", "without cross_entropy it must be positive")
    need(train.clip is None or train.clip >= 0, "train", "clip", "must not be negative")
    need(train.average is None or 0 <= train.average < 1, "train", "average", "must lie between 0 and 1")
    need(
        not (train.start and train.backbone_weights), "train", "start", "brings its own backbone: drop backbone_weights"
    )
    need(config.model.matcher != "none" or train.lr_backbone > 0, "train", "lr_backbone", "nothing else could learn")

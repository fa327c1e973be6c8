"""Model ↔ checkpoint folder: ``model.safetensors`` and ``config.json``."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from transformatcher.config import (
    INPUT,
    READ_OUT,
    ModelConfig,
    check_keys,
    merged,
    model_config,
    nested,
    read_model_config,
    to_plain,
)
from transformatcher.errors import InputError
from transformatcher.files import write_text
from transformatcher.inference.calibration import CALIBRATION
from transformatcher.models.build import build_matcher, pair_memory
from transformatcher.models.cost import check_cost
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.models.weights_io import (
    hub_folder,
    load_strictly,
    looks_like_hub_id,
    read_safetensors,
    to_float16,
    write_tensors,
)

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
SHIPPED = Path(__file__).parents[1] / "weights"  # the checkpoint in the package
SHIPPED_DESCRIPTION = "the model that ships with transformatcher"


class _SkipInit(TorchFunctionMode):
    """Modules are built without initialising their weights, which takes longer than loading those of a checkpoint."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.normal_, Tensor.uniform_) or getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def find_checkpoint(name: str | Path, *, download: bool = False, revision: str | None = None) -> Path:
    """A local path, or a name on the Hugging Face hub → the path of a checkpoint.

    Args:
        name: a path, or ``owner/name`` on the hub. A local folder of that name comes first, and a ``Path`` is never
            looked for on the hub.
        download: fetch the checkpoint from the hub if it is not in the hub's cache.
        revision: of a checkpoint on the hub: a branch, tag or commit.

    Example:
        >>> find_checkpoint("runs/mine/best")
        PosixPath('runs/mine/best')
    """
    if isinstance(name, Path) or Path(name).exists() or not looks_like_hub_id(name):
        return Path(name)
    try:
        return hub_folder(name, [WEIGHTS, CONFIG], [CALIBRATION, CARD], download=download, revision=revision)
    except InputError as error:
        raise InputError(f"{name}: no such checkpoint here; on the Hugging Face hub, {error}") from error


def save_checkpoint(folder: Path, model: TransforMatcher, config: ModelConfig, *, half: bool = False) -> None:
    """Write ``model.safetensors`` and ``config.json``, each completely or not at all.

    Args:
        folder: created if it does not exist.
        model, config: the model and the config it was built from.
        half: store weights as float16, in half the space.
    """
    tensors = model.state_dict()
    write_tensors(folder / WEIGHTS, to_float16(tensors) if half else tensors)
    write_text(folder / CONFIG, json.dumps(to_plain(config), indent=2) + "\n")


def load_checkpoint(path: Path, settings: Mapping[str, Any] | None = None) -> tuple[TransforMatcher, ModelConfig]:
    """Load a model and its config. All weights must be there and fit.

    Args:
        path: a checkpoint folder, or the .safetensors file in it.
        settings: changes of the config. Only keys of the read-out and of the input can change (READ_OUT and INPUT in
            :mod:`transformatcher.config`); all others are fixed by training.

    Example:
        >>> model, config = load_checkpoint(SHIPPED, {"image_size": 352})
    """
    if not path.exists():
        raise InputError(f"{path}: no such checkpoint")
    weights = path / WEIGHTS if path.is_dir() else path
    if not (weights.parent / CONFIG).is_file():
        raise InputError(
            f"{path}: not a checkpoint, because there is no {CONFIG} beside the weights; for weights of a backbone "
            "alone, use --refiner none --backbone-weights"
        )
    trained = config = read_model_config(weights.parent / CONFIG)
    if settings:
        free = (*READ_OUT, *INPUT)
        names = {key.split(".")[0]: key for key in settings}
        if fixed := next((key for name, key in names.items() if name in vars(config) and name not in free), None):
            raise InputError(f"{path}: {fixed} is fixed by its training; what can be changed is {', '.join(free)}")
        check_keys(names, free, f"{path}, a trained model")
        config = model_config(merged(to_plain(config), nested(settings, "--set")), source="--set")
        _check_input(trained, config)
        check_cost(0, pair_memory(config))
    tensors, _ = read_safetensors(weights)
    with _SkipInit():  # for the grid of its training; position vectors are interpolated on any other
        model = build_matcher(replace(config, image_size=trained.image_size))
    load_strictly(model, tensors, source=str(weights))
    return model, config


def _check_input(trained: ModelConfig, config: ModelConfig) -> None:
    """Refuse another image size where weights belong to single cells of the correlation grid."""
    if config.image_size == trained.image_size or config.grid is not None:
        return  # a fixed grid does not depend on the image size
    linformer = config.refiner == "match2match" and config.match2match.attention == "linformer"
    if config.refiner == "cats" or linformer:
        h, w = trained.image_size
        part = "the attention 'linformer'" if linformer else "the refiner 'cats'"
        raise InputError(
            f"--set image_size: {part} has weights for every cell of images of {h} × {w}, "
            "so another size needs a new training"
        )

"""Weights file or name → a backbone with these weights.

Weights come from a local safetensors file, from torchvision's or from timm's own; they are downloaded only if the
caller asks for it.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from transformatcher.errors import InputError
from transformatcher.models.backbones.resnet import ARCHITECTURES, ResNetFeatures
from transformatcher.models.backbones.timm import TimmFeatures, import_timm
from transformatcher.models.weights_io import hub_folder, load_strictly, read_safetensors, refuse_pickles

TIMM_WEIGHTS = "timm"  # a name for the weights that timm itself would load


def load_backbone_weights(backbone: nn.Module, weights: str, *, download: bool = False) -> None:
    """Load ``weights`` into the backbone.

    Args:
        backbone: a :class:`ResNetFeatures` or :class:`TimmFeatures`, changed in place.
        weights: a .safetensors file with torchvision's key names, or the name of torchvision weights ("IMAGENET1K_V2",
            "DEFAULT"), which are taken from torch's cache. For networks of timm, see :func:`load_timm_weights`.
        download: whether named weights may be downloaded if they are not in the cache.
    """
    if isinstance(backbone, TimmFeatures):
        load_timm_weights(backbone, weights, download=download)
        return
    if not isinstance(backbone, ResNetFeatures):
        raise InputError(
            f"backbone weights {weights!r}: a {type(backbone).__name__} is neither a ResNet of this package nor of timm"
        )
    path = Path(weights)
    refuse_pickles(path)
    if path.suffix == ".safetensors" or path.exists():
        tensors, metadata = read_safetensors(path)
        _check_layout(backbone.name, metadata.get("arch", ""), path)
    else:
        path, tensors = _named_weights(backbone.name, weights, download)
    wanted = backbone.state_dict()
    unused_stages = {f"layer{stage}" for stage in (1, 2, 3, 4)} - {key.split(".")[0] for key in wanted}
    tensors = {key: value for key, value in tensors.items() if key.split(".")[0] not in unused_stages | {"fc"}}
    load_strictly(backbone, tensors, source=str(path))


def _check_layout(name: str, arch: str, path: Path) -> None:
    """Raise if a file holds a ResNet-50 v1 and ``name`` is another network: both have the same keys and shapes."""
    if _is_v1(arch) and name != "resnet50_v1":
        raise InputError(f"{path}: holds {arch!r}, which {name} cannot use; choose the backbone resnet50_v1")


def _is_v1(arch: str) -> bool:
    """Whether the metadata of a file name v1. (v1.5 is torchvision's layout.)"""
    return re.search(r"v1(?![.\d])", arch) is not None


def backbone_of(weights: str) -> str:
    """The network that a weights file belongs to, by its metadata; an error if they do not tell."""
    path = Path(weights)
    if path.suffix == ".safetensors":
        _, metadata = read_safetensors(path)
        if _is_v1(metadata.get("arch", "")):
            return "resnet50_v1"
    raise InputError(
        f"backbone weights {weights!r}: the file does not tell which network it belongs to; name it: --backbone "
        f"{', '.join(ARCHITECTURES)} or timm:NAME (resnet50 is torchvision's layout, resnet50_v1 the original one)"
    )


def _named_weights(name: str, weights: str, download: bool) -> tuple[Path, dict[str, Tensor]]:
    if name == "resnet50_v1":
        raise InputError(f"backbone weights {weights!r}: no such file, and torchvision has none for resnet50_v1")
    from torchvision.models import get_model_weights

    enum = get_model_weights(name)
    if weights not in enum.__members__:
        names = ", ".join(enum.__members__)
        raise InputError(f"backbone weights {weights!r}: no such file, and torchvision's for {name} are {names}")
    url = enum[weights].url
    path = _cache_path(url)
    if not path.is_file() and not download:
        fetch = f"python -c \"import torchvision; torchvision.models.get_model('{name}', weights='{weights}')\""
        raise InputError(
            f"backbone weights {weights}: {path.name} is not in torch's cache ({path.parent}); fetch it with {fetch}, "
            "with --download where a command has it, or name a .safetensors file"
        )
    try:  # weights_only: tensors alone are read, no pickled code is run
        state = enum[weights].get_state_dict(progress=True, check_hash=True, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError) as error:  # no network, a full disk, a wrong checksum
        raise InputError(f"backbone weights {weights}: cannot download or read {path.name} ({error})") from error
    return path, state


def _cache_path(url: str) -> Path:
    return Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]


def load_timm_weights(backbone: TimmFeatures, weights: str, *, download: bool = False) -> None:
    """Load ``weights`` into the backbone.

    Args:
        backbone: changed in place.
        weights: a .safetensors file with timm's key names, or with those of a release that timm can convert; or
            "timm": the weights that timm itself would load, from the cache of the Hugging Face hub.
        download: whether timm's own weights may be downloaded if they are not in that cache.
    """
    path = _timm_file(backbone, download) if weights == TIMM_WEIGHTS else Path(weights)
    refuse_pickles(path)
    if path.suffix != ".safetensors" and not path.exists():
        raise InputError(
            f"backbone weights {weights!r}: no such file; for timm:{backbone.name}, name a .safetensors file or "
            f"{TIMM_WEIGHTS!r} for timm's own weights"
        )
    tensors, _ = read_safetensors(path)
    whole = _whole_network(backbone, tensors, path)
    wanted = backbone.net.state_dict()
    load_strictly(backbone.net, {key: value for key, value in whole.items() if key in wanted}, source=str(path))


def _whole_network(backbone: TimmFeatures, tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """All weights of the network, head included, after timm has converted the names and sizes of a file's."""
    timm = import_timm(backbone.name)
    head = backbone.net.pretrained_cfg["classifier"]
    first = head if isinstance(head, str) or not head else head[0]
    classes = len(tensors[f"{first}.weight"]) if f"{first}.weight" in tensors else 0
    overlay = {"state_dict": dict(tensors), "num_classes": classes, "label_offset": 0, "custom_load": False}
    try:
        whole = timm.create_model(
            backbone.name, pretrained=True, pretrained_cfg_overlay=overlay, num_classes=classes, **backbone.options
        )
    except (RuntimeError, KeyError, ValueError, AssertionError, AttributeError) as error:
        reason = " ".join(str(error).split())
        reason = reason if len(reason) < 300 else reason[:300] + " …"
        raise InputError(f"{path}: these weights do not fit timm:{backbone.name} ({reason})") from error
    state: dict[str, Tensor] = whole.state_dict()
    return state


def _timm_file(backbone: TimmFeatures, download: bool) -> Path:
    """The file with timm's own weights of this network, in the cache of the Hugging Face hub."""
    cfg = backbone.net.pretrained_cfg
    home, file = cfg.get("hf_hub_id"), cfg.get("hf_hub_filename") or "model.safetensors"
    file = {"open_clip_pytorch_model.bin": "open_clip_model.safetensors"}.get(file, file)
    if not home or not file.endswith(".safetensors"):
        raise InputError(f"backbone timm:{backbone.name}: timm has no safetensors weights for it; name your own file")
    try:
        return hub_folder(home, [file], download=download) / file
    except InputError as error:
        raise InputError(f"backbone weights {TIMM_WEIGHTS!r}: {error}; or name a .safetensors file") from error

"""Image → features of every bottleneck of the chosen ResNet stages (section 4.1).

The networks are torchvision's. Weights come from a local safetensors file or from torchvision's own weights, and are
never fetched unless the caller says so.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torchvision
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.errors import InputError
from transformatcher.tensors import load_strictly, read_safetensors

ARCHITECTURES: dict[str, Callable[[], torchvision.models.ResNet]] = {
    "resnet50": torchvision.models.resnet50,
    "resnet50_v1": torchvision.models.resnet50,
    "resnet101": torchvision.models.resnet101,
}


class ResNetFeatures(nn.Module):
    """A torchvision ResNet that returns the outputs (after ReLU) of all bottlenecks of ``stages``.

    Args:
        name: one of ARCHITECTURES. ``resnet50_v1`` is the network of He et al. as first published: the stride of a
            stage sits in its first 1×1 convolution, where torchvision puts it in the 3×3 one.
        stages: which of torchvision's layer1 … layer4; those after the last one are left out altogether.
    """

    def __init__(self, name: str = "resnet101", stages: Sequence[int] = (3, 4)) -> None:
        super().__init__()
        if name not in ARCHITECTURES:
            raise InputError(f"backbone {name!r} is none of {', '.join(ARCHITECTURES)}")
        if not stages or not set(stages) <= {1, 2, 3, 4}:
            raise InputError(f"backbone stages {list(stages)}: choose some of 1, 2, 3, 4")
        self.name = name
        self.stages = tuple(stages)
        net = ARCHITECTURES[name]()
        if name == "resnet50_v1":
            _move_strides_to_first_convolution(net)
        self.conv1, self.bn1, self.relu, self.maxpool = net.conv1, net.bn1, net.relu, net.maxpool
        for stage in range(1, max(stages) + 1):
            self.add_module(f"layer{stage}", net.get_submodule(f"layer{stage}"))

    @property
    def n_layers(self) -> int:
        """How many feature maps an image gives, and so how many channels the correlation has."""
        return sum(len(list(self.get_submodule(f"layer{stage}").children())) for stage in self.stages)

    def forward(self, images: Float[Tensor, "b 3 h w"]) -> list[Float[Tensor, "b _ _ _"]]:
        """Normalised RGB images → one feature map for each bottleneck of the chosen stages."""
        features = []
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for stage in range(1, max(self.stages) + 1):
            for bottleneck in self.get_submodule(f"layer{stage}").children():
                x = bottleneck(x)
                if stage in self.stages:
                    features.append(x)
        return features


def _move_strides_to_first_convolution(net: torchvision.models.ResNet) -> None:
    for stage in (net.layer2, net.layer3, net.layer4):
        first = stage[0]
        first.conv1.stride, first.conv2.stride = first.conv2.stride, first.conv1.stride


def load_backbone_weights(backbone: nn.Module, weights: str, *, download: bool = False) -> None:
    """Load ``weights`` into the backbone.

    Args:
        backbone: a :class:`ResNetFeatures`, changed in place.
        weights: a .safetensors file in torchvision's key names, or the name of torchvision weights ("IMAGENET1K_V2",
            "DEFAULT"), which are taken from torch's cache.
        download: let torchvision fetch named weights that are not in the cache.
    """
    if not isinstance(backbone, ResNetFeatures):
        raise InputError(f"backbone weights {weights!r}: {type(backbone).__name__} is not one of our ResNets")
    path = Path(weights)
    if path.suffix in {".pth", ".pt", ".bin", ".ckpt", ".pkl"}:
        raise InputError(f"{path}: pickled weights are never opened; save them as .safetensors first")
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
    """The two stride layouts share all key names and shapes, so only the file's own word can tell them apart."""
    if _says_v1(arch) and name != "resnet50_v1":
        raise InputError(f"{path}: holds {arch!r}, which {name} cannot use; choose --backbone resnet50_v1")


def _says_v1(arch: str) -> bool:
    """v1, but not v1.5, which is torchvision's layout."""
    return re.search(r"v1(?![.\d])", arch) is not None


def backbone_of(weights: str) -> str:
    """The network that a weights file says it belongs to; an error where it does not say."""
    path = Path(weights)
    if path.suffix == ".safetensors":
        _, metadata = read_safetensors(path)
        if _says_v1(metadata.get("arch", "")):
            return "resnet50_v1"
    raise InputError(
        f"backbone weights {weights!r}: which network are they for? Name it: --backbone {', '.join(ARCHITECTURES)} "
        "(resnet50 is torchvision's layout, resnet50_v1 the original one; a file does not show the difference)"
    )


def _named_weights(name: str, weights: str, download: bool) -> tuple[Path, dict[str, Tensor]]:
    if name == "resnet50_v1":
        raise InputError(f"backbone weights {weights!r}: no such file, and torchvision has none for resnet50_v1")
    enum = torchvision.models.get_model_weights(name)
    if weights not in enum.__members__:
        names = ", ".join(enum.__members__)
        raise InputError(f"backbone weights {weights!r}: no such file, and torchvision's for {name} are {names}")
    url = enum[weights].url
    path = _cache_path(url)
    if not path.is_file() and not download:
        raise InputError(
            f"backbone weights {weights}: {path.name} is not in torch's cache ({path.parent}); "
            "give --download to fetch it with torchvision, or name a .safetensors file"
        )
    try:  # weights_only: tensors alone are read, no pickled code is run
        state = enum[weights].get_state_dict(progress=True, check_hash=True, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError) as error:  # no network, a full disk, a wrong checksum
        raise InputError(f"backbone weights {weights}: {path.name} could not be fetched or read ({error})") from error
    return path, state


def _cache_path(url: str) -> Path:
    return Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]

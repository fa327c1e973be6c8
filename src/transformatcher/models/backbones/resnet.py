"""Image → features of every bottleneck of the chosen ResNet stages (section 4.1).

The networks are torchvision's, module for module and key for key; they stand here because importing torchvision takes
longer than matching two photos. Weights come from a local safetensors file or from torchvision's own weights, and are
never fetched unless the caller says so.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.errors import InputError
from transformatcher.models.backbones.timm import TimmFeatures, load_timm_weights
from transformatcher.models.weights_io import load_strictly, read_safetensors, refuse_pickles
from transformatcher.schema import Size

# Bottlenecks of each stage.
ARCHITECTURES = {"resnet50": (3, 4, 6, 3), "resnet50_v1": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3)}
EXPANSION = 4  # channels that leave a bottleneck, as a multiple of those inside


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolution, each with its batch norm, beside a shortcut (He et al. 2016).

    Args:
        channels: that come in.
        width: channels inside.
        stride: of the block.
        first: it is its stage's first, whose shortcut is a convolution.
        stride_in_3x3: where the stride sits: torchvision's place, or in the first 1×1 convolution, the original one.
    """

    def __init__(self, channels: int, width: int, stride: int, *, first: bool, stride_in_3x3: bool) -> None:
        super().__init__()
        out = EXPANSION * width
        strides = (1, stride) if stride_in_3x3 else (stride, 1)
        self.conv1 = nn.Conv2d(channels, width, 1, strides[0], bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, strides[1], padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.downsample: nn.Sequential | None = None
        if first:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Float[Tensor, "b c h w"], frozen_norms: bool = False) -> Float[Tensor, "b _ _ _"]:
        """Features in, features out."""
        shortcut = conv_norm(x, *self.shortcut, frozen_norms) if self.shortcut else x
        x = conv_norm(x, self.conv1, self.bn1, frozen_norms).relu_()
        x = conv_norm(x, self.conv2, self.bn2, frozen_norms).relu_()
        return (conv_norm(x, self.conv3, self.bn3, frozen_norms) + shortcut).relu_()

    @property
    def shortcut(self) -> tuple[nn.Conv2d, nn.BatchNorm2d] | None:
        """What the shortcut is made of, where it is more than a wire."""
        if self.downsample is None:
            return None
        conv, norm = self.downsample
        return cast(nn.Conv2d, conv), cast(nn.BatchNorm2d, norm)


class ResNetFeatures(nn.Module):
    """A ResNet that returns the outputs (after ReLU) of all bottlenecks of ``stages``.

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
        self.frozen_norms = False  # batch norms keep their statistics, even in training; faster
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = 64
        for stage in range(1, max(stages) + 1):
            width = 32 * 2**stage
            blocks = []
            for number in range(ARCHITECTURES[name][stage - 1]):
                stride = 2 if number == 0 and stage > 1 else 1
                blocks.append(
                    Bottleneck(channels, width, stride, first=number == 0, stride_in_3x3=name != "resnet50_v1")
                )
                channels = EXPANSION * width
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def stage_of_layer(self) -> list[int]:
        """The stage of each feature map that an image gives."""
        return [stage for stage in self.stages for _ in self.bottlenecks(stage)]

    def bottlenecks(self, stage: int) -> list[Bottleneck]:
        """Those of one stage, in order."""
        return cast(list[Bottleneck], list(self.get_submodule(f"layer{stage}").children()))

    @property
    def n_layers(self) -> int:
        """How many feature maps an image gives, and so how many channels the correlation has."""
        return len(self.stage_of_layer)

    def forward(self, images: Float[Tensor, "b 3 h w"]) -> list[Float[Tensor, "b _ _ _"]]:
        """Normalised RGB images → one feature map for each bottleneck of the chosen stages."""
        features = []
        x = self.maxpool(conv_norm(images, self.conv1, self.bn1, self.frozen_norms).relu_())
        for stage in range(1, max(self.stages) + 1):
            for bottleneck in self.bottlenecks(stage):
                x = bottleneck(x, self.frozen_norms)
                if stage in self.stages:
                    features.append(x)
        return features


def conv_norm(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, frozen: bool) -> Tensor:
    """A convolution and the batch norm behind it."""
    return folded_conv(x, conv, norm) if frozen else norm(conv(x))


def folded_conv(x: Float[Tensor, "b c h w"], conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Float[Tensor, "b _ _ _"]:
    """A convolution and the batch norm behind it, whose statistics stand still, as one convolution.

    Gradients reach all their weights. What is saved are the batch norm's own passes over the features.
    """
    assert norm.running_var is not None
    assert norm.running_mean is not None
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    bias = norm.bias - norm.running_mean * scale
    weight = conv.weight * scale[:, None, None, None]
    return F.conv2d(x, weight, bias, conv.stride, conv.padding, conv.dilation, conv.groups)


def grid_of(image_size: Size, stage: int) -> Size:
    """(h, w) of a stage's feature maps: the first has a quarter of the pixels' rows, each next one half, rounded up."""
    h, w = (-(-pixels // 2 ** (stage + 1)) for pixels in image_size)
    return h, w


def load_backbone_weights(backbone: nn.Module, weights: str, *, download: bool = False) -> None:
    """Load ``weights`` into the backbone.

    Args:
        backbone: a :class:`ResNetFeatures` or :class:`TimmFeatures`, changed in place.
        weights: a .safetensors file in torchvision's key names, or the name of torchvision weights ("IMAGENET1K_V2",
            "DEFAULT"), which are taken from torch's cache; for networks of timm, see :func:`load_timm_weights`.
        download: let torchvision fetch named weights that are not in the cache.
    """
    if isinstance(backbone, TimmFeatures):
        load_timm_weights(backbone, weights, download=download)
        return
    if not isinstance(backbone, ResNetFeatures):
        raise InputError(f"backbone weights {weights!r}: {type(backbone).__name__} is not one of our ResNets")
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
    """The two stride layouts share all key names and shapes, so only the file's own word can tell them apart."""
    if _says_v1(arch) and name != "resnet50_v1":
        raise InputError(f"{path}: holds {arch!r}, which {name} cannot use; choose the backbone resnet50_v1")


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
        "(resnet50 is torchvision's layout, resnet50_v1 the original one; a file does not show which) or timm:NAME"
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
        raise InputError(
            f"backbone weights {weights}: {path.name} is not in torch's cache ({path.parent}); "
            "eval and match fetch it with --download; or name a .safetensors file"
        )
    try:  # weights_only: tensors alone are read, no pickled code is run
        state = enum[weights].get_state_dict(progress=True, check_hash=True, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError) as error:  # no network, a full disk, a wrong checksum
        raise InputError(f"backbone weights {weights}: {path.name} could not be fetched or read ({error})") from error
    return path, state


def _cache_path(url: str) -> Path:
    return Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]

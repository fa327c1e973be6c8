"""Image → features of the bottlenecks of some ResNet stages (section 4.1).

The networks are torchvision's, with the same modules and state-dict keys. They are written out here because importing
torchvision takes longer than matching two photos.
"""

from collections.abc import Sequence
from typing import cast

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.errors import InputError
from transformatcher.models.backbones.backbone import Backbone, Layers, choose_layers
from transformatcher.schema import Size

# Number of bottlenecks in each stage.
ARCHITECTURES = {"resnet50": (3, 4, 6, 3), "resnet50_v1": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3)}
EXPANSION = 4  # output channels of a bottleneck, as a multiple of its inner channels


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolution, each with a batch norm, beside a shortcut (He et al. 2016).

    Args:
        channels: input channels.
        width: inner channels.
        stride: of the block.
        first: whether it is the first of its stage, whose shortcut is a convolution.
        stride_in_3x3: whether the 3×3 convolution has the stride, as in torchvision, or the first 1×1 convolution, as
            in the original network.
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

    def forward(self, x: Float[Tensor, "b c h w"], norms_frozen: bool = False) -> Float[Tensor, "b _ _ _"]:
        """Features → features of the next layer, after its ReLU."""
        shortcut = conv_norm(x, *self.shortcut, norms_frozen) if self.shortcut else x
        x = conv_norm(x, self.conv1, self.bn1, norms_frozen).relu_()
        x = conv_norm(x, self.conv2, self.bn2, norms_frozen).relu_()
        return (conv_norm(x, self.conv3, self.bn3, norms_frozen) + shortcut).relu_()

    @property
    def shortcut(self) -> tuple[nn.Conv2d, nn.BatchNorm2d] | None:
        """Convolution and batch norm of the shortcut; None if it is the identity."""
        if self.downsample is None:
            return None
        conv, norm = self.downsample
        return cast(nn.Conv2d, conv), cast(nn.BatchNorm2d, norm)


class ResNetFeatures(Backbone):
    """A ResNet that returns the outputs (after ReLU) of bottlenecks of ``stages``.

    Args:
        name: one of ARCHITECTURES. ``resnet50_v1`` is the network of He et al. as first published: the first 1×1
            convolution of a stage has its stride, where torchvision's ``resnet50`` has it in the 3×3 convolution.
        stages: which of torchvision's layer1 … layer4; (3, 4) are the paper's conv4_x and conv5_x. Stages after the
            last of them are not built.
        layers: which bottlenecks of these stages, numbered from 0 across the stages. "all"; "every-other", counted from
            the deepest; or their numbers.
        image_size: (h, w) of the images that ``grid`` is given for. The network takes images of any size.
    """

    def __init__(
        self,
        name: str = "resnet101",
        stages: Sequence[int] = (3, 4),
        layers: Layers = "all",
        image_size: Size = (240, 240),
    ) -> None:
        super().__init__()
        if name not in ARCHITECTURES:
            raise InputError(f"backbone {name!r} is none of {', '.join(ARCHITECTURES)}")
        if not stages or not set(stages) <= {1, 2, 3, 4}:
            raise InputError(f"backbone stages {list(stages)}: choose some of 1, 2, 3, 4")
        self.name = name
        self.stages = tuple(stages)
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
        n = len(self.stage_of_layer)
        self.layers = choose_layers(layers, range(n), n, f"{name} with stages {list(stages)}")
        self.grid = grid_of(image_size, min(self.stage_of_layer[layer] for layer in self.layers))

    @property
    def stage_of_layer(self) -> list[int]:
        """The stage of each layer that can be chosen."""
        return [stage for stage in self.stages for _ in range(ARCHITECTURES[self.name][stage - 1])]

    def bottlenecks(self, stage: int) -> list[Bottleneck]:
        """The bottlenecks of one stage, in order."""
        return cast(list[Bottleneck], list(self.get_submodule(f"layer{stage}").children()))

    def forward(self, images: Float[Tensor, "b 3 h w"]) -> list[Float[Tensor, "b _ _ _"]]:
        """Normalised RGB images → one feature map for each chosen bottleneck."""
        features = []
        x = self.maxpool(conv_norm(images, self.conv1, self.bn1, self.norms_frozen).relu_())
        for stage in range(1, max(self.stages) + 1):
            for bottleneck in self.bottlenecks(stage):
                x = bottleneck(x, self.norms_frozen)
                if stage in self.stages:
                    features.append(x)
        return [features[layer] for layer in self.layers]


def conv_norm(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, norms_frozen: bool) -> Tensor:
    """A convolution and the batch norm after it."""
    return folded_conv(x, conv, norm) if norms_frozen else norm(conv(x))


def folded_conv(x: Float[Tensor, "b c h w"], conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Float[Tensor, "b _ _ _"]:
    """A convolution and the batch norm after it, with the stored statistics, as one convolution.

    Gradients reach the weights of both. It saves the batch norm's own passes over the features.
    """
    assert norm.running_var is not None
    assert norm.running_mean is not None
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    bias = norm.bias - norm.running_mean * scale
    weight = conv.weight * scale[:, None, None, None]
    return F.conv2d(x, weight, bias, conv.stride, conv.padding, conv.dilation, conv.groups)


def grid_of(image_size: Size, stage: int) -> Size:
    """(h, w) of a stage's feature maps: a quarter of the image for stage 1, half of that for each next, rounded up."""
    h, w = (-(-pixels // 2 ** (stage + 1)) for pixels in image_size)
    return h, w

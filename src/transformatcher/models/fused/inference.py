"""A trained model → the same model for fast inference: batch norms folded, bfloat16, a CUDA graph."""

from collections.abc import Callable
from copy import deepcopy
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from transformatcher.models.backbones.backbone import Backbone
from transformatcher.models.backbones.resnet import Bottleneck, ResNetFeatures
from transformatcher.models.block import Block
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.schema import Flow

Result = TypeVar("Result")


def for_inference(model: TransforMatcher, dtype: torch.dtype = torch.bfloat16) -> TransforMatcher:
    """A copy of the model with frozen weights whose backbone runs in ``dtype``, channels last.

    The batch norms of a ResNet are folded into its convolutions, in float32, so that their statistics are not rounded.
    """
    ready = deepcopy(model).eval().requires_grad_(False)
    for module in ready.modules():
        if isinstance(module, Block):
            module.freeze_weights()
    if isinstance(ready.backbone, ResNetFeatures):
        ready.backbone = FoldedResNet(ready.backbone)
    ready.backbone.to(dtype).to(memory_format=torch.channels_last)
    return ready


class FoldedResNet(Backbone):
    """A ResNet for inference only: each convolution with its bias, ReLU and residual sum is one cuDNN call."""

    def __init__(self, net: ResNetFeatures) -> None:
        super().__init__()
        self.stages, self.layers, self.grid = net.stages, net.layers, net.grid
        self.stem = fuse_conv_bn_eval(net.conv1, net.bn1)
        self.maxpool = net.maxpool
        self.bottlenecks = nn.ModuleList(
            nn.ModuleList(FoldedBottleneck(block) for block in net.bottlenecks(stage))
            for stage in range(1, max(net.stages) + 1)
        )

    def forward(self, images: Float[Tensor, "b 3 h w"]) -> list[Float[Tensor, "b _ _ _"]]:
        """As :class:`ResNetFeatures`."""
        features = []
        x = self.maxpool(conv_relu(images.contiguous(memory_format=torch.channels_last), self.stem))
        for stage, blocks in enumerate(self.bottlenecks, 1):
            for block in blocks.children():
                x = block(x)
                if stage in self.stages:
                    features.append(x)
        return [features[layer] for layer in self.layers]


class FoldedBottleneck(nn.Module):
    """A bottleneck without batch norms: conv-ReLU, conv-ReLU, conv + shortcut, ReLU."""

    def __init__(self, block: Bottleneck) -> None:
        super().__init__()
        self.conv1 = fuse_conv_bn_eval(block.conv1, block.bn1)
        self.conv2 = fuse_conv_bn_eval(block.conv2, block.bn2)
        self.conv3 = fuse_conv_bn_eval(block.conv3, block.bn3)
        self.shortcut: nn.Conv2d | None = None
        if block.shortcut is not None:
            self.shortcut = fuse_conv_bn_eval(*block.shortcut)
            assert self.conv3.bias is not None
            assert self.shortcut.bias is not None
            self.conv3.bias.data += self.shortcut.bias.data  # one bias for the sum
            self.shortcut.bias = None

    def forward(self, x: Tensor) -> Tensor:
        """Features → features of the next layer, after its ReLU."""
        shortcut = x if self.shortcut is None else self.shortcut(x)
        return conv_relu(conv_relu(conv_relu(x, self.conv1), self.conv2), self.conv3, shortcut)


def conv_relu(x: Tensor, conv: nn.Conv2d, shortcut: Tensor | None = None) -> Tensor:
    """ReLU(conv(x) + shortcut)."""
    if not x.is_cuda:
        return (conv(x) if shortcut is None else conv(x) + shortcut).relu()
    assert not isinstance(conv.padding, str)
    options = (conv.stride, conv.padding, conv.dilation, conv.groups)
    if shortcut is None:
        return torch.cudnn_convolution_relu(x, conv.weight, conv.bias, *options)
    return torch.cudnn_convolution_add_relu(x, conv.weight, shortcut, 1.0, conv.bias, *options)


def capture_cuda_graph(function: Callable[[], Result], warm_up: int = 3) -> Callable[[], Result]:
    """A function of fixed tensors → a function that replays it as a CUDA graph, without Python's overhead.

    The result's tensors belong to the graph: each call overwrites them.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compile kernels and choose algorithms outside the graph
        for _ in range(warm_up):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()

    def replay() -> Result:
        graph.replay()
        return result

    return replay


def cuda_graph(
    model: TransforMatcher, src: Float[Tensor, "b 3 h w"], trg: Float[Tensor, "b 3 h2 w2"]
) -> Callable[[Tensor, Tensor], Flow]:
    """``model`` as a CUDA graph for images of these shapes."""
    inputs = src.clone(), trg.clone()
    with torch.inference_mode():
        replay = capture_cuda_graph(lambda: model(*inputs))

    def run(src: Tensor, trg: Tensor) -> Flow:
        inputs[0].copy_(src)
        inputs[1].copy_(trg)
        return replay()

    return run

"""A trained model → the same model for fast inference: batch norms folded, weights packed, bfloat16, CUDA graphs."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from threading import Event, Lock
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from transformatcher.models.backbones.backbone import Backbone
from transformatcher.models.backbones.resnet import Bottleneck, ResNetFeatures
from transformatcher.models.block import Block
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.schema import Flow, Size

Result = TypeVar("Result")

MAX_GRAPHS = 4  # CUDA graphs of a stage that are kept, each for its own shapes
_larger_graph = Event()  # a graph of several stages is prepared: none of them needs a graph of its own


def for_inference(
    model: TransforMatcher, dtype: torch.dtype = torch.bfloat16, image_size: Size = (240, 240)
) -> TransforMatcher:
    """A copy of the model with frozen weights whose backbone runs in ``dtype``; the model itself is not changed.

    The batch norms of a ResNet are folded into its convolutions, in float32, so that their statistics are not rounded.
    On a CPU their weights are packed once. On CUDA each stage is replayed as a graph once the same shapes come again.

    Args:
        model: on the device that it is to run on.
        dtype: of the backbone; see :func:`~transformatcher.models.fused.precision.choose_dtype`.
        image_size: (h, w) of most images, for which weights are packed. Other sizes work, too.

    Example:
        >>> fast = for_inference(Matcher.from_pretrained().model, torch.float32)
    """
    backbone = model.backbone
    ready = deepcopy(model, {id(backbone): backbone})  # all but the backbone
    for name, part in ready.named_children():
        if name != "backbone":
            part.eval().requires_grad_(False)
    for module in ready.modules():
        if isinstance(module, Block):
            module.freeze_weights()
    weight = next(backbone.parameters(), torch.empty(0))
    if isinstance(backbone, ResNetFeatures):
        folded = FoldedResNet(backbone).eval().requires_grad_(False).to(dtype).to(memory_format=torch.channels_last)
        ready.backbone = folded
        if weight.device.type == "cpu":
            folded.pack(image_size)
    elif weight.dtype != dtype:
        ready.backbone = deepcopy(backbone).eval().requires_grad_(False).to(dtype)
    if weight.device.type == "cpu":  # where all that follows is computed in float32
        ready.correlation.register_forward_hook(lambda _module, _inputs, corr: corr.float())
    if weight.is_cuda:
        if ready.backbone is backbone:
            ready.backbone = deepcopy(backbone).eval().requires_grad_(False)
        for stage in (ready.backbone, ready.correlation, ready.refiner):
            stage.forward = GraphOnRepeat(stage.forward)
    return ready


# ---------------------------------------------------------------- the backbone


class FoldedResNet(Backbone):
    """A ResNet for inference only: each convolution with its bias, ReLU and residual sum is one call of a library."""

    def __init__(self, net: ResNetFeatures) -> None:
        super().__init__()
        self.stages, self.layers, self.grid = net.stages, net.layers, net.grid
        self.stem = FoldedConv(fuse_conv_bn_eval(net.conv1, net.bn1))
        self.maxpool = net.maxpool
        self.bottlenecks = nn.ModuleList(
            nn.ModuleList(FoldedBottleneck(block) for block in net.bottlenecks(stage))
            for stage in range(1, max(net.stages) + 1)
        )

    def forward(self, images: Float[Tensor, "b 3 h w"]) -> list[Float[Tensor, "b _ _ _"]]:
        """As :class:`ResNetFeatures`. With packed weights images go through one by one, which is faster on a CPU."""
        if self.stem.packed is not None and len(images) > 1:
            return [torch.cat(layer) for layer in zip(*(self(image[None]) for image in images), strict=True)]
        features = []
        x = self.maxpool(self.stem(images.contiguous(memory_format=torch.channels_last)))
        for stage, blocks in enumerate(self.bottlenecks, 1):
            for block in blocks.children():
                x = block(x)
                if stage in self.stages:
                    features.append(x)
        return [features[layer] for layer in self.layers]

    @torch.no_grad()
    def pack(self, image_size: Size) -> None:
        """Bring the weights into the order in which oneDNN multiplies an image of this size fastest, if it is here."""
        if not can_pack():
            return
        convs = [module for module in self.modules() if isinstance(module, FoldedConv)]
        hooks = [conv.register_forward_pre_hook(lambda conv, inputs: conv.pack(inputs[0].shape)) for conv in convs]
        self(torch.zeros(1, 3, *image_size, dtype=next(self.parameters()).dtype))
        for hook in hooks:
            hook.remove()


class FoldedBottleneck(nn.Module):
    """A bottleneck without batch norms: conv-ReLU, conv-ReLU, conv + shortcut, ReLU."""

    def __init__(self, block: Bottleneck) -> None:
        super().__init__()
        self.conv1 = FoldedConv(fuse_conv_bn_eval(block.conv1, block.bn1))
        self.conv2 = FoldedConv(fuse_conv_bn_eval(block.conv2, block.bn2))
        last = fuse_conv_bn_eval(block.conv3, block.bn3)
        self.shortcut: FoldedConv | None = None
        if block.shortcut is not None:
            shortcut = fuse_conv_bn_eval(*block.shortcut)
            assert last.bias is not None
            assert shortcut.bias is not None
            last.bias.data += shortcut.bias.data  # one bias for the sum
            shortcut.bias = None
            self.shortcut = FoldedConv(shortcut, relu=False)
        self.conv3 = FoldedConv(last)

    def forward(self, x: Tensor) -> Tensor:
        """Features → features of the next layer, after its ReLU."""
        shortcut = x if self.shortcut is None else self.shortcut(x)
        return self.conv3(self.conv2(self.conv1(x)), shortcut)


class FoldedConv(nn.Module):
    """A convolution for inference: ReLU(conv(x) + shortcut), perhaps without ReLU, in one call of cuDNN or oneDNN."""

    def __init__(self, conv: nn.Conv2d, *, relu: bool = True) -> None:
        super().__init__()
        assert not isinstance(conv.padding, str)
        self.weight: Tensor | None = conv.weight
        self.bias = conv.bias
        self.relu = relu
        self.stride, self.padding = conv.stride, conv.padding
        self.packed: Tensor | None = None

    def forward(self, x: Float[Tensor, "b c h w"], shortcut: Tensor | None = None) -> Float[Tensor, "b _ _ _"]:
        """ReLU(conv(x) + shortcut)."""
        options = (self.stride, self.padding, (1, 1), 1)
        if self.packed is not None:
            relu: tuple[Any, ...] = ("relu" if self.relu else "none", [], "")
            onednn = torch.ops.mkldnn._convolution_pointwise  # what torch.compile calls, too
            # The padding comes before the stride here.
            arguments = (self.packed, self.bias, self.padding, self.stride, (1, 1), 1)
            if shortcut is None:
                return onednn(x, *arguments, *relu)
            return onednn.binary(x, shortcut, *arguments, "add", 1.0, *relu)
        assert self.weight is not None
        if x.is_cuda and self.relu:
            if shortcut is None:
                return torch.cudnn_convolution_relu(x, self.weight, self.bias, *options)
            return torch.cudnn_convolution_add_relu(x, self.weight, shortcut, 1.0, self.bias, *options)
        x = torch.nn.functional.conv2d(x, self.weight, self.bias, *options)
        x = x if shortcut is None else x + shortcut
        return x.relu() if self.relu else x

    @torch.no_grad()
    def pack(self, shape: torch.Size) -> None:
        """Pack the weight for inputs of this shape, and drop the plain one. Only on a CPU, see :func:`can_pack`."""
        assert self.weight is not None
        self.packed = torch.ops.mkldnn._reorder_convolution_weight(
            self.weight, self.padding, self.stride, (1, 1), 1, list(shape)
        )
        self.weight = None


@cache
def can_pack() -> bool:
    """Whether torch has oneDNN here and its fused convolutions are right. They are not part of torch's public API."""
    generator = torch.Generator().manual_seed(0)
    plain = nn.Conv2d(8, 8, 3, padding=1)
    plain.weight.data.normal_(generator=generator)
    x, shortcut = torch.randn(2, 1, 8, 9, 7, generator=generator).contiguous(memory_format=torch.preserve_format)
    conv = FoldedConv(plain).requires_grad_(False)
    expected = conv(x), conv(x, shortcut)
    try:
        conv.pack(x.shape)
        return all(
            torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)
            for found, wanted in zip((conv(x), conv(x, shortcut)), expected, strict=True)
        )
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False


# ---------------------------------------------------------------- CUDA graphs


class GraphOnRepeat:
    """A stage → the same stage, replayed as a CUDA graph when shapes come again, without Python's overhead.

    Shapes that come once are computed as usual. Results are copies, which later calls do not overwrite.

    Args:
        function: of tensors and lists of tensors on CUDA; returns a tensor or a list of them.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._graphs: OrderedDict[Any, tuple[list[Tensor], Callable[[], Any]] | None] = OrderedDict()
        self._lock = Lock()

    def __call__(self, *arguments: Tensor | Sequence[Tensor]) -> Any:
        """The function's result for these arguments."""
        if torch.is_grad_enabled() or _larger_graph.is_set() or torch.cuda.is_current_stream_capturing():
            return self.function(*arguments)
        tensors = [t for argument in arguments for t in ([argument] if isinstance(argument, Tensor) else argument)]
        key = (
            tuple((len(a) if not isinstance(a, Tensor) else 0) for a in arguments),
            tuple((tuple(t.shape), t.dtype, t.device) for t in tensors),
        )
        with self._lock:
            known = key in self._graphs
            graph = self._graphs.get(key)
            if not known:
                self._remember(key, None)
                return self.function(*arguments)
            if graph is None:
                graph = self._capture(arguments, tensors)
            self._remember(key, graph)
            inputs, replay = graph
            for own, given in zip(inputs, tensors, strict=True):
                own.copy_(given)
            result = replay()
            return result.clone() if isinstance(result, Tensor) else [t.clone() for t in result]

    def _capture(
        self, arguments: Sequence[Tensor | Sequence[Tensor]], tensors: Sequence[Tensor]
    ) -> tuple[list[Tensor], Callable[[], Any]]:
        inputs = [t.clone() for t in tensors]
        own = iter(inputs)
        copies = [
            next(own) if isinstance(argument, Tensor) else [next(own) for _ in argument] for argument in arguments
        ]
        return inputs, capture_cuda_graph(lambda: self.function(*copies))

    def _remember(self, key: Any, graph: tuple[list[Tensor], Callable[[], Any]] | None) -> None:
        self._graphs[key] = graph
        self._graphs.move_to_end(key)
        while len(self._graphs) > MAX_GRAPHS:
            self._graphs.popitem(last=False)


def capture_cuda_graph(function: Callable[[], Result], warm_up: int = 3) -> Callable[[], Result]:
    """A function of fixed tensors → a function that replays it as a CUDA graph, without Python's overhead.

    The result's tensors belong to the graph: each call overwrites them.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    _larger_graph.set()
    try:
        with torch.cuda.stream(side):  # compile kernels and choose algorithms outside the graph
            for _ in range(warm_up):
                function()
    finally:
        _larger_graph.clear()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()

    def replay(_kept: Callable[[], Result] = function) -> Result:  # the graph reads the tensors that the function holds
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

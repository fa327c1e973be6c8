"""Settings of a model and a batch → time, memory, and the time that the device's peak rates allow at best."""

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from transformatcher.config import ModelConfig, model_config
from transformatcher.models.build import build_matcher
from transformatcher.models.fused.inference import capture_cuda_graph, for_inference
from transformatcher.models.losses import keypoint_loss
from transformatcher.models.match2match import MatchToMatch
from transformatcher.models.transformatcher import TransforMatcher

STAGES = ("backbone", "correlation", "refiner", "flow")
Mode = Literal["infer", "train"]
BackendName = Literal["fused", "eager"]  # fused: on CUDA also in bfloat16 and as a CUDA graph
N_KEYPOINTS = 10

Runnable = Callable[[], Any]


@dataclass(frozen=True)
class DevicePeaks:
    """The highest rates of a device, as measured by :func:`measure_device_peaks`."""

    bytes_per_s: float  # read and written by a copy
    flops_per_s: float  # of matrix products: bfloat16 on a GPU, float32 on a CPU


@dataclass(frozen=True)
class SpeedResult:
    """Time and memory of one combination of settings."""

    mode: Mode
    backend: BackendName
    batch: int
    size: int
    backbone: str
    variant: str
    ms_per_pair: float
    peak_gib: float
    stages_ms: dict[str, float]  # of STAGES, per pair
    floor_ms: float  # per pair: the lower bound by the device's peak rates
    gflops: float  # of one pair, forward, counted with the eager backend
    matches: int  # cells of the correlation map of one pair


def measure_speed(
    mode: Mode, backend: BackendName, *, batch: int, size: int, backbone: str, variant: str, device: torch.device,
    peaks: DevicePeaks, seconds: float = 1.0,
) -> SpeedResult:  # fmt: skip
    """Time one combination with random weights and images.

    Args:
        mode: inference, or steps of an optimiser.
        backend: of the model.
        batch: pairs at a time.
        size: side of the square images in pixels.
        backbone: its name, as in a config.
        variant: of the model, as in a config.
        device: to run on.
        peaks: of the device, for the lower bound.
        seconds: to spend on the whole; each stage gets a quarter of it.
    """
    torch.manual_seed(0)
    before = _allocated(device)
    settings = {"variant": variant, "backbone": backbone, "image_size": size, "sampler": "bilinear"}
    model = build_matcher(model_config(settings)).to(device)
    cost = count_pair_cost(model, size, device)
    model.set_backend("auto" if backend == "fused" else "eager")
    images = torch.randn(2 * batch, 3, size, size, device=device)
    if mode == "train":
        run, stages = _training_stages(model.train(), images, backend)
    else:
        model = for_inference(model) if backend == "fused" and device.type == "cuda" else model
        run, stages = _inference_stages(model, images)
    graph = backend == "fused" and device.type == "cuda"
    with _peak_memory(device, before) as peak:
        total = _time(capture_cuda_graph(run) if graph else run, device, seconds)
    times = {
        name: _time(capture_cuda_graph(stage) if graph else stage, device, seconds / 4)
        for name, stage in stages.items()
    }
    floor = cost.floor_ms(peaks, batch) * (3 if mode == "train" else 1)  # the backward pass costs two forward passes
    return SpeedResult(
        mode=mode,
        backend=backend,
        batch=batch,
        size=size,
        backbone=backbone,
        variant=variant,
        ms_per_pair=round(total / batch, 4),
        peak_gib=round(peak(), 3),
        stages_ms={name: round(ms / batch, 4) for name, ms in times.items()},
        floor_ms=round(floor, 4),
        gflops=round(cost.flops / 1e9, 2),
        matches=cost.matches,
    )


def inference_cost(
    config: ModelConfig, device: torch.device, batch: int = 16, seconds: float = 0.5
) -> dict[str, float]:
    """``ms_per_pair``, ``peak_gib`` and ``gflops`` per pair of inference with random weights of this config."""
    torch.manual_seed(0)
    before = _allocated(device)
    model = build_matcher(config).to(device)
    images = torch.randn(2 * batch, 3, *config.image_size, device=device)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        model.set_backend("eager")
        model(images[:1], images[1:2])
        model.set_backend("auto")
    run, _ = _inference_stages(for_inference(model) if device.type == "cuda" else model, images)
    with _peak_memory(device, before) as peak:
        ms = _time(capture_cuda_graph(run) if device.type == "cuda" else run, device, seconds)
    return {
        "ms_per_pair": round(ms / batch, 4),
        "peak_gib": round(peak(), 3),
        "gflops": round(counter.get_total_flops() / 1e9, 2),
    }


def _inference_stages(model: TransforMatcher, images: Tensor) -> tuple[Runnable, dict[str, Runnable]]:
    """The forward pass of a batch (sources first, then targets), and each stage alone on inputs of its own."""
    batch = len(images) // 2

    def without_grad(function: Runnable) -> Runnable:
        def run() -> Any:
            with torch.inference_mode():
                return function()

        return run

    @without_grad
    def whole() -> Any:
        return model(images[:batch], images[batch:])

    with torch.inference_mode():
        features = model.encode(images)
        src, trg = [f[:batch] for f in features], [f[batch:] for f in features]
        corr = model.correlation(src, trg)
        refined = model.refiner(corr)
    stages = {
        "backbone": without_grad(lambda: model.encode(images)),
        "correlation": without_grad(lambda: model.correlation(src, trg)),
        "refiner": without_grad(lambda: model.refiner(corr)),
        "flow": without_grad(lambda: model.readout(refined)),
    }
    return whole, stages


def _training_stages(
    model: TransforMatcher, images: Tensor, backend: BackendName
) -> tuple[Runnable, dict[str, Runnable]]:
    """One step of the optimiser, and forward with backward of each stage alone on inputs of its own."""
    batch, device = len(images) // 2, images.device
    use_bfloat16 = backend == "fused" and device.type == "cuda"
    if use_bfloat16:
        model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    kps = torch.rand(batch, N_KEYPOINTS, 2, device=device) * 2 - 1
    visible = torch.ones(batch, N_KEYPOINTS, dtype=torch.bool, device=device)
    optimiser = torch.optim.Adam(model.parameters(), 1e-5, capturable=device.type == "cuda")

    def encode() -> Sequence[Tensor]:
        with torch.autocast(device.type, torch.bfloat16, enabled=use_bfloat16, cache_enabled=False):
            return model.encode(images)

    def step() -> Tensor:
        features = encode()
        flow = model.match([f[:batch] for f in features], [f[batch:] for f in features])
        loss = keypoint_loss(model.transfer(flow, kps), kps, visible)
        optimiser.zero_grad(set_to_none=False)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return loss

    def leaf(x: Tensor) -> Tensor:
        return x.detach().requires_grad_()

    src, trg = ([leaf(f[part]) for f in encode()] for part in (slice(0, batch), slice(batch, None)))
    corr = leaf(model.correlation(src, trg))
    refined = leaf(model.refiner(corr))

    def forward_backward(forward: Runnable) -> Runnable:
        def run() -> None:
            out = forward()
            outputs = list(out) if isinstance(out, list | tuple) else [out]
            torch.autograd.backward(outputs, [torch.ones_like(o) for o in outputs])

        return run

    stages = {
        "backbone": forward_backward(encode),
        "correlation": forward_backward(lambda: model.correlation(src, trg)),
        "refiner": forward_backward(lambda: model.refiner(corr)),
        "flow": forward_backward(lambda: model.readout(refined).trg_norm),
    }
    return step, stages


# ---------------------------------------------------------------- the lower bound


@dataclass(frozen=True)
class PairCost:
    """The least that the forward pass of one pair must move and compute."""

    weight_bytes: int  # read once for a whole batch
    bytes: int
    flops: int
    matches: int

    def floor_ms(self, peaks: DevicePeaks, batch: int) -> float:
        """Milliseconds per pair at the peak rates (roofline): the slower of moving and computing, which overlap."""
        moved = self.bytes + self.weight_bytes / batch
        return 1e3 * max(moved / peaks.bytes_per_s, self.flops / peaks.flops_per_s)


def count_pair_cost(model: TransforMatcher, size: int, device: torch.device) -> PairCost:
    """Operations by torch's counter with the eager backend; bytes by what each stage must read and write at least once.

    Activations and correlation count 2 bytes (bfloat16) on a GPU and 4 on a CPU, matches 4. Every convolution or
    linear layer of the backbone reads its input and writes its output; each block of the refiner reads the matches
    three times and writes them once.
    """
    unit = 2 if device.type == "cuda" else 4
    moved = 0

    def count(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal moved
        moved += unit * (inputs[0].numel() + output.numel())

    layers = [m for m in model.backbone.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    model.set_backend("eager")
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        features = model.encode(torch.zeros(2, 3, size, size, device=device))
        corr = model.correlation([f[:1] for f in features], [f[1:] for f in features])
        flow = model.readout(model.refiner(corr))
    for hook in hooks:
        hook.remove()
    matches = corr[0, 0].numel()
    moved += unit * (sum(f.numel() for f in features) + 2 * corr.numel())
    assert isinstance(model.refiner, MatchToMatch)
    depth, dim = len(model.refiner.blocks), model.refiner.embed.out_features
    moved += 4 * matches * (dim * (4 * depth + 2) + 2) + 4 * flow.trg_norm.numel()
    weights = unit * sum(p.numel() for p in model.parameters())
    return PairCost(weights, moved, counter.get_total_flops(), matches)


def measure_device_peaks(device: torch.device) -> DevicePeaks:
    """Copy bandwidth (bytes read and written) and rate of matrix products of this device."""
    cuda = device.type == "cuda"
    data = torch.empty(2**30 if cuda else 2**26, dtype=torch.uint8, device=device)
    other = torch.empty_like(data)
    copy_ms = _time(lambda: other.copy_(data), device, 0.3)
    n = 8192 if cuda else 1024
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16 if cuda else torch.float32) for _ in range(2))
    product_ms = _time(lambda: a @ b, device, 0.3)
    return DevicePeaks(2e3 * data.numel() / copy_ms, 2e3 * n**3 / product_ms)


# ---------------------------------------------------------------- time and memory


def _time(function: Runnable, device: torch.device, seconds: float) -> float:
    """Median milliseconds of a call, over at least five calls or ``seconds``."""
    times: list[float] = []
    function()
    function()
    start = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - start < seconds and len(times) < 200):
        if device.type == "cuda":
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            before.record()
            function()
            after.record()
            torch.cuda.synchronize(device)
            times.append(before.elapsed_time(after))
        else:
            now = time.perf_counter()
            function()
            times.append(1e3 * (time.perf_counter() - now))
    return sorted(times)[len(times) // 2]


def _allocated(device: torch.device) -> int:
    """Bytes that torch's allocator holds on a GPU after garbage collection; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(device)


@contextmanager
def _peak_memory(device: torch.device, before: int) -> Iterator[Callable[[], float]]:
    """Peak GiB: of torch's allocator on a GPU, minus the bytes it held ``before``; of the whole process on a CPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield lambda: (torch.cuda.max_memory_allocated(device) - before) / 2**30
    else:
        yield _resident_gib


def _resident_gib() -> float:
    """Peak resident memory of this process in GiB."""
    if sys.platform == "win32":
        return float("nan")
    import resource

    unit = 1 if sys.platform == "darwin" else 2**10  # that getrusage counts in
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def device_name(device: torch.device) -> str:
    """The name of a GPU; for a CPU, the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"

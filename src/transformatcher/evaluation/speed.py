"""Settings of a model and a batch → time of the whole and of each stage, memory, and the lower bound of both."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from unittest import mock

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from transformatcher.config import ModelConfig, model_config
from transformatcher.evaluation.floor import DevicePeaks, PairCost, count_pair_cost
from transformatcher.evaluation.timing import Runnable, allocated_bytes, median_ms, peak_memory
from transformatcher.models.build import build_matcher
from transformatcher.models.fused import native
from transformatcher.models.fused.inference import capture_cuda_graph, for_inference
from transformatcher.models.fused.precision import Precision, choose_dtype
from transformatcher.models.losses import keypoint_loss
from transformatcher.models.transformatcher import TransforMatcher

Mode = Literal["infer", "train"]
# fused: what Matcher runs, on CUDA as one graph. torch: the same on a CPU without the library in C.
BackendName = Literal["fused", "torch", "eager"]
N_KEYPOINTS = 10

PairFunction = Callable[[Any, Any], Any]  # another implementation: sources and targets → whatever it makes of them


@dataclass(frozen=True)
class SpeedResult:
    """Time and memory of one combination of settings."""

    mode: Mode
    backend: BackendName
    batch: int
    size: int
    backbone: str
    variant: str
    dtype: str  # of the backbone
    ms_per_pair: float
    peak_gib: float
    stages_ms: dict[str, float]  # of STAGES, per pair
    floor_ms: float  # per pair: the lower bound by the device's peak rates
    stages_floor_ms: dict[str, float]
    gflops: float  # of one pair, forward, counted with the eager backend
    matches: int  # cells of the correlation map of one pair


@dataclass(frozen=True)
class _Row:
    """A model ready to be timed."""

    backend: BackendName
    dtype: torch.dtype
    run: Runnable
    stages: dict[str, Runnable]
    peak_gib: float
    cost: PairCost


def measure_speed(
    mode: Mode, backends: Sequence[BackendName], *, batch: int, size: int, backbone: str, variant: str,
    device: torch.device, peaks: DevicePeaks, precision: Precision = "auto", other: PairFunction | None = None,
    seconds: float = 1.0,
) -> tuple[list[SpeedResult], float | None]:  # fmt: skip
    """Time backends in turn with random weights and images: a result for each, and the milliseconds of ``other``.

    Args:
        mode: inference, or steps of an optimiser.
        backends: of the model.
        batch: pairs at a time.
        size: side of the square images in pixels.
        backbone: its name, as in a config.
        variant: of the model, as in a config.
        device: to run on.
        peaks: of the device, for the lower bound.
        precision: of the backbone in inference, but for the eager backend.
        other: another implementation, which gets the same images, (batch, 3, size, size), and takes turns.
        seconds: to spend on the whole of each; each stage gets a quarter of it.
    """
    rows = [
        _make_row(mode, backend, batch, size, backbone, variant, device, choose_dtype(precision, device))
        for backend in backends
    ]
    runs: dict[str, Runnable] = {row.backend: row.run for row in rows}
    if other is not None:
        images = _images(batch, size, device)
        runs["other"] = lambda: other(images[:batch], images[batch:])
    totals = median_ms(runs, device, seconds)
    stages_ms = {
        stage: median_ms({row.backend: row.stages[stage] for row in rows}, device, seconds / 4)
        for stage in rows[0].stages
    }
    passes = 3 if mode == "train" else 1  # the backward pass costs two forward passes
    results = []
    for row in rows:
        floors = row.cost.floors_ms(peaks, batch, row.dtype, cuda=device.type == "cuda")
        floors = {stage: round(passes * floor, 7) for stage, floor in floors.items()}
        result = SpeedResult(
            mode=mode,
            backend=row.backend,
            batch=batch,
            size=size,
            backbone=backbone,
            variant=variant,
            dtype=str(row.dtype).removeprefix("torch."),
            ms_per_pair=round(totals[row.backend] / batch, 4),
            peak_gib=round(row.peak_gib, 3),
            stages_ms={stage: round(stages_ms[stage][row.backend] / batch, 4) for stage in row.stages},
            floor_ms=round(sum(floors.values()), 7),
            stages_floor_ms=floors,
            gflops=round(row.cost.flops / 1e9, 2),
            matches=row.cost.matches,
        )
        results.append(result)
    return results, totals["other"] / batch if other is not None else None


def _images(batch: int, size: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2 * batch, 3, size, size, generator=generator).to(device)


def _make_row(
    mode: Mode, backend: BackendName, batch: int, size: int, backbone: str, variant: str, device: torch.device,
    dtype: torch.dtype,
) -> _Row:  # fmt: skip
    torch.manual_seed(0)
    before = allocated_bytes(device)
    settings = {"variant": variant, "backbone": backbone, "image_size": size, "sampler": "bilinear"}
    model = build_matcher(model_config(settings)).to(device)
    if backend == "eager" or (mode == "train" and device.type == "cpu"):
        dtype = torch.float32
    cost = count_pair_cost(model, size, device, dtype)
    model.set_backend("eager" if backend == "eager" else "auto")
    images = _images(batch, size, device)
    if mode == "train":
        run, stages = _training_stages(model.train(), images, backend)
    else:
        run, stages = _inference_stages(
            model if backend == "eager" else for_inference(model, dtype, (size, size)), images
        )
    if backend == "torch":
        run, stages = _without_library(run), {name: _without_library(stage) for name, stage in stages.items()}
    graph = backend == "fused" and device.type == "cuda"
    with peak_memory(device, before) as peak:
        run = capture_cuda_graph(run) if graph else run
        run()
    peak_gib = peak()
    if graph:
        stages = {name: capture_cuda_graph(stage) for name, stage in stages.items()}
    return _Row(backend, dtype, run, stages, peak_gib, cost)


def _without_library(function: Runnable) -> Runnable:
    """The function with the passes in PyTorch where the library in C would compute them."""

    def run() -> Any:
        with mock.patch.dict(os.environ, {native.SWITCH: "0"}):
            return function()

    return run


def inference_cost(
    config: ModelConfig, device: torch.device, batch: int = 16, seconds: float = 0.5
) -> dict[str, float]:
    """``ms_per_pair``, ``peak_gib`` and ``gflops`` per pair of inference with random weights of this config."""
    torch.manual_seed(0)
    before = allocated_bytes(device)
    model = build_matcher(config).to(device)
    images = torch.randn(2 * batch, 3, *config.image_size, device=device)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        model.set_backend("eager")
        model(images[:1], images[1:2])
        model.set_backend("auto")
    dtype = choose_dtype("auto", device)
    run, _ = _inference_stages(for_inference(model, dtype, config.image_size), images)
    with peak_memory(device, before) as peak:
        ms = median_ms({"pair": capture_cuda_graph(run) if device.type == "cuda" else run}, device, seconds)["pair"]
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
    use_bfloat16 = backend != "eager" and device.type == "cuda"
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

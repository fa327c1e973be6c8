"""A model and a device → the least time that a pair can take: its bytes and operations at the device's peak rates."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from transformatcher.evaluation.timing import STAGES, median_ms
from transformatcher.models.match2match import MatchToMatch
from transformatcher.models.transformatcher import TransforMatcher


@dataclass(frozen=True)
class DevicePeaks:
    """The highest rates of a device, as measured by :func:`measure_device_peaks`."""

    bytes_per_s: float  # read and written by a copy
    flops_per_s: float  # of matrix products in float32; on a GPU in bfloat16, too
    bfloat16_flops_per_s: float  # of matrix products in bfloat16


@dataclass(frozen=True)
class StageCost:
    """The least that a stage must move and compute for one pair."""

    weight_bytes: int  # read once for a whole batch
    bytes: int
    flops: int

    def floor_ms(self, peaks: DevicePeaks, batch: int, dtype: torch.dtype) -> float:
        """Milliseconds per pair (roofline): the slower of moving and computing, which overlap.

        ``dtype`` is that of the products.
        """
        moved = self.bytes + self.weight_bytes / batch
        rate = peaks.bfloat16_flops_per_s if dtype == torch.bfloat16 else peaks.flops_per_s
        return 1e3 * max(moved / peaks.bytes_per_s, self.flops / rate)


@dataclass(frozen=True)
class PairCost:
    """The costs of all stages of the forward pass of a pair."""

    stages: dict[str, StageCost]  # of STAGES
    matches: int

    @property
    def flops(self) -> int:
        """Of all stages."""
        return sum(stage.flops for stage in self.stages.values())

    def floors_ms(self, peaks: DevicePeaks, batch: int, dtype: torch.dtype, *, cuda: bool) -> dict[str, float]:
        """Milliseconds per pair of each stage.

        Args:
            peaks: of the device.
            batch: pairs at a time.
            dtype: of the backbone. On a CPU, refiner and flow are computed in float32 all the same.
            cuda: whether the device is a GPU.
        """
        low = {name: dtype if cuda or name in ("backbone", "correlation") else torch.float32 for name in self.stages}
        return {name: stage.floor_ms(peaks, batch, low[name]) for name, stage in self.stages.items()}


def count_pair_cost(model: TransforMatcher, size: int, device: torch.device, dtype: torch.dtype) -> PairCost:
    """Operations by torch's counter with the eager backend; bytes by what each stage must read and write at least once.

    Weights, features and, on a GPU, correlation have the size of ``dtype``, matches four bytes. Every convolution or
    linear layer of the backbone reads its input and writes its output; each block of the refiner reads the matches
    three times and writes them once.
    """
    unit, cuda = dtype.itemsize, device.type == "cuda"
    moved = 0

    def count(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal moved
        moved += unit * (inputs[0].numel() + output.numel())

    layers = [m for m in model.backbone.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    model.set_backend("eager")
    flops: dict[str, int] = {}

    def counted(stage: str, function: Callable[[], Any]) -> Any:
        with FlopCounterMode(display=False) as counter:
            result = function()
        flops[stage] = counter.get_total_flops()
        return result

    with torch.inference_mode():
        features = counted("backbone", lambda: model.encode(torch.zeros(2, 3, size, size, device=device)))
        src, trg = [f[:1] for f in features], [f[1:] for f in features]
        corr = counted("correlation", lambda: model.correlation(src, trg))
        refined = counted("refiner", lambda: model.refiner(corr))
        flow = counted("flow", lambda: model.readout(refined))
    for hook in hooks:
        hook.remove()
    matches = corr[0, 0].numel()
    corr_bytes = (unit if cuda else 4) * corr.numel()
    assert isinstance(model.refiner, MatchToMatch)
    depth, dim = len(model.refiner.blocks), model.refiner.embed.out_features
    read_and_written = {
        "backbone": moved,
        "correlation": unit * sum(f.numel() for f in features) + corr_bytes,
        "refiner": corr_bytes + 4 * matches * (dim * (4 * depth + 2) + 1),
        "flow": 4 * matches + 4 * flow.trg_norm.numel(),
    }
    modules: dict[str, nn.Module] = {"backbone": model.backbone, "refiner": model.refiner}
    weights = {name: sum(p.numel() for p in module.parameters()) for name, module in modules.items()}
    stages = {name: StageCost(unit * weights.get(name, 0), read_and_written[name], flops[name]) for name in STAGES}
    return PairCost(stages, matches)


def measure_device_peaks(device: torch.device) -> DevicePeaks:
    """Copy bandwidth (bytes read and written) and rates of matrix products of this device."""
    cuda = device.type == "cuda"
    data = torch.empty(2**30 if cuda else 2**26, dtype=torch.uint8, device=device)
    other = torch.empty_like(data)
    copy_ms = median_ms({"copy": lambda: other.copy_(data)}, device, 0.3)["copy"]
    dtypes = (torch.bfloat16,) if cuda else (torch.float32, torch.bfloat16)
    rates = {dtype: _products_per_s(device, dtype, 8192 if cuda else 1024) for dtype in dtypes}
    low = rates[torch.bfloat16]
    return DevicePeaks(2e3 * data.numel() / copy_ms, rates.get(torch.float32, low), low)


def _products_per_s(device: torch.device, dtype: torch.dtype, n: int) -> float:
    """Operations per second of the product of two n × n matrices."""
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    return 2e3 * n**3 / median_ms({"product": lambda: a @ b}, device, 0.3)["product"]

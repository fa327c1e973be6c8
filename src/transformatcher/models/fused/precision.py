"""What a user asks for and the device → the precision of the backbone; on a CPU, bfloat16 has to prove itself first."""

import sys
import time
from functools import cache
from typing import Literal

import torch
from torch import nn

from transformatcher.models.fused.inference import FoldedConv, can_pack

Precision = Literal["auto", "float32", "bfloat16"]

# Of the self-check: channels in, channels out, kernel, and side of the input, as in a ResNet's stages.
CONVOLUTIONS = ((256, 64, 1, 32), (64, 64, 3, 32), (1024, 256, 1, 16), (256, 256, 3, 16))
MAX_ERROR = 0.02  # of a convolution in bfloat16, relative; rounding explains a third of it
MIN_GAIN = 1.15  # how many times as fast bfloat16 must be
REPEATS = 7


def choose_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """The data type of the backbone.

    ``auto`` is bfloat16 on GPUs that multiply it, and on CPUs where :func:`check_bfloat16` finds it right and faster;
    else float32.

    Example:
        >>> choose_dtype("auto", torch.device("cpu"))
    """
    if precision != "auto":
        return torch.float32 if precision == "float32" else torch.bfloat16
    if device.type == "cuda":
        native = torch.cuda.get_device_capability(device) >= (8, 0)
    else:
        native = device.type == "cpu" and check_bfloat16() == ""
    return torch.bfloat16 if native else torch.float32


@cache
def check_bfloat16() -> str:
    """Why this CPU should not compute in bfloat16; empty if it multiplies bfloat16 rightly and faster than float32.

    It takes a few hundredths of a second, once in a process: some convolutions of a ResNet are timed in both, in turn.
    """
    if not can_pack() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "torch has no bfloat16 convolutions for this CPU"
    gains, errors = zip(*(_compare(*shape) for shape in CONVOLUTIONS), strict=True)
    if max(errors) > MAX_ERROR:
        return f"convolutions in bfloat16 are off by {100 * max(errors):.0f} %"
    gain = sorted(gains)[len(gains) // 2]
    return "" if gain >= MIN_GAIN else f"bfloat16 is only {gain:.2f} times as fast as float32"


@torch.inference_mode()
def _compare(inputs: int, outputs: int, kernel: int, side: int) -> tuple[float, float]:
    """How many times as fast a convolution is in bfloat16, and its relative error."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, inputs, side, side, generator=generator).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(outputs, inputs, kernel, kernel, generator=generator) / (inputs * kernel**2) ** 0.5
    # Processor time, because other processes that run count in the wall clock; on Windows it is too coarse.
    clock = time.perf_counter if sys.platform == "win32" else time.process_time
    runs, seconds = [], []
    for dtype in (torch.float32, torch.bfloat16):
        plain = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2).to(dtype).requires_grad_(False)
        plain.weight.data, plain.bias.data = weight.to(dtype), torch.zeros(outputs, dtype=dtype)  # type: ignore[union-attr]
        conv = FoldedConv(plain, relu=False)
        conv.pack(x.shape)
        runs.append((conv, x.to(dtype)))
    exact, rounded = (conv(image).float() for conv, image in runs)
    for _ in range(REPEATS):
        for conv, image in runs:
            start = clock()
            conv(image)
            seconds.append(clock() - start)
    gain = min(seconds[0::2]) / min(seconds[1::2])
    return gain, float((exact - rounded).norm() / exact.norm())

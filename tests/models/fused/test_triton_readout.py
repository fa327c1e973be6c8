"""The read-out as a Triton kernel: against the eager one, and compiled."""

import pytest
import torch
from helpers.fused import DEVICE, GRIDS, compile_kernel, outcome, worst

from transformatcher.models.flow import KernelSoftArgmax


@pytest.mark.triton
@pytest.mark.parametrize("kernel_on", ["logits", "probabilities", "none"])
@pytest.mark.parametrize("grid", GRIDS[:2])
def test_equals_the_eager_readout(kernel_on, grid):
    readout = KernelSoftArgmax(upsample=2, kernel_sigma=1.7, temperature=0.6, kernel_on=kernel_on)
    refined = torch.randn(2, *grid, device=DEVICE)
    assert worst(outcome(readout, "fused", refined), outcome(readout, "eager", refined)) < 1e-4


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kernel", ["_readout_kernel", "_readout_backward_kernel"])
def test_compiles(kernel):
    compile_kernel("triton_readout", kernel, {"A": 32, "B": 32, "P": 64, "Q": 64, "GAUSSIAN": 0}, warps=4)

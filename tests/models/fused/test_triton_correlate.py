"""The cosine map as a Triton kernel: against the eager correlation, and compiled."""

import pytest
import torch
from helpers.fused import DEVICE, compile_kernel, worst

from transformatcher.models.correlation import MultiLevelCorrelation


@pytest.mark.triton
@pytest.mark.parametrize(
    ("kind", "layer_fusion"),
    [("resize-correlation", "multi"), ("resize-features", "multi"), ("resize-correlation", "concat")],
)
def test_equals_the_eager_correlation(kind, layer_fusion):
    stage = MultiLevelCorrelation(kind, layer_fusion=layer_fusion)
    shapes = [(2, 20, 5, 4), (2, 12, 3, 2)] * 2

    def run(backend):
        torch.manual_seed(1)
        features = [torch.randn(*shape, device=DEVICE).requires_grad_() for shape in shapes]
        stage.set_backend(backend)
        out = stage(features[:2], features[2:])
        return [
            out.detach(),
            *torch.autograd.grad((out * torch.sin(torch.arange(40.0, device=DEVICE)[:4])).sum(), features),
        ]

    assert worst(run("fused"), run("eager")) < 1e-4


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("kernel", "constants", "warps"),
    [
        ("_cosine_kernel", {"M": 128, "N": 128, "K": 64, "RELU": True}, 8),
        ("_cosine_backward_kernel", {"M": 64, "N": 128, "K": 64}, 4),
    ],
)
def test_compiles(kernel, constants, warps):
    compile_kernel("triton_correlate", kernel, constants, warps)

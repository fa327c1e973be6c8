"""Which implementation runs."""

import pytest
import torch

from transformatcher.config import model_config
from transformatcher.errors import InputError
from transformatcher.models.build import build_matcher
from transformatcher.models.fused.dispatch import triton_runs_on
from transformatcher.models.match2match import MatchToMatch


def test_an_unknown_attention_runs_eagerly_or_is_an_error():
    class Nothing(torch.nn.Module):
        def forward(self, x, _grid):
            return torch.zeros_like(x)

    module = MatchToMatch(3, depth=1, make_attention=lambda _: Nothing())
    corr = torch.rand(1, 3, 2, 2, 2, 2)
    assert module(corr).shape == (1, 2, 2, 2, 2)
    module.set_backend("fused")
    with pytest.raises(InputError, match="the fused backend supports"):
        module(corr)


def test_fused_on_a_cpu_means_the_passes_without_the_kernels():
    model = build_matcher(model_config({"backbone": "resnet50", "sampler": "bilinear", "match2match.depth": 1}))
    images = torch.randn(2, 1, 3, 64, 64)
    flows = []
    for backend in ("fused", "eager"):
        model.set_backend(backend)
        with torch.no_grad():
            flows.append(model(*images).trg_norm)
    torch.testing.assert_close(*flows, rtol=0, atol=1e-5)


def test_float64_never_goes_to_triton():
    assert not triton_runs_on(torch.zeros(1, dtype=torch.float64))

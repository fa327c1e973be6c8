"""The embedding as Triton kernels, compiled; against the eager code they are tested in test_stages.py."""

import pytest
from helpers.fused import compile_kernel


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("kernel", "constants"), [("_embed_kernel", {"L": 32, "T": 256}), ("_embed_backward_kernel", {"L": 32, "T": 128})]
)
def test_compiles(kernel, constants):
    compile_kernel("triton_embed", kernel, constants, warps=4)

"""``pool`` as Triton kernels, compiled; against the eager code they are tested in test_stages.py."""

import pytest
from helpers.fused import compile_kernel


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("kernel", "constants", "warps"),
    [
        ("_pool_kernel", {"J": 32, "G": 4, "T": 32, "ROTATE": True}, 1),
        ("_pool_backward_kernel", {"J": 32, "G": 4, "T": 32, "ROTATE": True}, 1),
        ("_combine_kernel", {"J": 32, "G": 4, "C": 128, "W": 32}, 4),
    ],
)
def test_compiles(kernel, constants, warps):
    compile_kernel("triton_pool", kernel, constants, warps)

"""``update`` as Triton kernels, compiled; against the eager code they are tested in test_stages.py."""

import pytest
from helpers.fused import compile_kernel


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("kernel", "constants", "warps"),
    [
        ("_update_kernel", {"E": 32, "H": 64, "T": 32, "ROTATED": True}, 2),
        ("_update_backward_kernel", {"E": 32, "H": 64, "T": 64, "ROTATED": True}, 4),
    ],
)
def test_compiles(kernel, constants, warps):
    compile_kernel("triton_update", kernel, constants, warps)

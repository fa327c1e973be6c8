"""What all kernels share; the rest of it is tested by the kernels themselves."""

import pytest
import torch


def test_regroup_and_back():
    pytest.importorskip("triton", reason="Triton is not installed")
    from transformatcher.models.fused.triton_common import regroup, ungroup

    rows = torch.arange(12).reshape(1, 6, 2)  # three groups of two members
    regrouped = regroup(rows, 1, 2, 4)
    assert regrouped[0, :, 0].tolist() == [0, 4, 8, 0, 2, 6, 10, 0]  # padded to four groups
    assert torch.equal(ungroup(regrouped, 1, 2, 3), rows)


def test_widths_that_can_be_tiled():
    pytest.importorskip("triton", reason="Triton is not installed")
    from transformatcher.models.fused.triton_common import fits

    assert fits(16, 32, 64)
    assert not any((fits(8, 32, 64), fits(24, 32, 64), fits(16, 128, 64), fits(16, 32, 512)))

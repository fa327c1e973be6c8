"""Which precision the backbone has, and why."""

import pytest
import torch

from transformatcher.models.fused import precision
from transformatcher.models.fused.precision import check_bfloat16, choose_dtype

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(precision, "check_bfloat16", check_bfloat16)
    check_bfloat16.cache_clear()
    yield
    check_bfloat16.cache_clear()


def test_what_was_asked_for_is_taken():
    assert choose_dtype("float32", CPU) == torch.float32
    assert choose_dtype("bfloat16", CPU) == torch.bfloat16


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        ((1.9, 0.003), ""),
        ((1.02, 0.003), "bfloat16 is only 1.02 times as fast as float32"),
        ((1.9, 0.3), "convolutions in bfloat16 are off by 30 %"),
    ],
)
def test_a_cpu_has_to_be_right_and_faster(measured: tuple[float, float], reason: str, monkeypatch: pytest.MonkeyPatch):
    if not precision.can_pack():
        pytest.skip("torch has no oneDNN here")
    monkeypatch.setattr(precision, "_compare", lambda *_: measured)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    assert check_bfloat16() == reason
    assert choose_dtype("auto", CPU) == (torch.float32 if reason else torch.bfloat16)


def test_without_onednn_it_is_float32(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(precision, "can_pack", lambda: False)
    assert "no bfloat16 convolutions" in check_bfloat16()
    assert choose_dtype("auto", CPU) == torch.float32


def test_convolutions_in_bfloat16_are_rounded_and_no_more():
    if not precision.can_pack():
        pytest.skip("torch has no oneDNN here")
    gain, error = precision._compare(32, 16, 3, 8)
    assert gain > 0
    assert 0 < error < precision.MAX_ERROR

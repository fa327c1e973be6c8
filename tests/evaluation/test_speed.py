"""Times, costs and lower bounds of small models; functions that take turns."""

import os
import time

import pytest
import torch

from transformatcher.config import model_config
from transformatcher.evaluation import speed
from transformatcher.evaluation.floor import DevicePeaks, StageCost, count_pair_cost, measure_device_peaks
from transformatcher.evaluation.speed import measure_speed
from transformatcher.evaluation.timing import STAGES, median_ms
from transformatcher.models.build import build_matcher
from transformatcher.models.fused import native

CPU = torch.device("cpu")
PEAKS = DevicePeaks(bytes_per_s=1e10, flops_per_s=1e11, bfloat16_flops_per_s=2e11)
OPTIONS = {"batch": 1, "size": 64, "backbone": "resnet50", "variant": "released", "seconds": 0.01}


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_row_for_each_backend(mode):
    rows, other = measure_speed(mode, ["fused", "eager"], device=CPU, peaks=PEAKS, **OPTIONS)
    assert other is None
    assert [row.backend for row in rows] == ["fused", "eager"]
    for row in rows:
        assert tuple(row.stages_ms) == tuple(row.stages_floor_ms) == STAGES
        assert all(ms > 0 for ms in row.stages_ms.values())
        assert row.matches == 4**4
        assert row.floor_ms == pytest.approx(sum(row.stages_floor_ms.values()))
        assert row.ms_per_pair > 0
        assert row.peak_gib > 0
        assert row.dtype == "float32"


def test_another_implementation_gets_the_same_images():
    seen = []

    def other(src: torch.Tensor, trg: torch.Tensor) -> None:
        seen.append((src.shape, trg.shape))
        time.sleep(0.01)

    options = {**OPTIONS, "batch": 2}
    _, ms = measure_speed("infer", ["fused"], device=CPU, peaks=PEAKS, other=other, **options)
    assert set(seen) == {((2, 3, 64, 64), (2, 3, 64, 64))}
    assert 5 <= ms < 100  # per pair


@torch.inference_mode()
def test_without_the_library_in_c():
    without = speed._without_library(lambda: native.runs_on(torch.zeros(1)))
    assert not without()
    assert native.SWITCH not in os.environ
    rows, _ = measure_speed("infer", ["torch"], device=CPU, peaks=PEAKS, **OPTIONS)
    assert rows[0].backend == "torch"


def test_the_backbone_of_the_fused_backend_has_the_precision_that_was_asked_for():
    rows, _ = measure_speed("infer", ["fused", "eager"], device=CPU, peaks=PEAKS, precision="bfloat16", **OPTIONS)
    assert [row.dtype for row in rows] == ["bfloat16", "float32"]
    low, high = (row.stages_floor_ms for row in rows)
    assert low["backbone"] < high["backbone"]
    assert low["flow"] == high["flow"]


def test_functions_take_turns():
    calls = []
    ms = median_ms({"a": lambda: calls.append("a"), "b": lambda: (calls.append("b"), time.sleep(0.002))}, CPU, 0.0)
    assert "".join(calls) == "aabb" + "ab" * 5
    assert ms["a"] < 2 <= ms["b"]


def test_operations_are_those_of_the_network():
    """ResNet-50 without its head has 4.1 G multiply-adds at 224²; torch's counter says two operations for each."""
    model = build_matcher(model_config({"backbone": "resnet50", "image_size": 224}))
    cost = count_pair_cost(model, 224, CPU, torch.float32)
    assert 2 * 2 * 4.0e9 < cost.flops < 2 * 2 * 4.9e9  # two images, and a little for the matcher
    floors = cost.floors_ms(DevicePeaks(1e12, 1e12, 2e12), 1, torch.float32, cuda=False)
    assert floors["backbone"] == pytest.approx(1e3 * cost.stages["backbone"].flops / 1e12)


def test_a_floor_is_the_slower_of_moving_and_computing():
    assert StageCost(weight_bytes=4 * 10**9, bytes=10**9, flops=1).floor_ms(PEAKS, 4, torch.float32) == 200
    assert StageCost(0, 1, 10**11).floor_ms(PEAKS, 1, torch.float32) == 1000
    assert StageCost(0, 1, 10**11).floor_ms(PEAKS, 1, torch.bfloat16) == 500


def test_device_peaks_are_plausible():
    peaks = measure_device_peaks(CPU)
    assert 1e8 < peaks.bytes_per_s < 1e13
    assert 1e8 < peaks.flops_per_s < 1e14
    assert 1e8 < peaks.bfloat16_flops_per_s < 1e15

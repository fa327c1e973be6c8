import pytest
import torch

from transformatcher.config import model_config
from transformatcher.evaluation.speed import STAGES, DevicePeaks, count_pair_cost, measure_device_peaks, measure_speed
from transformatcher.models.build import build_matcher


@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize("backend", ["fused", "eager"])
def test_a_row(mode, backend):
    peaks = DevicePeaks(bytes_per_s=1e10, flops_per_s=1e11)
    options = {"batch": 1, "size": 64, "backbone": "resnet50", "variant": "released", "seconds": 0.01}
    row = measure_speed(mode, backend, device=torch.device("cpu"), peaks=peaks, **options)
    assert tuple(row.stages_ms) == STAGES
    assert all(ms > 0 for ms in row.stages_ms.values())
    assert row.matches == 4**4
    assert row.floor_ms > 0
    assert row.ms_per_pair > 0
    assert row.peak_gib > 0


def test_operations_are_those_of_the_network():
    """ResNet-50 without its head has 4.1 G multiply-adds at 224²; torch's counter says two operations for each."""
    model = build_matcher(model_config({"backbone": "resnet50", "image_size": 224}))
    cost = count_pair_cost(model, 224, torch.device("cpu"))
    assert 2 * 2 * 4.0e9 < cost.flops < 2 * 2 * 4.9e9  # two images, and a little for the matcher
    assert cost.floor_ms(DevicePeaks(1e12, 1e12), 1) == pytest.approx(1e3 * cost.flops / 1e12)


def test_device_peaks_are_plausible():
    peaks = measure_device_peaks(torch.device("cpu"))
    assert 1e8 < peaks.bytes_per_s < 1e13
    assert 1e8 < peaks.flops_per_s < 1e14

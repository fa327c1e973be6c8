import pytest
import torch

from transformatcher.config import model_config
from transformatcher.evaluation.speed import STAGES, DevicePeaks, count_pair_cost, measure_device_peaks, measure_speed
from transformatcher.models.build import build_matcher
from transformatcher.viz.plots import plot_costs


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


def test_costs_of_one_size_are_bars_and_of_several_lines():
    """A line through a single number of matches shows nothing."""

    def row(backend, batch, matches, ms):
        words = {"mode": "infer", "backbone": "resnet50", "variant": "paper"}
        return words | {
            "backend": backend,
            "batch": batch,
            "matches": matches,
            "ms_per_pair": ms,
            "peak_gib": 2 * ms,
            "floor_ms": 0.1,
        }

    one = {"device": "cpu", "rows": [row("fused", 1, 625, 2.0), row("eager", 1, 625, 5.0)]}
    left, right = plot_costs(one).axes
    assert [bar.get_width() for bar in left.patches] == [2.0, 5.0]
    assert [bar.get_width() for bar in right.patches] == [4.0, 10.0]
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["fused, batch 1", "eager, batch 1"]
    left, _ = plot_costs(one | {"rows": [*one["rows"], row("fused", 1, 1296, 3.0)]}).axes
    assert not left.patches
    assert [list(line.get_xdata()) for line in left.lines] == [[625, 1296], [625], [625, 1296]]  # fused, eager, floor

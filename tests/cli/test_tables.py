"""Tables as they are printed."""

import pytest
from rich.console import Console

from transformatcher.cli import tables
from transformatcher.evaluation.timing import STAGES


def print_at(width: int, monkeypatch: pytest.MonkeyPatch) -> Console:
    """A console of this width, in place of standard output."""
    console = Console(width=width, record=True, markup=False, quiet=False)
    monkeypatch.setattr(tables, "STDOUT", console)
    return console


def test_names_with_brackets_are_printed_as_they_are(monkeypatch, capsys):
    console = print_at(80, monkeypatch)
    tables.print_table("a [bold] title", ("name", "value"), [("[/x]", "1")])
    printed = console.export_text()
    assert "a [bold] title" in printed
    assert "│ [/x] │     1 │" in printed
    assert capsys.readouterr().out


@pytest.mark.parametrize(("width", "first"), [(160, "│   fused │"), (80, "│     backend │")])
def test_costs_are_transposed_where_they_would_not_fit(width, first, monkeypatch, capsys):
    row = {
        "mode": "infer", "backbone": "resnet50", "variant": "paper", "backend": "fused", "batch": 1, "size": 240,
        "matches": 50625, "stages_ms": dict.fromkeys(STAGES, 1.0), "stages_floor_ms": dict.fromkeys(STAGES, 0.5),
        "ms_per_pair": 4.0, "floor_ms": 2.0, "gflops": 3.0, "dtype": "float32", "peak_gib": 1.5,
    }  # fmt: skip
    peaks = {"bytes_per_s": 1e9, "flops_per_s": 1e12, "bfloat16_flops_per_s": 2e12}
    report = {"device": "a device", "device_peaks": peaks, "rows": [row]}
    console = print_at(width, monkeypatch)
    tables.print_costs(report)
    assert first in console.export_text()
    assert "1 GB/s copied, 1.00 TFLOP/s in float32 products and 2.00" in capsys.readouterr().out

"""Progress bars, without a terminal."""

import pytest
from rich.console import Console

from transformatcher.cli import output


def test_progress_bar(monkeypatch: pytest.MonkeyPatch):
    console = Console(width=120, record=True, force_terminal=False)
    monkeypatch.setattr(output, "STDERR", console)
    with output.progress_bar("predicting", "images") as track:
        track(5, 10)  # what an earlier run has done
        track(10, 10)
    printed = console.export_text()
    assert "predicting" in printed
    assert "10/10" in printed
    assert "images/s" in printed


@pytest.mark.parametrize("quiet", [False, True])
def test_lines_of_a_training_stay(quiet, capsys):
    with output.training_progress(quiet=quiet) as report:
        report(0, 10, "starting")
        report(5, 10, "epoch 1: 50.0\n")
        report(10, 10, "epoch 2")
    printed = capsys.readouterr().err
    assert ("epoch 1: 50.0" in printed) == (not quiet)

"""The log files of a run, written by the main process alone."""

import json
from pathlib import Path

import pytest

from transformatcher.training.run_log import METRICS, RunLog

ENTRIES = [
    {"epoch": n, "step": 4 * n, "pairs": 8 * n, "loss": 1 / n, "pck": {"PF-val": {"0.05": 10.0, "0.1": 20.0 * n}}}
    for n in (1, 2)
]


def test_metrics_curves_and_events(tmp_path: Path):
    log = RunLog(tmp_path)
    with log.open(step=0):
        log.add_loss(1, 0.5)
        for count in (1, 2):
            log.add_validation(ENTRIES[:count])
    log.draw_curves(ENTRIES)
    assert [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()] == ENTRIES
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert next((tmp_path / "tensorboard").iterdir()).stat().st_size > 100


def test_other_processes_write_nothing(tmp_path: Path):
    log = RunLog(tmp_path, enabled=False)
    with log.open(step=0):
        log.add_loss(1, 0.5)
        log.add_validation(ENTRIES)
    log.draw_curves(ENTRIES)
    assert list(tmp_path.iterdir()) == []


def test_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("transformatcher.training.run_log.find_spec", lambda _name: None)
    log = RunLog(tmp_path, pictures=False)
    with log.open(step=0):
        log.add_loss(1, 0.5)
        log.add_validation(ENTRIES)
    log.draw_curves(ENTRIES)
    assert [path.name for path in tmp_path.iterdir()] == [METRICS]

"""Results of several seeds become one row of a table."""

import json
from pathlib import Path

import pytest
from helpers.training import write_study

from transformatcher.training.ablation_table import ABLATION, COST, RESULT, TABLE, write_table
from transformatcher.training.study import Study, read_study


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return read_study(str(write_study(tmp_path)))


def write_results(out: Path, folder: str, *scores: float) -> None:
    for seed, score in enumerate(scores):
        path = out / folder / f"seed-{seed}" / RESULT
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"pck": {"PF-val": {"0.05": score / 2, "0.1": score}}}))


def test_mean_and_spread_over_seeds(study: Study, tmp_path: Path):
    write_results(tmp_path / "out", "axial", 50.0, 53.0)
    write_results(tmp_path / "out", "no-position", 40.0)
    (tmp_path / "out" / "axial" / COST).write_text('{"ms_per_pair": 1.234, "model": {}}')
    table = write_table(study, tmp_path / "out", "a command")
    assert table == json.loads((tmp_path / "out" / ABLATION).read_text())
    assert (table["name"], table["title"], table["command"]) == ("study", "A title", "a command")
    assert table["pck_thresholds"] == {"PF-val": "img"}
    axial, none = table["rows"]
    assert axial["PF-val @ 0.1"] == {"mean": 51.5, "spread": pytest.approx(3 / 2**0.5, abs=0.01)}
    assert (axial["seeds"], axial["ms_per_pair"]) == (2, 1.234)
    assert none["PF-val @ 0.1"] == {"mean": 40.0, "spread": 0.0}
    text = (tmp_path / "out" / TABLE).read_text()
    assert "| axial | 25.8 / 51.5 ± 2.1 | 2 | 1.23 |" in text
    assert "| no position | 20.0 / 40.0 | 1 | – |" in text


def test_rows_without_results_are_left_out(study: Study, tmp_path: Path):
    write_results(tmp_path / "out", "no-position", 40.0)
    table = write_table(study, tmp_path / "out")
    assert [row["label"] for row in table["rows"]] == ["no position"]
    assert table["command"] == "transformatcher ablate study"
    assert "ms/pair" not in (tmp_path / "out" / TABLE).read_text()

"""Tables with the paper's numbers beside ours."""

from pathlib import Path

import pytest
from helpers.analysis import BENCH, prediction, write_eval

from transformatcher.evaluation.analysis.paper_tables import ablation_table, result_tables
from transformatcher.evaluation.analysis.run_folders import read_eval
from transformatcher.evaluation.analysis.tables import Table


@pytest.fixture
def run(tmp_path: Path):
    return read_eval(write_eval(tmp_path / "mine", [prediction("a", 1.0), prediction("b", 30.0, "aeroplane")]))


def rows_of(table: Table) -> dict[str, list[str]]:
    return {row[0]: list(row[1:]) for section in table.sections for row in section.rows}


class TestResultTables:
    def test_names(self, run):
        names = [table.name for table in result_tables([run], [BENCH])]
        assert names == ["benchmarks", "classes-spair", "difficulty-spair", "costs"]

    def test_benchmarks(self, run):
        rows = rows_of(result_tables([run])[0])
        assert rows["TransforMatcher†"] == ["32.4", "53.7 / 30.1", "80.8", "91.8", "65.3", "76.0"]
        assert rows["shipped model, 272×272"][:3] == ["50.0 (val, 2 pairs)", "50.0 (val, 2 pairs)", "–"]

    def test_one_line_for_one_model(self, run, tmp_path):
        other = write_eval(tmp_path / "pascal", [prediction("a", 1.0)], benchmark="pfpascal", split="test")
        rows = rows_of(result_tables([run, read_eval(other)])[0])
        assert rows["shipped model, 272×272"][1:4] == ["50.0 (val, 2 pairs)", "100.0 (1 pairs)", "100.0 (1 pairs)"]

    def test_other_weights_are_another_line(self, run, tmp_path):
        other = write_eval(tmp_path / "other", [prediction("a", 1.0)], weights_hash="abcdef99")
        rows = rows_of(result_tables([run, read_eval(other)])[0])
        assert {"shipped model, 272×272 [012345]", "shipped model, 272×272 [abcdef]"} <= set(rows)

    def test_classes(self, run):
        table = result_tables([run])[1]
        assert list(table.header) == ["model", "all", "aero", "cat"]
        assert rows_of(table)["TransforMatcher"] == ["50.2", "54.5", "65.7"]
        assert rows_of(table)["shipped model, 272×272 (val, 2 pairs)"] == ["50.0", "0.0", "100.0"]

    def test_difficulty(self, run):
        table = result_tables([run])[2]
        assert list(table.header[1:]) == ["viewpoint easy", "scale medium", "truncation hard", "occlusion easy"]
        assert rows_of(table)["pairs (SPair-71k val)"] == ["2"] * 4

    def test_costs(self):
        (table,) = result_tables([], [BENCH])
        rows = rows_of(table)
        assert rows["TransforMatcher"][-3:] == ["54", "1.6", "33.5"]
        assert rows["Transformer"][-2] == "out of memory"
        assert rows["paper, resnet101, fused"] == ["cpu, 2 threads", "1", "240", "812", "1.61", "33.1"]

    def test_ablation(self):
        cells = {f"a @ {alpha}": {"mean": mean, "spread": 0.31} for alpha, mean in (("0.05", 61.5), ("0.1", 88.25))}
        same = {"a @ 0.05": {"mean": 60, "spread": 0}, "a @ 0.1": {"mean": 80, "spread": 0}}
        rows = [{"label": "axial", "seeds": 3, **cells, "ms_per_pair": 3.14159}, {"label": "none", "seeds": 1},
                {"label": "two", "seeds": 2, **same}, {"label": "one", "seeds": 1, **same}]  # fmt: skip
        data = {"name": "position", "title": "Position", "question": "Does it help?",
                "command": "transformatcher ablate position", "columns": list(cells), "pck_thresholds": {"a": "img"},
                "rows": rows}  # fmt: skip
        table = ablation_table(data)
        assert rows_of(table) == {
            "axial": ["61.5 ± 0.3", "88.2 ± 0.3", "3", "3.14"],
            "none": ["–", "–", "1", "–"],
            "two": ["60.0 ± 0.0", "80.0 ± 0.0", "2", "–"],
            "one": ["60.0", "80.0", "1", "–"],
        }
        assert (table.title, table.notes) == ("Position", ["Does it help?"])
        assert table.commands == ["transformatcher ablate position"]

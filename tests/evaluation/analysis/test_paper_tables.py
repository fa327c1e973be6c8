"""Tables: the paper's numbers beside ours, in three formats; the commands that made them."""

import json
import shlex
from pathlib import Path

import pytest
from helpers.analysis import BENCH, prediction, write_eval

from transformatcher.cli.main import _parser
from transformatcher.errors import InputError
from transformatcher.evaluation.analysis.paper import SHORT_NAMES, TABLE_1, class_wise
from transformatcher.evaluation.analysis.paper_tables import ablation_table, result_tables
from transformatcher.evaluation.analysis.run_folders import bench_command, read_bench, read_eval
from transformatcher.evaluation.analysis.tables import Section, Table, to_html, to_latex, to_markdown


@pytest.fixture
def run(tmp_path: Path):
    return read_eval(write_eval(tmp_path / "mine", [prediction("a", 1.0), prediction("b", 30.0, "aeroplane")]))


def rows_of(table: Table) -> dict[str, list[str]]:
    return {row[0]: list(row[1:]) for section in table.sections for row in section.rows}


class TestPaper:
    def test_tables_agree_where_they_overlap(self):
        """All of Table A1 is SPair-71k in Table 1; two methods were rounded or trained otherwise there."""
        both = {name: (row["all"], TABLE_1[name].spair_f) for name, row in class_wise().items() if name in TABLE_1}
        assert both.pop("CATs") == (42.4, 43.5)
        assert both.pop("CHMNet") == (46.4, 46.3)
        assert all(a == b for a, b in both.values())

    def test_every_category_has_a_number(self):
        assert all(list(row) == [*SHORT_NAMES, "all"] for row in class_wise().values())


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
        assert rows["paper, resnet101, fast path"] == ["cpu, 2 threads", "1", "240", "812", "1.61", "33.1"]

    def test_ablation(self):
        cells = {f"a @ {alpha}": {"mean": mean, "spread": 0.31} for alpha, mean in (("0.05", 61.5), ("0.1", 88.25))}
        same = {"a @ 0.05": {"mean": 60, "spread": 0}, "a @ 0.1": {"mean": 80, "spread": 0}}
        rows = [{"label": "axial", "seeds": 3, **cells, "ms_per_pair": 3.14159}, {"label": "none", "seeds": 1},
                {"label": "two", "seeds": 2, **same}, {"label": "one", "seeds": 1, **same}]  # fmt: skip
        data = {"name": "position", "title": "Position", "question": "Does it help?",
                "command": "transformatcher ablate position", "columns": list(cells), "kinds": {"a": "img"},
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


class TestFormats:
    table = Table("t", "A & B", ["model", "x_1"], [Section([["a|b", "1.0"]], "50 %"), Section([["†", "<2>"]])],
                  ["α ≥ 0"], ["transformatcher eval --out a"])  # fmt: skip

    def test_markdown(self):
        text = to_markdown(self.table)
        assert "| model | x_1 |\n|---|--:|\n| **50 %** |  |\n| a\\|b | 1.0 |" in text
        assert text.endswith("```sh\ntransformatcher eval --out a\n```\n")

    def test_latex(self):
        text = to_latex(self.table)
        assert text.startswith("% transformatcher eval --out a\n\\begin{table}")
        assert r"model & x\_1 \\" in text
        assert r"\multicolumn{2}{l}{\emph{50 \%}} \\" in text
        assert r"$\dagger$ & <2> \\" in text
        assert text.count(r"\midrule") == 2

    def test_html(self):
        text = to_html(self.table)
        assert "<caption>A &amp; B</caption>" in text
        assert '<tr><th scope="row">†</th><td>&lt;2&gt;</td></tr>' in text
        assert "<caption>" not in to_html(self.table, caption=False)


class TestCommands:
    """What is printed must be what the parser takes, and mean the same."""

    def parsed(self, command: str):
        first, *rest = shlex.split(command)
        assert first == "transformatcher"
        return _parser().parse_args(rest)

    def evaluated(self, tmp_path, **arguments):
        """The arguments of the command behind a folder that eval wrote."""
        return self.parsed(read_eval(write_eval(tmp_path / "mine", [prediction("a", 1.0)], **arguments)).command)

    def test_shipped_model(self, tmp_path):
        args = self.evaluated(tmp_path, limit=7)
        assert (args.benchmark, args.split, args.limit, args.weights, args.out) == ("spair", "val", 7, None, "out/mine")

    def test_changed_read_out(self, tmp_path):
        args = self.evaluated(tmp_path, set={"sigma": 3, "image_size": [480, 640], "gaussian": "none"})
        assert args.weights is None
        assert args.settings == ["sigma=3", "image_size=[480, 640]", "gaussian=none"]

    def test_own_weights(self, tmp_path):
        args = self.evaluated(tmp_path, weights="runs/my run/best", set={"sigma": 3})
        assert args.weights == "runs/my run/best"
        assert args.settings == ["sigma=3"]

    def test_raw_correlation(self, tmp_path):
        args = self.evaluated(
            tmp_path, refiner="none", backbone="resnet50_v1", backbone_weights="a.safetensors",
            set={"image_size": [352, 352]},
        )  # fmt: skip
        assert (args.refiner, args.backbone, args.backbone_weights) == ("none", "resnet50_v1", "a.safetensors")
        assert args.settings == ["image_size=[352, 352]"]

    def test_pairs_of_another_seed(self, tmp_path):
        args = self.evaluated(tmp_path, benchmark="coco", split=None, limit=1, seed=3)
        assert (args.benchmark, args.limit, args.seed) == ("coco", 1, 3)

    def test_bench(self):
        args = self.parsed(bench_command(BENCH))
        assert (args.batch, args.size, args.path, args.train, args.json) == ([1], [240], ["fast", "plain"], False, True)
        assert args.device == "cpu"


class TestErrors:
    def test_no_folder(self, tmp_path):
        with pytest.raises(InputError, match="no such folder; name one that transformatcher eval wrote"):
            read_eval(tmp_path / "nowhere")

    def test_no_predictions(self, tmp_path):
        with pytest.raises(InputError, match="no predictions there"):
            read_eval(tmp_path)

    @pytest.mark.parametrize("data", [[], {}, {"device": "cpu", "rows": []}, {"device": "cpu", "rows": [{"path": 1}]}])
    def test_not_a_bench(self, tmp_path, data):
        (tmp_path / "b.json").write_text(json.dumps(data))
        with pytest.raises(InputError, match="not what transformatcher bench --json prints"):
            read_bench(tmp_path / "b.json")

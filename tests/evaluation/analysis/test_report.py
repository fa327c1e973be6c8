"""Reports: self-contained, complete, and without markup from the files they are made of."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import write_image
from helpers.analysis import BENCH, measured, prediction, write_eval
from helpers.html_page import check_page

from transformatcher.errors import InputError
from transformatcher.evaluation.analysis.failures import gallery_page, worst_pairs
from transformatcher.evaluation.analysis.nonlocality_run import summarise, write_summary
from transformatcher.evaluation.analysis.report import collect_inputs, render_report
from transformatcher.evaluation.analysis.run_folders import read_eval
from transformatcher.evaluation.compare import compare
from transformatcher.run_folder import Run, write_run

NAMES = ("000000-a-b:cat", "000001-b-a:cat")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_eval(tmp_path / "runs" / "mine", [prediction(NAMES[0], 2.0), prediction(NAMES[1], 20.0)])


def write_everything(tmp_path: Path, folder: Path, spair_root: Path) -> list[Path]:
    """One of each kind."""
    run = read_eval(folder)
    page = folder.parent / "gallery" / "failures.html"
    page.parent.mkdir()
    page.write_text(gallery_page(run, worst_pairs(run, spair_root, 2), "transformatcher analyse failures mine"))
    training = tmp_path / "training"
    training.mkdir()
    pck = {"0.05": 40.0, "0.1": 60.0}
    rows = [{"epoch": i, "pairs": 10 * i, "loss": 1 / i, "score": 50 + i, "pck": {"a": pck}, "seconds": 60.0 * i}
            for i in (1, 2)]  # fmt: skip
    (training / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_run(training, Run("train", {"train": {"epochs": 2}}))
    nonlocality = tmp_path / "nonlocality"
    write_summary(nonlocality, {"command": "transformatcher analyse nonlocality <>", "model": "mine",
                                **summarise([measured(str(i), float(i), i % 3) for i in range(6)])})  # fmt: skip
    cell = {"mean": 88.0, "spread": 0.5}
    ablation = {"name": "position", "title": "Position", "question": "Does it teach < much?",
                "command": "transformatcher ablate position",
                "columns": ["a @ 0.05", "a @ 0.1"], "pck_thresholds": {"a": "img"},
                "rows": [{"label": "axial", "seeds": 3, "a @ 0.05": cell, "a @ 0.1": cell}]}  # fmt: skip
    (tmp_path / "ablation").mkdir()
    (tmp_path / "ablation" / "ablation.json").write_text(json.dumps(ablation))
    (tmp_path / "bench.json").write_text(json.dumps(BENCH))
    write_image(tmp_path / "attention.png")
    comparison = compare(run.predictions, [prediction(name, 30.0) for name in NAMES], names=("mine", "<theirs>"))
    (tmp_path / "against-theirs.json").write_text(json.dumps(comparison))
    names = ("against-theirs.json", "training", "nonlocality", "ablation", "bench.json", "attention.png")
    return [folder.parent, *(tmp_path / name for name in names)]


class TestReport:
    def test_everything(self, folder, spair_root, tmp_path):
        inputs = collect_inputs(write_everything(tmp_path, folder, spair_root))
        kinds = vars(inputs)
        assert {kind: len(items) for kind, items in kinds.items()} == dict.fromkeys(kinds, 1)
        ticks = []
        text = render_report(inputs, "transformatcher report …", "A <title>", lambda *tick: ticks.append(tick))
        page = check_page(text)
        assert ticks[-1] == (len(ticks) - 1, len(ticks) - 1)
        assert "A &lt;title&gt;" in text
        for command in (
            "transformatcher eval --benchmark spair", "transformatcher bench", "transformatcher train training.json",
            "transformatcher ablate position", "transformatcher analyse nonlocality &lt;&gt;",
            "transformatcher analyse failures mine", "transformatcher report …",
        ):  # fmt: skip
            assert command in text, command
        assert "88.0 ± 0.5" in text
        assert "Comparison: mine against &lt;theirs&gt;" in text
        assert "Does it teach &lt; much?" in text
        assert "Best is epoch 2: a 40.0 / 60.0" in text
        assert "Does Φ rise with difficulty?" in text
        assert (
            len(page.images) == 11
        )  # scores and groups, comparison, costs, curves, ablation, two of nonlocality, two failures, a picture

    def test_folders_of_the_same_name(self, folder, tmp_path):
        other = write_eval(tmp_path / "elsewhere" / "mine", [prediction(NAMES[0], 2.0)])
        check_page(render_report(collect_inputs([folder, other]), "…", "twice"))

    def test_small_and_quick(self, tmp_path):
        """A benchmark of hundreds of pairs in seconds; three minutes are allowed for all of them."""
        rng = np.random.default_rng(0)
        pairs = [prediction(f"pair {i}", float(rng.normal() * 5), f"category {i % 6}") for i in range(300)]
        folder = write_eval(tmp_path / "large", pairs)
        start = time.monotonic()
        text = render_report(collect_inputs([folder]), "…", "large")
        assert time.monotonic() - start < 30
        assert len(text) < 300_000

    @pytest.mark.parametrize("name", ["nowhere", "empty", "notes.txt", "other.json", "page.html"])
    def test_nothing_to_report(self, tmp_path, name):
        (tmp_path / "empty").mkdir()
        (tmp_path / "notes.txt").write_text("hello")
        (tmp_path / "other.json").write_text("{}")
        (tmp_path / "page.html").write_text("<p>hello</p>")
        with pytest.raises(InputError, match=f"{name}: (no such file|holds nothing to report)"):
            collect_inputs([tmp_path / name])

    def test_what_lies_beside_is_left_alone(self, folder):
        (folder.parent / "settings.json").write_text("{  // with a comment\n}")
        (folder.parent / "page.html").write_bytes("<p>caf\xe9</p>".encode("latin-1"))
        (folder.parent / "study.json").write_text('{"name": "x", "columns": [], "rows": 5}')
        assert len(collect_inputs([folder.parent]).evals) == 1
        with pytest.raises(InputError, match=r"settings\.json: not valid JSON"):
            collect_inputs([folder.parent / "settings.json"])

    def test_epochs_are_not_validations(self, tmp_path):
        row = {"epoch": 6, "pairs": 60, "loss": 1.0, "score": 50.0, "pck": {"a": {"0.05": 1.0, "0.1": 2.0}}}
        (tmp_path / "metrics.jsonl").write_text(json.dumps(row | {"seconds": 60.0}) + "\n")
        (tmp_path / "run.json").write_text("[]")
        assert "6 epochs, 60 pairs, 1.0 minutes" in render_report(collect_inputs([tmp_path]), "…", "x")

    def test_broken_inputs_are_named(self, tmp_path):
        (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n')
        with pytest.raises(InputError, match=r"metrics\.jsonl: not the metrics of a training run"):
            render_report(collect_inputs([tmp_path]), "…", "x")
        (tmp_path / "ablation.json").write_text('{"name": "x", "columns": [], "rows": [{}]}')
        with pytest.raises(InputError, match="has no label"):
            collect_inputs([tmp_path / "ablation.json"])
        (tmp_path / "a.png").write_text("no picture")
        with pytest.raises(InputError, match=r"a\.png: not a picture"):
            render_report(collect_inputs([tmp_path / "a.png"]), "…", "x")


def test_no_name_becomes_markup(spair_root, tmp_path):
    """Markup in the name of a category, run, model, study, device, setting or file stays text."""
    bad, name = "<script>alert('&')</script>", "<script>alert(1)<&script>"  # no slash in the name of a file
    pairs = [prediction(NAMES[0], 2.0, f"cat{bad}"), prediction(NAMES[1], 20.0)]
    folder = write_eval(tmp_path / "runs" / name, pairs, weights=f"runs/{bad}")
    paths = write_everything(tmp_path, folder, spair_root)
    check_page((tmp_path / "runs" / "gallery" / "failures.html").read_text())
    cell = {"mean": 88.0, "spread": 0.5}
    study = dict.fromkeys(("name", "title", "question", "command"), bad)
    study |= {"columns": [bad], "rows": [{"label": bad, "seeds": 2, bad: cell}], "pck_thresholds": {bad: bad}}
    (tmp_path / "ablation" / "ablation.json").write_text(json.dumps(study))
    rows = [row | dict.fromkeys(("variant", "backbone", "path"), bad) for row in BENCH["rows"]]
    (tmp_path / "bench.json").write_text(json.dumps(BENCH | {"device": bad, "rows": rows}))
    write_run(tmp_path / "training", Run("train", {bad: bad}))
    metrics = (tmp_path / "training" / "metrics.jsonl").read_text()
    (tmp_path / "training" / "metrics.jsonl").write_text(metrics.replace('"a"', '"<script>"'))
    paths = [path.rename(path.with_name(f"{name}{path.name}")) if path.parent == tmp_path else path for path in paths]
    text = render_report(collect_inputs(paths), f"transformatcher report {bad}", f"Title {bad}")
    check_page(text)
    for start in ("Title ", "Evaluation: ", "Training: ", "Ablation: ", "Nonlocality: ", "Picture: ", "2. cat"):
        assert f"{start}&lt;script&gt;" in text, start

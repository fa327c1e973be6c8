"""Galleries and reports: self-contained, complete, legible to machines."""

import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from conftest import write_image
from helpers.analysis import BENCH, measured, prediction, write_eval

from transformatcher.data.benchmarks import load_benchmark
from transformatcher.data.pf import load_pfpascal
from transformatcher.errors import InputError
from transformatcher.evaluation.analysis import failures
from transformatcher.evaluation.analysis.failures import BEGIN, END, gallery, worst_pairs
from transformatcher.evaluation.analysis.nonlocality_run import summarise, write_summary
from transformatcher.evaluation.analysis.report import gather, report
from transformatcher.evaluation.analysis.run_folders import read_eval
from transformatcher.images import read_image
from transformatcher.viz.pictures import draw_errors

NAMES = ("000000-a-b:cat", "000001-b-a:cat")
VOID = {"meta", "img", "br", "hr", "link", "input"}


class Checker(HTMLParser):
    """Elements that close, anchors that exist, images with words, nothing from elsewhere."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.ids, self.links, self.images, self.headings = [], [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "a":
            self.links.append(values["href"])
        if tag == "img":
            self.images.append(values)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check(text: str) -> Checker:
    page = Checker(text)
    assert len(set(page.ids)) == len(page.ids)
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert all(link.startswith("#") for link in page.links)
    assert all(image["alt"] and image["src"].startswith("data:image/") for image in page.images)
    assert page.headings[0] == 1
    assert all(b <= a + 1 for a, b in zip(page.headings, page.headings[1:], strict=False))
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"\$[a-z]|https?://|<script", text)
    return page


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_eval(tmp_path / "runs" / "mine", [prediction(NAMES[0], 2.0), prediction(NAMES[1], 20.0)])


class TestFailures:
    def test_worst_first(self, folder, spair_root):
        worst = worst_pairs(read_eval(folder), spair_root, most=24)
        assert [failure.prediction.name for failure in worst] == [NAMES[1], NAMES[0]]
        assert [failure.pck for failure in worst] == [0, 100]
        assert worst[0].error == pytest.approx(50)  # 20 of 40 pixels
        assert worst[0].radius_px == pytest.approx(4)
        assert len(worst_pairs(read_eval(folder), spair_root, most=1)) == 1

    def test_ties_by_the_size_of_the_error(self, tmp_path, spair_root):
        run = read_eval(write_eval(tmp_path / "x", [prediction(NAMES[0], 9.0), prediction(NAMES[1], 20.0)]))
        assert [failure.error for failure in worst_pairs(run, spair_root, 2)] == pytest.approx([50, 22.5])

    def test_page(self, folder, spair_root):
        run = read_eval(folder)
        text = gallery(run, worst_pairs(run, spair_root, 2), "transformatcher analyse failures …")
        page = check(text)
        assert len(page.images) == 2
        assert "0 of 2 are right" in page.images[0]["alt"]
        assert "truncation hard" in text
        assert text.index(BEGIN) < text.index("<article") < text.index(END)
        assert text.count("#mine-2") >= 2  # from the contents and from its neighbour

    def test_mirrored_pairs(self, pascal_root, tmp_path, monkeypatch):
        """The record says to mirror both images; keypoints are in the mirrored frame, and so is the drawing."""
        (pair,) = load_pfpascal(pascal_root, "trn")
        said = {"benchmark": "pfpascal", "split": "trn"}
        run = read_eval(write_eval(tmp_path / "x", [prediction(pair.name, 3.0, trg_bbox=None)], **said))
        drawn = []

        def draw(src, trg, *points, **options):
            drawn.append((src, trg))
            return draw_errors(src, trg, *points, **options)

        monkeypatch.setattr(failures, "draw_errors", draw)
        check(gallery(run, worst_pairs(run, pascal_root, 1), "…"))
        ((src, trg),) = drawn
        for pixels, image in ((src, pair.src_image), (trg, pair.trg_image)):
            np.testing.assert_array_equal(pixels, read_image(image)[:, ::-1])

    def test_pairs_of_another_seed(self, coco_root, tmp_path):
        drawn = [load_benchmark("coco", coco_root, n_pairs=1, seed=seed)[0].name for seed in range(9)]
        seed = next(seed for seed, name in enumerate(drawn) if name != drawn[0])
        said = {"benchmark": "coco", "split": None, "seed": seed}
        run = read_eval(write_eval(tmp_path / "x", [prediction(drawn[seed], 3.0)], **said))
        assert [failure.pair.name for failure in worst_pairs(run, coco_root, 1)] == [drawn[seed]]

    def test_photos_of_another_benchmark(self, folder, spair_root):
        listing = spair_root / "Layout" / "large" / "val.txt"
        listing.write_text(NAMES[0] + "\n")
        with pytest.raises(InputError, match="000001-b-a:cat is not in"):
            worst_pairs(read_eval(folder), spair_root, 24)

    def test_a_run_that_does_not_say_its_benchmark(self, folder, spair_root):
        (folder / "run.json").write_text("{}")
        with pytest.raises(InputError, match="does not say which benchmark"):
            worst_pairs(read_eval(folder), spair_root, 24)


def write_everything(tmp_path: Path, folder: Path, spair_root: Path) -> list[Path]:
    """One of each kind."""
    run = read_eval(folder)
    page = folder.parent / "gallery" / "failures.html"
    page.parent.mkdir()
    page.write_text(gallery(run, worst_pairs(run, spair_root, 2), "transformatcher analyse failures mine"))
    training = tmp_path / "training"
    training.mkdir()
    pck = {"0.05": 40.0, "0.1": 60.0}
    rows = [{"epoch": i, "pairs": 10 * i, "loss": 1 / i, "score": 50 + i, "pck": {"a": pck}, "seconds": 60.0 * i}
            for i in (1, 2)]  # fmt: skip
    (training / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (training / "run.json").write_text(json.dumps({"config": {"train": {"epochs": 2}}}))
    nonlocality = tmp_path / "nonlocality"
    write_summary(nonlocality, {"command": "transformatcher analyse nonlocality <>", "model": "mine",
                                **summarise([measured(str(i), float(i), i % 3) for i in range(6)])})  # fmt: skip
    cell = {"mean": 88.0, "spread": 0.5}
    ablation = {"name": "position", "title": "Position", "question": "Does it teach < much?",
                "command": "transformatcher ablate position",
                "columns": ["a @ 0.05", "a @ 0.1"], "kinds": {"a": "img"},
                "rows": [{"label": "axial", "seeds": 3, "a @ 0.05": cell, "a @ 0.1": cell}]}  # fmt: skip
    (tmp_path / "ablation").mkdir()
    (tmp_path / "ablation" / "ablation.json").write_text(json.dumps(ablation))
    (tmp_path / "bench.json").write_text(json.dumps(BENCH))
    write_image(tmp_path / "attention.png")
    names = ("training", "nonlocality", "ablation", "bench.json", "attention.png")
    return [folder.parent, *(tmp_path / name for name in names)]


class TestReport:
    def test_everything(self, folder, spair_root, tmp_path):
        found = gather(write_everything(tmp_path, folder, spair_root))
        kinds = vars(found)
        assert {kind: len(items) for kind, items in kinds.items()} == dict.fromkeys(kinds, 1)
        ticks = []
        text = report(found, "transformatcher report …", "A <title>", lambda *tick: ticks.append(tick))
        page = check(text)
        assert ticks[-1] == (len(ticks) - 1, len(ticks) - 1)
        assert "A &lt;title&gt;" in text
        for command in (
            "transformatcher eval --benchmark spair", "transformatcher bench", "transformatcher train training.json",
            "transformatcher ablate position", "transformatcher analyse nonlocality &lt;&gt;",
            "transformatcher analyse failures mine", "transformatcher report …",
        ):  # fmt: skip
            assert command in text, command
        assert "88.0 ± 0.5" in text
        assert "Does it teach &lt; much?" in text
        assert "Best is epoch 2: a 40.0 / 60.0" in text
        assert "Does Φ rise with difficulty?" in text
        assert len(page.images) == 9  # scores, costs, curves, ablation, two of nonlocality, two failures, a picture

    def test_folders_of_the_same_name(self, folder, tmp_path):
        other = write_eval(tmp_path / "elsewhere" / "mine", [prediction(NAMES[0], 2.0)])
        check(report(gather([folder, other]), "…", "twice"))

    def test_small_and_quick(self, tmp_path):
        """A benchmark of hundreds of pairs in seconds; three minutes are allowed for all of them."""
        rng = np.random.default_rng(0)
        pairs = [prediction(f"pair {i}", float(rng.normal() * 5), f"category {i % 6}") for i in range(300)]
        folder = write_eval(tmp_path / "large", pairs)
        start = time.monotonic()
        text = report(gather([folder]), "…", "large")
        assert time.monotonic() - start < 30
        assert len(text) < 300_000

    @pytest.mark.parametrize("name", ["nowhere", "empty", "notes.txt", "other.json", "page.html"])
    def test_nothing_to_report(self, tmp_path, name):
        (tmp_path / "empty").mkdir()
        (tmp_path / "notes.txt").write_text("hello")
        (tmp_path / "other.json").write_text("{}")
        (tmp_path / "page.html").write_text("<p>hello</p>")
        with pytest.raises(InputError, match=f"{name}: (no such file|holds nothing to report)"):
            gather([tmp_path / name])

    def test_what_lies_beside_is_left_alone(self, folder):
        (folder.parent / "settings.json").write_text("{  // with a comment\n}")
        (folder.parent / "page.html").write_bytes("<p>caf\xe9</p>".encode("latin-1"))
        (folder.parent / "study.json").write_text('{"name": "x", "columns": [], "rows": 5}')
        assert len(gather([folder.parent]).evals) == 1
        with pytest.raises(InputError, match=r"settings\.json: not valid JSON"):
            gather([folder.parent / "settings.json"])

    def test_epochs_are_not_validations(self, tmp_path):
        row = {"epoch": 6, "pairs": 60, "loss": 1.0, "score": 50.0, "pck": {"a": {"0.05": 1.0, "0.1": 2.0}}}
        (tmp_path / "metrics.jsonl").write_text(json.dumps(row | {"seconds": 60.0}) + "\n")
        (tmp_path / "run.json").write_text("[]")
        assert "6 epochs, 60 pairs, 1.0 minutes" in report(gather([tmp_path]), "…", "x")

    def test_broken_inputs_are_named(self, tmp_path):
        (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n')
        with pytest.raises(InputError, match=r"metrics\.jsonl: not the metrics of a training run"):
            report(gather([tmp_path]), "…", "x")
        (tmp_path / "ablation.json").write_text('{"name": "x", "columns": [], "rows": [{}]}')
        with pytest.raises(InputError, match="has no label"):
            gather([tmp_path / "ablation.json"])
        (tmp_path / "a.png").write_text("no picture")
        with pytest.raises(InputError, match=r"a\.png: not a picture"):
            report(gather([tmp_path / "a.png"]), "…", "x")

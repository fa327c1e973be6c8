"""``simulate-annotation``: a table, a report, a plot; finished runs are not repeated."""

import json
from pathlib import Path

import pytest
from helpers.command import run

from transformatcher.annotation import simulate


@pytest.fixture
def small(coco_root: Path, raw: list[str]) -> list[object]:
    return ["simulate-annotation", "--root", coco_root, "--category", "cat", *raw]


def test_table_report_and_plot(small: list[object], tmp_path: Path, capsys):
    picture = tmp_path / "clicks.png"
    assert run(*small, "--tolerance", 0.1, 0.05, "--out", tmp_path / "out", "--plot", picture) == 0
    out = capsys.readouterr().out
    assert "of the clicks by hand on average over 1 categories" in out
    assert picture.stat().st_size > 10_000
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    ways = [(row["category"], row["tolerance"], row["first"]) for row in report["runs"]]
    assert ways == [("cat", t, first) for t in (0.1, 0.05) for first in ("suggested", "random")]
    assert report["runs"][0]["by_hand"][-1] == 4 + 1 + 3 + 1  # two cats alone on their photos, of 4 and 3 keypoints


def test_finished_runs_are_not_repeated(small: list[object], tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    out = ["--out", tmp_path / "out", "--json"]

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    assert run(*small, *out, "--first", "random") == 0
    before = json.loads(capsys.readouterr().out)
    with monkeypatch.context() as patch:
        patch.setattr(simulate, "simulate", interrupted)
        assert run(*small, *out, "--first", "random") == 0
        assert json.loads(capsys.readouterr().out) == before
        assert run(*small, *out) == 130
        assert "continues after the last finished run" in capsys.readouterr().err
    assert run(*small, *out) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2
    assert len((tmp_path / "out" / "runs.jsonl").read_text().splitlines()) == 2
    assert run(*small, *out, "--references", 1) == 2
    assert "differs in references (3 there, 1 here)" in capsys.readouterr().err
    assert run(*small, *out, "--references", 1, "--refresh", "all", "--overwrite") == 0


def test_without_out_nothing_is_left(small: list[object], tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run(*small, "--first", "least-like", "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["first"] == "least_like"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--category", "horse"], "no annotated object is of the category 'horse'; there are cat, dog"),
        (["--category", "dog"], "0 photos of dog can be used"),
        (["--plot", "clicks.txt"], "a picture's name ends in"),
        (["--out", ""], "--out is empty"),
        (["--root", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_mistakes(small: list[object], capsys, options: list[str], message: str):
    assert run(*small, *options) == 2
    assert message in capsys.readouterr().err

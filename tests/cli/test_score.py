"""``score``: saved predictions under another protocol."""

import json
from pathlib import Path

from helpers.command import run


def test_rescoring_needs_no_images(spair_root: Path, tmp_path: Path, raw, capsys):
    out = tmp_path / "out"
    run("eval", "--benchmark", "spair", "--root", spair_root, "--split", "val", "--out", out, *raw)
    for image in (spair_root / "JPEGImages" / "cat").iterdir():
        image.unlink()
    assert run("score", out, "--frame", "original", "--alpha", 0.2, "--pck-threshold", "img") == 0
    assert "frame original" in capsys.readouterr().out
    scores = json.loads((out / "scores-original-alpha-0.2.json").read_text())
    assert list(scores["pck"]["img"]) == ["0.2"]
    assert json.loads((out / "scores.json").read_text())["frame"] == "240x240"

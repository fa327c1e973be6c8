"""``bench``: rows as JSON, a table, a plot."""

import json

from helpers.command import run


def test_json_plot_and_table(tmp_path, capsys):
    picture = tmp_path / "costs.png"
    arguments = ["bench", "--size", "64", "96", "--backbone", "resnet50", "--backend", "fused", "--device", "cpu"]
    assert run(*arguments, "--plot", picture, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["size"] for row in report["rows"]] == [64, 96]
    wanted = {"mode", "backend", "batch", "size", "backbone", "variant", "ms_per_pair", "peak_gib", "stages_ms"}
    assert wanted | {"floor_ms"} <= set(report["rows"][0])
    assert picture.stat().st_size > 10_000
    assert run(*arguments[:3], *arguments[4:]) == 0
    assert "floor: bytes and operations" in capsys.readouterr().out

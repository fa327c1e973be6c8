"""``analyse attention``: a picture."""

from conftest import write_image
from helpers.command import run


def test_attention(weights, tmp_path, capsys):
    photos = [write_image(tmp_path / name, seed=seed) for seed, name in enumerate(("a.jpg", "b.jpg"))]
    out = tmp_path / "attention.png"
    assert run("analyse", "attention", *photos, "--weights", weights, "--most", 3, "--out", out) == 0
    assert "(the most selective)" in capsys.readouterr().out
    assert out.stat().st_size > 10_000
    assert run("analyse", "attention", *photos, "--weights", weights, "--layer", 9, "--out", out) == 2
    assert "--layer 9: this model has layers 1 to 2" in capsys.readouterr().err
    assert run("analyse", "attention", *photos, "--weights", weights, "--out", tmp_path / "a.txt") == 2

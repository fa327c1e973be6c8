"""The pairs with the lowest PCK, and their gallery."""

from pathlib import Path

import numpy as np
import pytest
from helpers.analysis import prediction, write_eval
from helpers.html_page import check_page

from transformatcher.data.benchmarks import load_benchmark
from transformatcher.data.pf import load_pfpascal
from transformatcher.errors import InputError
from transformatcher.evaluation.analysis import failures
from transformatcher.evaluation.analysis.failures import gallery_page, read_gallery, worst_pairs
from transformatcher.evaluation.analysis.run_folders import read_eval
from transformatcher.images import read_image
from transformatcher.viz.pictures import draw_errors

NAMES = ("000000-a-b:cat", "000001-b-a:cat")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_eval(tmp_path / "runs" / "mine", [prediction(NAMES[0], 2.0), prediction(NAMES[1], 20.0)])


def test_worst_first(folder, spair_root):
    worst = worst_pairs(read_eval(folder), spair_root, most=24)
    assert [failure.prediction.name for failure in worst] == [NAMES[1], NAMES[0]]
    assert [failure.pck for failure in worst] == [0, 100]
    assert worst[0].error == pytest.approx(50)  # 20 of 40 pixels
    assert worst[0].radius_px == pytest.approx(4)
    assert len(worst_pairs(read_eval(folder), spair_root, most=1)) == 1


def test_ties_by_the_size_of_the_error(tmp_path, spair_root):
    run = read_eval(write_eval(tmp_path / "x", [prediction(NAMES[0], 9.0), prediction(NAMES[1], 20.0)]))
    assert [failure.error for failure in worst_pairs(run, spair_root, 2)] == pytest.approx([50, 22.5])


def test_page(folder, spair_root):
    run = read_eval(folder)
    text = gallery_page(run, worst_pairs(run, spair_root, 2), "transformatcher analyse failures …")
    page = check_page(text)
    assert len(page.images) == 2
    assert "0 of 2 are correct" in page.images[0]["alt"]
    assert "truncation hard" in text
    assert text.count('"#pair-2"') == 3  # from the contents, from its heading and from its neighbour


def test_mirrored_pairs(pascal_root, tmp_path, monkeypatch):
    """The record says to mirror both images; keypoints are in the mirrored frame, and so is the drawing."""
    (pair,) = load_pfpascal(pascal_root, "trn")
    said = {"benchmark": "pfpascal", "split": "trn"}
    run = read_eval(write_eval(tmp_path / "x", [prediction(pair.name, 3.0, trg_bbox=None)], **said))
    drawn = []

    def draw(src, trg, *points, **options):
        drawn.append((src, trg))
        return draw_errors(src, trg, *points, **options)

    monkeypatch.setattr(failures, "draw_errors", draw)
    check_page(gallery_page(run, worst_pairs(run, pascal_root, 1), "…"))
    ((src, trg),) = drawn
    for pixels, image in ((src, pair.src_image), (trg, pair.trg_image)):
        np.testing.assert_array_equal(pixels, read_image(image)[:, ::-1])


def test_pairs_of_another_seed(coco_root, tmp_path):
    drawn = [load_benchmark("coco", coco_root, limit=1, seed=seed)[0].name for seed in range(9)]
    seed = next(seed for seed, name in enumerate(drawn) if name != drawn[0])
    said = {"benchmark": "coco", "split": None, "seed": seed}
    run = read_eval(write_eval(tmp_path / "x", [prediction(drawn[seed], 3.0)], **said))
    assert [failure.pair.name for failure in worst_pairs(run, coco_root, 1)] == [drawn[seed]]


def test_photos_of_another_benchmark(folder, spair_root):
    listing = spair_root / "Layout" / "large" / "val.txt"
    listing.write_text(NAMES[0] + "\n")
    with pytest.raises(InputError, match="000001-b-a:cat is not in"):
        worst_pairs(read_eval(folder), spair_root, 24)


def test_a_run_that_does_not_say_its_benchmark(folder, spair_root):
    (folder / "run.json").write_text("{}")
    with pytest.raises(InputError, match="does not name the benchmark"):
        worst_pairs(read_eval(folder), spair_root, 24)


def test_reading_a_gallery(folder, spair_root, tmp_path):
    """Text comes back as it was; markup in it stays text."""
    run = read_eval(folder)
    page = tmp_path / "page.html"
    page.write_text(gallery_page(run, worst_pairs(run, spair_root, 2), "analyse failures <script>a & b</script>"))
    gallery = read_gallery(page)
    assert [item.title for item in gallery.items] == [f"1. cat: {NAMES[1]}", f"2. cat: {NAMES[0]}"]
    assert gallery.items[0].facts.startswith("PCK 0.0, 0 of 2 keypoints correct, mean error 50 %")
    assert "0 of 2 are correct" in gallery.items[0].image.alt
    assert gallery.items[0].image.uri.startswith("data:image/jpeg;base64,")
    assert gallery.commands == [run.command, "analyse failures <script>a & b</script>"]


def test_other_pages_are_no_galleries(tmp_path):
    page = tmp_path / "page.html"
    page.write_bytes(b"<p>caf\xe9 <code>x</code></p>")
    assert read_gallery(page) is None
    page.write_text('<article class="failure"><h3>a</h3><img src="https://elsewhere/a.png" alt="a"></article>')
    with pytest.raises(InputError, match=r"page\.html: pair 1 of this gallery has no image"):
        read_gallery(page)

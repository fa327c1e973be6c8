"""Every command that writes, where no file may grow: one sentence, exit code 2, and nothing half-written."""

import json
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import coco_file, write_image
from helpers.analysis import BENCH, prediction, write_checkpoint, write_eval
from helpers.command import run
from helpers.training import tiny_tables, to_toml, write_benchmark

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the size of files")
EXAMPLES = Path(__file__).parents[2] / "src" / "transformatcher" / "examples"
EXPORTS = ("coco", "yolo", "label-studio", "deeplabcut")


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """No file may become larger than so many bytes; what a full disk does at once."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read."""
    folder = tmp_path_factory.mktemp("inputs")
    for seed, name in enumerate(("a.png", "b.png", "photos/1.jpg", "photos/c.png")):
        write_image(folder / name, seed=seed)
    coco_file(folder / "coco")
    note = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 30, 40], "keypoints": [5, 6, 2, 17, 8, 2]}
    marked = {"images": [{"id": 1, "file_name": "1.jpg", "width": 80, "height": 60}], "annotations": [note]}
    marked["categories"] = [{"id": 1, "name": "cat", "keypoints": ["a", "b"]}]
    (folder / "marked.json").write_text(json.dumps(marked))
    (folder / "pairs.csv").write_text('src,trg,keypoints\na.png,b.png,"1,2;3,4"\n')
    (folder / "bench.json").write_text(json.dumps(BENCH))
    write_checkpoint(folder / "weights")
    benchmark = write_benchmark(folder / "PF-PASCAL", n_train=2, n_val=1)
    (folder / "train.toml").write_text(to_toml(tiny_tables(benchmark, epochs=1)))
    return folder


Arguments = Callable[[Path], list[Any]]
PHOTOS = ["a.png", "b.png"]
COMMANDS: dict[str, Arguments] = {
    "match --out": lambda _: ["match", *PHOTOS, "--out", "out/p.png"],
    "match --flow": lambda _: ["match", *PHOTOS, "--flow", "f.pdf"],
    "match --heatmap": lambda _: ["match", *PHOTOS, "--keypoints", "9,9", "--heatmap", "h.svg"],
    "propagate": lambda _: ["propagate", "marked.json", "photos", "--images-root", "photos", "--out", "out.json"],
    "match-pairs": lambda _: ["match-pairs", "pairs.csv", "--out", "out"],
    "annotate": lambda _: ["annotate", "photos", "--predict", "--project", "p.sqlite"],
    "serve": lambda _: ["serve", "--no-browser", "--port", "0"],
    "eval": lambda _: ["eval", "--benchmark", "coco", "--root", "coco", "--limit", "2", "--out", "out"],
    "score": lambda _: ["score", "run"],
    "calibrate": lambda folder: ["calibrate", "run", "--weights", folder / "weights"],
    "calibrate --plot": lambda folder: ["calibrate", "run", "--weights", folder / "weights", "--plot", "plot.png"],
    "propagate --draw": lambda _: [
        "propagate", "marked.json", "photos", "--images-root", "photos", "--out", "out.json", "--draw", "s.png"],
    "train": lambda _: ["train", "train.toml", "--out", "out", "--device", "cpu"],
    "analyse tables": lambda _: ["analyse", "tables", "run", "--bench", "bench.json", "--out", "out"],
    "analyse attention": lambda _: ["analyse", "attention", *PHOTOS, "--out", "out.png"],
    "analyse nonlocality": lambda _: [
        "analyse", "nonlocality", "--benchmark", "coco", "--root", "coco", "--limit", "2", "--out", "out"],
    "report": lambda _: ["report", "run", "--out", "page.html"],
    "simulate-annotation": lambda _: [
        "simulate-annotation", "--root", "coco", "--category", "cat", "--photos", "2", "--out", "out"],
}  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    """All files, by name, but for those that SQLite keeps beside its own."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name[-4:] not in ("-wal", "-shm")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("limit", [0, 700])
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_writes(name, limit, inputs: Path, tmp_path: Path, monkeypatch, capsys):
    for path in inputs.iterdir():
        if path.name != "weights":
            (tmp_path / path.name).symlink_to(path)
    shutil.copytree(inputs / "weights", tmp_path / "weights")  # calibrate writes there
    write_eval(tmp_path / "run", [prediction("p", 1.0), prediction("q", 9.0)])
    monkeypatch.chdir(tmp_path)
    arguments = COMMANDS[name](tmp_path)
    takes_weights = arguments[0] not in ("score", "report", "train", "calibrate") and arguments[1] != "tables"
    words = [*arguments, *(["--weights", "weights"] if takes_weights else [])]
    before = contents(tmp_path)
    sources = contents(inputs)
    with files_limited_to(limit):
        code = run(*words)
    message = (capsys.readouterr().err.splitlines() or [""])[-1]
    assert code == 2 or (limit and code == 0), message  # some files are smaller than the limit
    assert code == 0 or any(reason in message for reason in ("File too large", "disk I/O error")), message
    assert contents(inputs) == sources
    after = contents(tmp_path)
    assert {name: data for name, data in after.items() if name in before} == before
    new = {name: len(data) for name, data in after.items() if name not in before}
    assert [name for name, size in new.items() if size == limit or name.endswith(".new")] == []


@pytest.mark.parametrize("format", EXPORTS)
def test_every_export(format, inputs: Path, tmp_path: Path, monkeypatch, capsys):
    for path in (inputs / "photos").iterdir():
        (tmp_path / "photos").mkdir(exist_ok=True)
        (tmp_path / "photos" / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert run("annotate", "photos", "--import", f"coco:{inputs / 'marked.json'}") in (0, 2)
    before = contents(tmp_path)
    with files_limited_to(0):
        assert run("annotate", "photos", "--export", f"{format}:out.json" if format == "coco" else f"{format}:out") == 2
    assert "\n" not in capsys.readouterr().err.strip().splitlines()[-1]
    assert contents(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["export", "--out", "m.onnx"],
        ["export", "--out", "m.pt2"],
        ["bench", "--what", "stages", "--size", "64", "--plot", "p.png"],
        ["demo", "--out", "out"],
        ["warp", EXAMPLES / "cat_a.jpg", EXAMPLES / "cat_b.jpg", "--out", "out"],
    ],
    ids=lambda words: words[0],
)
def test_those_that_take_long(words, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with files_limited_to(1000):
        assert run(*words) == 2
    assert "cannot be written (File too large)" in capsys.readouterr().err
    assert contents(tmp_path) == {}

"""Any bytes → a command line with files and environment → an exit code and a sentence, never a traceback."""

import argparse
import atexit
import contextlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch
from PIL import Image

from transformatcher.cli.main import build_parser, main
from transformatcher.cli.parser import Parser
from transformatcher.config import model_config
from transformatcher.inference.checkpoint import save_checkpoint
from transformatcher.models import cost
from transformatcher.models.build import build_matcher

T = TypeVar("T")
MEMORY = 400_000_000  # bytes that the commands find in this machine, so that no model takes long
EXPECTED = {0, 1, 2, 130, 141}  # exit codes; 70 is an error of ours
SLOW = {"bench", "export", "simulate-annotation", "demo"}  # a minute or more for each, whatever is given
FRESH_AFTER = 40  # runs that share a folder
NAMES = [
    "a.jpg", "b.jpg", "bad.jpg", "photos", "marked.json", "pairs.csv", "pairs.jsonl", "run", "run.toml",
    "model.toml", "bench.json", "points.json", "weights", "weights/model.safetensors", "coco", "empty", "nothing",
    "fuzzed.json", "fuzzed.jpg", "fuzzed.toml", "fuzzed.csv", "fuzzed.jsonl", "fuzzed.safetensors", "fuzzed.sqlite",
    "fuzzed", "out", "out.json", "out.png", "out.html", "out.sqlite", "out.png/", "../out", ".", "",
    "a\n\x1b[31m.jpg", "caf\udce9.jpg", "<b>.jpg", "x" * 300,
]  # fmt: skip
NUMBERS = [
    "0",
    "1",
    "2",
    "3",
    "-1",
    "0.5",
    "1e-300",
    "1e300",
    "nan",
    "inf",
    "9" * 30,
    "1" + "0" * 400,
    "0x10",
    "1_0",
    "٣",
]
WORDS = [
    "spair", "pfpascal", "pfwillow", "coco", "val", "test", "trn", "auto", "cpu", "cuda", "cuda:9", "meta", "none",
    "all", "240", "40x30", "original", "resnet50", "timm:x", "timm:", "IMAGENET1K_V1", "owner/name",
    "coco:out.json", "yolo:out", "cvat:x", "168,115", "10,10;20,20", "1,2,3", "float32", "bfloat16", "object",
    "img", "cat", "--debug", "--", "-",
]  # fmt: skip
SETTINGS = [
    "image_size", "upsample", "kernel_sigma", "temperature", "coarse_to_fine.passes", "coarse_to_fine.region",
    "grid", "refiner_scale", "match2match.depth", "model.grid", "train.lr", "data.root", "sampler", "kernel_on",
    "a.b.c", "",
]  # fmt: skip
VARIABLES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "COLUMNS", "NO_COLOR", "TERM", "TRANSFORMATCHER_NATIVE"]


TYPICAL = {
    "src": ["a.jpg"], "trg": ["b.jpg"], "annotations": ["marked.json"], "images": ["photos"], "root": ["coco"],
    "benchmark": ["coco"], "split": ["val"], "runs": ["run", "bench.json"], "folder": ["run", "photos"], "pairs":
    ["pairs.csv", "pairs.jsonl"], "keypoints": ["10,10"], "out": ["out", "out.png", "out.json", "out.html"],
    "references": ["all", "1"], "bench": ["bench.json"], "config": ["run.toml", "model.toml"], "draw": ["out.png",
    "1"], "flow": ["flow.png"], "heatmap": ["heat.png"], "export": ["coco:out.json", "yolo:out"], "plot":
    ["plot.png"], "weights": ["weights"], "project": ["out.sqlite"], "device": ["cpu"], "threads": ["1"], "batch":
    ["2"], "limit": ["1"], "most": ["2"],
}  # fmt: skip


class Choices:
    """Bytes → choices, one after another; zeros once they are used up."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, below: int) -> int:
        """A number from 0."""
        if self.at >= len(self.data):
            return 0
        self.at += 1
        return self.data[self.at - 1] % below

    def one(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.number(len(items))]

    def text(self) -> str:
        """A few letters, of any kind; they lead out of no folder."""
        size = self.number(12)
        chosen = self.data[self.at : self.at + size]
        self.at += size
        return chosen.decode("utf-8", "surrogateescape").replace("/", "_").replace("..", "_").replace("\0", "_")


def leaf_parsers(parser: Parser) -> Iterator[Parser]:
    """The parsers of all commands."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for group in groups:
        for child in group.choices.values():
            yield from leaf_parsers(child)
    if not groups:
        yield parser


COMMANDS = [
    parser for parser in leaf_parsers(build_parser()) if parser.prog.removeprefix("transformatcher ") not in SLOW
]


def command_line(choices: Choices) -> list[str]:
    """A command with some of its arguments and options, and values that may or may not fit them."""
    parser = choices.one(COMMANDS)
    words = parser.prog.split()[1:]
    for action in parser._actions:
        if not action.option_strings:
            words += [
                _value(action, choices) for _ in range(choices.number(3) if action.nargs else choices.number(8) and 1)
            ]
    options = [action for action in parser._actions if action.option_strings and action.dest not in ("help", "debug")]
    given = [action for action in options if action.required and choices.number(8)]
    given += [choices.one(options) for _ in range(choices.number(5))]
    for action in given:
        words.append(choices.one(action.option_strings))
        count = {0: 0, "+": 1 + choices.number(2)}.get(action.nargs if action.nargs is not None else 1, 1)
        words += [_value(action, choices) for _ in range(count)]
    if any(action.dest == "weights" for action in parser._actions) and "--refiner" not in words and choices.number(8):
        words += ["--weights", "weights"]  # a small model
    return words + ([choices.text()] if not choices.number(20) else [])


def _value(action: argparse.Action, choices: Choices) -> str:
    if action.choices and choices.number(6):
        return str(choices.one(list(action.choices)))
    if action.dest == "settings":
        return f"{choices.one(SETTINGS)}={choices.one([*NUMBERS, *WORDS, '[4, 4]', '[[', '64'])}"
    if action.dest in TYPICAL and choices.number(3):
        return choices.one(TYPICAL[action.dest])
    kind = choices.number(16)
    if kind == 0:
        return choices.text()
    if kind == 1:
        return choices.one(WORDS)
    if kind == 2 or (kind < 14 and action.type is not None):
        return choices.one(NUMBERS)
    return choices.one(NAMES)


def make_files(folder: Path) -> None:
    """Small sound files of every kind that commands read."""
    rng = np.random.default_rng(0)
    for name in ("a.jpg", "b.jpg", "photos/c.jpg", "photos/d.png", "coco/images/1.jpg", "coco/images/2.jpg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (60, 80, 3), dtype=np.uint8)).save(folder / name)
    for name in ("a\n\x1b[31m.jpg", "caf\udce9.jpg", "<b>.jpg", "bad.jpg"):
        with contextlib.suppress(OSError):  # a file system with UTF-8 alone
            (folder / name).write_bytes((folder / "a.jpg").read_bytes()[: 900 if name == "bad.jpg" else None])
    (folder / "empty").mkdir()
    categories = [{"id": 1, "name": "cat", "keypoints": ["left eye", "right eye"]}]
    notes = [
        {"id": i, "image_id": i, "category_id": 1, "bbox": [1, 2, 30, 40], "keypoints": [5, 6, 2, 7, 8, 2]}
        for i in (1, 2)
    ]
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 80, "height": 60} for i in (1, 2)]
    coco = {"images": images, "categories": categories, "annotations": notes}
    (folder / "coco" / "annotations.json").write_text(json.dumps(coco))
    marked = {"images": [images[0] | {"file_name": "a.jpg"}], "categories": categories, "annotations": notes[:1]}
    (folder / "marked.json").write_text(json.dumps(marked))
    (folder / "pairs.csv").write_text('src,trg,keypoints\na.jpg,b.jpg,"1,2;3,4"\na.jpg,bad.jpg,\n')
    (folder / "pairs.jsonl").write_text('{"src": "a.jpg", "trg": "b.jpg", "keypoints": [[1, 2]]}\n')
    (folder / "points.json").write_text('{"nose": [10, 10]}')
    (folder / "model.toml").write_text("[model]\nimage_size = 64\nstages = [3]\n")
    table = '{benchmark = "coco", folder = "coco"}'
    (folder / "run.toml").write_text(
        f"[data]\nroot = 'nowhere'\ntrain = [{table}]\nvalidate = [{table}]\npairs_per_epoch = 2\n"
    )
    row = {"mode": "infer", "backend": "fused", "batch": 1, "size": 240, "backbone": "resnet101", "variant": "paper"}
    row |= {"ms_per_pair": 8.0, "peak_gib": 1.5, "gflops": 33.1, "matches": 50625, "floor_ms": 4.0}
    (folder / "bench.json").write_text(json.dumps({"device": "cpu", "device_peaks": {}, "rows": [row]}))
    prediction = {"name": "0", "category": "cat", "kp_index": [0], "peak": [0.5], "difficulty": {"scale": 1}}
    prediction |= {"src_size": [60, 80], "trg_size": [60, 80], "trg_bbox": [1, 2, 30, 40], "cycle_error": [0.1]}
    prediction |= {"src_kps": [[1, 2]], "trg_kps": [[1, 2]], "pred_kps": [[1, 2]]}
    (folder / "run").mkdir()
    (folder / "run" / "predictions.jsonl").write_text(json.dumps(prediction) + "\n")
    arguments = {"benchmark": "spair", "split": "val", "n_pairs": 1}
    (folder / "run" / "run.json").write_text(json.dumps({"command": "eval", "arguments": arguments, "info": {}}))
    torch.manual_seed(0)
    config = model_config(
        {"backbone": "resnet50", "stages": [4], "image_size": [64, 64], "match2match.depth": 1, "sampler": "bilinear"}
    )
    save_checkpoint(folder / "weights", build_matcher(config), config)


SPARE = Path(tempfile.mkdtemp(prefix="fuzz-commands-"))
atexit.register(shutil.rmtree, SPARE, ignore_errors=True)
_state = {"runs": 0}


def working_folder() -> Path:
    """A folder with all files, made anew now and then: commands write into it."""
    sound, work = SPARE / "sound", SPARE / "above" / "work"
    if not sound.exists():
        sound.mkdir()
        make_files(sound)
    if _state["runs"] % FRESH_AFTER == 0:
        shutil.rmtree(work.parent, ignore_errors=True)
        shutil.copytree(sound, work)
    _state["runs"] += 1
    return work


def run_command(words: Sequence[str], environment: dict[str, str]) -> tuple[int, str, str]:
    """Exit code, output and errors of a command in this process; servers end at once."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(cost, "machine_bytes", return_value=MEMORY),
        mock.patch("transformatcher.web.listen.run_server", _ends_at_once),
        mock.patch("transformatcher.web.studio.server.run_server", _ends_at_once),
        mock.patch("transformatcher.web.label_studio.run_server", _ends_at_once),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        try:
            code = main(list(words))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return code, output.getvalue(), errors.getvalue()


def _ends_at_once(_app: Any, bound: Any, *_args: object, **_options: object) -> None:
    bound.close()


def check_command(data: bytes) -> None:
    """A command line of any bytes does what it says, or says why not in one sentence."""
    choices = Choices(data)
    words = command_line(choices)
    name = choices.one(VARIABLES)
    environment = {name: choices.one([*NUMBERS, "x"])} if not choices.number(4) else {}
    work, before = working_folder(), Path.cwd()
    for path in work.glob("fuzzed*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for ending in ("", ".json", ".jpg", ".toml", ".csv", ".jsonl", ".safetensors", ".sqlite"):
        (work / f"fuzzed{ending}").write_bytes(data[choices.at :])
    os.chdir(work)
    try:
        code, _, errors = run_command(words, environment)
    finally:
        os.chdir(before)
    assert code in EXPECTED, f"{words} {environment}: exit code {code}: {errors[-2000:]}"
    assert "--debug" in words or "Traceback" not in errors, f"{words} {environment}: {errors[-2000:]}"
    if code == 2 and errors and "--debug" not in words:
        lines = [line for line in errors.splitlines() if line.startswith(("transformatcher", "usage"))]
        assert lines, f"{words} {environment}: {errors[-2000:]}"
        assert all(line.isprintable() for line in lines), f"{words} {environment}: {errors[-2000:]}"

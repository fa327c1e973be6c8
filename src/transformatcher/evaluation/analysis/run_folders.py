"""Folders and files that other commands wrote → what is in them, and the commands that made them."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformatcher.config import model_config, to_plain
from transformatcher.data.benchmarks import BENCHMARKS, load_benchmark
from transformatcher.errors import InputError
from transformatcher.evaluation.metrics import Kind
from transformatcher.evaluation.predict import PREDICTIONS, RUN, Prediction, read_predictions, read_run
from transformatcher.evaluation.scores import PUBLISHED_KIND, score
from transformatcher.files import read_json
from transformatcher.inference.checkpoint import CONFIG, SHIPPED_DESCRIPTION
from transformatcher.schema import ImagePair

FOLDERS = {"spair": "SPair-71k", "pfpascal": "PF-PASCAL", "pfwillow": "PF-WILLOW", "coco": "COCO"}


@dataclass(frozen=True)
class EvalRun:
    """A folder that eval wrote."""

    folder: Path
    run: Mapping[str, Any]  # what run.json says
    predictions: Sequence[Prediction]

    @property
    def benchmark(self) -> str:
        """spair, pfpascal, …, or nothing where that is not known."""
        return str(self.run.get("benchmark", ""))

    @property
    def kind(self) -> Kind:
        """The threshold that the benchmark is published with."""
        wanted = PUBLISHED_KIND.get(self.benchmark, "img")
        return wanted if wanted in self.scores["pck"] else "img"

    @property
    def data(self) -> str:
        """The benchmark and its split, as people call them."""
        return f"{FOLDERS.get(self.benchmark, self.benchmark)} {self.run.get('split') or ''}".strip()

    @property
    def model(self) -> str:
        """A few words on the model."""
        model = self.run.get("model", {})
        words = str(self.run.get("weights", self.folder.name)).replace(SHIPPED_DESCRIPTION, "shipped model")
        if model.get("matcher") == "none":
            words = f"raw correlation, {model.get('backbone')}"
        size = model.get("image_size")
        return f"{words}, {size[0]}×{size[1]}" if size else words

    @property
    def command(self) -> str:
        """What writes this folder again."""
        return eval_command(self.run, self.folder.name)

    @cached_property
    def scores(self) -> dict[str, Any]:
        """PCK in the published frame, from the predictions."""
        return score(self.predictions)


def read_eval(folder: Path) -> EvalRun:
    """A folder that eval wrote, or an error that says what is missing."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; name one that transformatcher eval wrote (--out)")
    run = read_run(folder)
    if not isinstance(run.get("split"), str | None) or not isinstance(run.get("model", {}), dict):
        raise InputError(f"{folder / RUN}: not what eval writes; predict anew with --overwrite")
    return EvalRun(folder, run, read_predictions(folder))


def pairs_of(run: EvalRun, root: Path) -> Mapping[str, ImagePair]:
    """The pairs that a run predicted, by name, and others of its split."""
    benchmark = next((name for name in BENCHMARKS if name == run.benchmark), None)
    if benchmark is None:
        raise InputError(f"{run.folder / RUN}: does not say which benchmark these predictions are of")
    count = run.run.get("n_pairs", len(run.predictions))
    split, seed = run.run.get("split") or "test", run.run.get("seed", 0)
    return {pair.name: pair for pair in load_benchmark(benchmark, root, split, n_pairs=count, seed=seed)}


def eval_command(run: Mapping[str, Any], name: str) -> str:
    """The eval command behind a run.json; the benchmark's folder has its usual name, as the real one is not kept."""
    benchmark = str(run.get("benchmark", "?"))
    parts = ["transformatcher", "eval", "--benchmark", benchmark, "--root", FOLDERS.get(benchmark, "DIR")]
    if run.get("split"):
        parts += ["--split", str(run["split"])]
    parts += _model_arguments(str(run.get("weights", "")), run.get("model", {}))
    if "n_pairs" in run:
        parts += ["--limit", str(run["n_pairs"])]  # where that is all of them, it changes nothing
    if run.get("seed"):
        parts += ["--seed", str(run["seed"])]
    return shlex.join([*parts, "--out", f"out/{name}"])


def _model_arguments(weights: str, model: Mapping[str, Any]) -> list[str]:
    if model.get("matcher") == "none":
        backbone = str(model.get("backbone"))
        usual = to_plain(model_config({"variant": "raw", "backbone": backbone}))
        changed = [f"{key}={_toml(value)}" for key, value in model.items() if key in usual and value != usual[key]]
        file = weights.removeprefix("raw correlation, ")
        settings = [word for setting in changed for word in ("--set", setting)]
        return ["--refiner", "none", "--backbone", backbone, "--backbone-weights", file, *settings]
    shipped = weights.startswith(SHIPPED_DESCRIPTION)
    source, _, changes = weights.removeprefix(SHIPPED_DESCRIPTION).partition(" with ")
    settings = [word for setting in re.split(r", (?=\w+ *=)", changes) if setting for word in ("--set", setting)]
    return ([] if shipped else ["--weights", source]) + settings


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_bench(path: Path) -> dict[str, Any]:
    """What ``bench --json`` printed, from a file."""
    report = read_json(path)
    if not is_bench(report):
        raise InputError(f"{path}: not what transformatcher bench --json prints (device, ceilings, rows)")
    return dict(report)


def is_bench(data: Any) -> bool:
    """Whether this is what ``bench --json`` prints."""
    needed = {"path", "batch", "size", "backbone", "variant", "ms_per_pair", "peak_gib", "gflops", "mode", "matches",
              "floor_ms"}  # fmt: skip
    if not isinstance(data, dict) or not isinstance(data.get("rows"), list) or "device" not in data:
        return False
    return bool(data["rows"]) and all(isinstance(row, dict) and needed <= set(row) for row in data["rows"])


def bench_command(report: Mapping[str, Any]) -> str:
    """The bench command behind a report."""

    def values(key: str) -> list[str]:
        return list(dict.fromkeys(str(row[key]) for row in report["rows"]))

    first = report["rows"][0]
    parts = ["transformatcher", "bench", "--backbone", first["backbone"], "--variant", first["variant"]]
    for key in ("batch", "size", "path"):
        parts += [f"--{key}", *values(key)]
    if first["mode"] == "train":
        parts.append("--train")
    if str(report["device"]).startswith("cpu"):
        parts += ["--device", "cpu"]
    return shlex.join([*parts, "--json"])


def is_eval(folder: Path) -> bool:
    """Whether eval wrote this folder."""
    return (folder / PREDICTIONS).is_file()


def is_checkpoint(folder: Path) -> bool:
    """Whether this folder holds weights, and so nothing to report."""
    return (folder / CONFIG).is_file()

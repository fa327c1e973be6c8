"""Folders and files that other commands wrote → what is in them, and the commands that made them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformatcher.data.benchmarks import BENCHMARKS, PckThreshold, benchmark_folder, benchmark_title, load_benchmark
from transformatcher.errors import InputError
from transformatcher.evaluation.predict import PREDICTIONS, Prediction, read_predictions
from transformatcher.evaluation.scores import published_threshold, score
from transformatcher.evaluation.stored import BenchReport, checked, read_eval_arguments
from transformatcher.files import read_json
from transformatcher.inference.checkpoint import CONFIG
from transformatcher.run_folder import RUN, format_command
from transformatcher.schema import ImagePair

OPTIONS = (
    "split", "weights", "refiner", "backbone", "backbone_weights", "set", "limit", "seed", "facing", "unrelated",
    "all_points", "try_mirrored",
)  # of eval  # fmt: skip


@dataclass(frozen=True)
class EvalRun:
    """A folder that eval wrote."""

    folder: Path
    arguments: Mapping[str, Any]  # of the run, from run.json; empty where that is missing or damaged
    predictions: Sequence[Prediction]

    @property
    def benchmark(self) -> str:
        """spair, pfpascal, …, or nothing where that is not known."""
        return str(self.arguments.get("benchmark", ""))

    @property
    def pck_threshold(self) -> PckThreshold:
        """The threshold that the benchmark is published with."""
        wanted = published_threshold(self.benchmark)
        return wanted if wanted in self.scores["pck"] else "img"

    @property
    def data(self) -> str:
        """The benchmark and its split, such as ``PF-PASCAL test``."""
        return benchmark_title(self.benchmark, self.arguments.get("split"))

    @property
    def model(self) -> str:
        """A short description of the model."""
        model = self.arguments.get("model", {})
        name = str(self.arguments.get("weights") or "shipped model")
        if self.arguments.get("refiner") == "none":
            name = f"raw correlation, {model.get('backbone')}"
        elif settings := self.arguments.get("set"):
            name += " with " + ", ".join(f"{key}={value}" for key, value in settings.items())
        size = model.get("image_size")
        return f"{name}, {size[0]}×{size[1]}" if size else name

    @property
    def command(self) -> str:
        """The command that writes this folder again; the benchmark's folder has its usual name."""
        chosen = {key: self.arguments.get(key) for key in OPTIONS}
        root = benchmark_folder(self.benchmark) or "DIR"
        return format_command(
            ["eval"], {"benchmark": self.benchmark or "?", "root": root, **chosen, "out": f"out/{self.folder.name}"}
        )

    @cached_property
    def scores(self) -> dict[str, Any]:
        """PCK in the published frame, from the predictions."""
        return score(self.predictions)


def read_eval(folder: Path) -> EvalRun:
    """Read a folder that eval wrote; an error names what is missing."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; name one that transformatcher eval wrote (--out)")
    return EvalRun(folder, read_eval_arguments(folder), read_predictions(folder))


def pairs_of(run: EvalRun, root: Path) -> Mapping[str, ImagePair]:
    """The pairs that a run predicted, by name, and others of its split."""
    if run.benchmark not in BENCHMARKS:
        raise InputError(f"{run.folder / RUN}: does not name the benchmark of these predictions; run eval again")
    count = run.arguments.get("n_pairs", len(run.predictions))
    split, seed = run.arguments.get("split") or "test", run.arguments.get("seed") or 0
    facing, unrelated = run.arguments.get("facing"), bool(run.arguments.get("unrelated"))
    pairs = load_benchmark(run.benchmark, root, split, limit=count, seed=seed, facing=facing, unrelated=unrelated)
    return {pair.name: pair for pair in pairs}


def read_bench(path: Path) -> dict[str, Any]:
    """Read a file with the output of ``bench --json``."""
    report = read_json(path)
    if not is_bench(report):
        raise InputError(f"{path}: not what transformatcher bench --json prints (device, device_peaks, rows)")
    return check_bench(report, path)


def check_bench(report: Any, path: Path) -> dict[str, Any]:
    """What a file like one of ``bench --json`` holds, or an InputError that names what it should not."""
    return dict(checked(BenchReport, report, path, "run transformatcher bench --json again"))


def is_bench(data: Any) -> bool:
    """Whether this is what ``bench --json`` prints."""
    needed = {"backend", "batch", "size", "backbone", "variant", "ms_per_pair", "peak_gib", "gflops", "mode", "matches",
              "floor_ms"}  # fmt: skip
    if not isinstance(data, dict) or not isinstance(data.get("rows"), list) or "device" not in data:
        return False
    return bool(data["rows"]) and all(isinstance(row, dict) and needed <= set(row) for row in data["rows"])


def bench_command(report: Mapping[str, Any]) -> str:
    """The bench command that made a report."""
    first = report["rows"][0]
    options = {key: first[key] for key in ("backbone", "variant")}
    options |= {key: list(dict.fromkeys(row[key] for row in report["rows"])) for key in ("batch", "size", "backend")}
    on_cpu = str(report["device"]).startswith("cpu")
    return format_command(
        ["bench"], options | {"train": first["mode"] == "train", "device": "cpu" if on_cpu else None, "json": True}
    )


def is_eval(folder: Path) -> bool:
    """Whether eval wrote this folder."""
    return (folder / PREDICTIONS).is_file()


def is_checkpoint(folder: Path) -> bool:
    """Whether this folder holds weights, and so nothing to report."""
    return (folder / CONFIG).is_file()

"""A table or figure of the paper, and what is here → the steps that make it: done, to do, or what they wait for."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformatcher.config import RunConfig
from transformatcher.data.benchmarks import BENCHMARKS, benchmark_folder
from transformatcher.errors import InputError
from transformatcher.evaluation.analysis.nonlocality_run import SUMMARY
from transformatcher.evaluation.predict import PREDICTIONS
from transformatcher.evaluation.scores import SCORES
from transformatcher.files import read_json
from transformatcher.run_folder import read_arguments
from transformatcher.training.ablation_table import COST
from transformatcher.training.model import init_model
from transformatcher.training.reproduction import MODELS, PaperItem, PictureOf
from transformatcher.training.run_log import METRICS
from transformatcher.training.study import StudyRow, read_study
from transformatcher.training.trainer import BEST, LAST

# Training of a pair, forward and backward: ResNet-101, 240 × 240, batches of 16, fused (docs/speed.md).
H200_MS_PER_PAIR = 2.49
PICTURES = 8  # in a figure
WARPED = "pairs.json"  # which pairs a folder of warps shows


@dataclass(frozen=True)
class Setting:
    """Where things are, and what to use in place of what the paper used.

    Args:
        data: the folder that the benchmarks' folders are in.
        out: everything is written there.
        split: of SPair-71k that is evaluated; the paper's is the test split.
        weights: a checkpoint in place of all trainings; None: train. ``shipped`` is the model in the package.
        settings: dotted keys that change all trainings, such as other weights of the backbone.
        device: as in all commands.
    """

    data: Path
    out: Path
    split: str = "test"
    weights: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"

    def folder(self, kind: str, model: str, rest: str = "") -> Path:
        """Where the results of a step are; models that ``weights`` stands for share theirs."""
        return self.out / kind / (("weights" if self.weights else model) + rest)


@dataclass(frozen=True)
class Step:
    """One step of a plan.

    Args:
        kind: train, eval, cost, nonlocality, warps or errors.
        model: a key of MODELS.
        out: where its results are.
        words: the command that does it; empty for steps without a command of their own.
        done: whether its results are there.
        obstacle: why it cannot be done; empty if it can.
        hours: on one H200.
        picture: what is drawn.
    """

    kind: str
    model: str
    out: Path
    words: Sequence[str] = ()
    done: bool = False
    obstacle: str = ""
    hours: float = 0.0
    picture: PictureOf | None = None

    @property
    def name(self) -> str:
        """Its folder, which says what it is of."""
        return self.out.parent.name if self.out.suffix else self.out.name

    @property
    def state(self) -> str:
        """``done``, ``to do``, or ``cannot: …``."""
        return "done" if self.done else f"cannot: {self.obstacle}" if self.obstacle else "to do"


def plan(items: Sequence[PaperItem], setting: Setting) -> list[Step]:
    """The steps of all items in the order in which they are done, each once."""
    steps: dict[Path, Step] = {}

    def add(step: Step) -> Step:
        return steps.setdefault(step.out, step)

    for item in items:
        for model in item.models:
            trained = None if setting.weights else add(_train(model, setting))
            evals = {name: add(_evaluate(model, name, setting, trained)) for name in item.benchmarks_of(model)}
            if any(cost.model == model for cost in item.costs) and not setting.weights:
                add(_cost(model, setting))
            for picture in item.pictures:
                if picture.model == model:
                    add(_draw(picture, setting, trained, evals.get("spair")))
    return list(steps.values())


def study_row(model: str, setting: Setting) -> StudyRow:
    """The row that trains a model, on the data of this setting."""
    study, label = MODELS[model]
    settings = {"data.root": str(setting.data), **setting.settings}
    return next(row for row in _read_study(study, json.dumps(settings)).rows if row.label == label)


@lru_cache(maxsize=8)  # models share studies
def _read_study(name: str, settings: str) -> Any:
    return read_study(name, json.loads(settings))


def weights_of(model: str, setting: Setting) -> str | None:
    """The checkpoint of a model; None for that in the package."""
    if setting.weights:
        return None if setting.weights == "shipped" else setting.weights
    return str(setting.folder("train", model) / BEST)


def _train(model: str, setting: Setting) -> Step:
    out, row = setting.folder("train", model), study_row(model, setting)
    done = _epochs_done(out) >= row.config.train.epochs and (out / BEST).is_dir()
    resume = ["--resume"] * (out / LAST).is_file()
    words = ["train", str(out.with_suffix(".json")), "--out", str(out), "--device", setting.device, *resume]
    obstacle = "" if done else _obstacle_of_training(row.config)
    return Step("train", model, out, words, done, obstacle, _hours(row.config))


def _epochs_done(out: Path) -> int:
    try:
        lines = (out / METRICS).read_text(encoding="utf-8").splitlines()
        return int(json.loads(lines[-1])["epoch"])
    except (OSError, ValueError, LookupError, TypeError):
        return 0


def _obstacle_of_training(config: RunConfig) -> str:
    for source in (*config.data.train, *config.data.validate):
        if problem := _missing_list(source.benchmark, Path(config.data.root) / source.folder, source.split):
            return problem
    settings = config.train
    return _missing_weights(settings.backbone_weights, settings.init_from, config.model.backbone, config)


def _missing_list(benchmark: str, root: Path, split: str) -> str:
    """Why a split cannot be read; empty if its list of pairs is there."""
    record = BENCHMARKS[benchmark]
    if root.is_dir() and (not record.pair_lists or any(root.glob(record.pair_lists.format(split=split)))):
        return ""
    return f"{record.title} {split} is not in {root}; it comes from {record.url}"


_weights_found: dict[tuple[Any, ...], str] = {}


def _missing_weights(*parts: Any) -> str:
    """Why the weights that a training starts from cannot be loaded; asked once for all rows that share them."""
    *key, config = parts
    if tuple(key) not in _weights_found:
        try:
            init_model(config)
            _weights_found[tuple(key)] = ""
        except InputError as error:
            _weights_found[tuple(key)] = str(error)
    return _weights_found[tuple(key)]


def _hours(config: RunConfig) -> float:
    sizes = [BENCHMARKS[source.benchmark].n_pairs.get(source.split) or 0 for source in config.data.train]
    pairs = config.data.pairs_per_epoch or sum(sizes)
    return pairs * config.train.epochs * H200_MS_PER_PAIR / 3.6e6


def _evaluate(model: str, benchmark: str, setting: Setting, trained: Step | None) -> Step:
    split = setting.split if benchmark == "spair" else "test"
    out = setting.folder("eval", model, f"-{benchmark}-{split}")
    root = setting.data / benchmark_folder(benchmark)
    words = ["eval", "--benchmark", benchmark, "--root", str(root), "--split", split, "--out", str(out)]
    weights = weights_of(model, setting)
    words += ["--precision", "float32", "--device", setting.device, *(["--weights", weights] if weights else [])]
    problem = _missing_list(benchmark, root, split) or _waits_for(trained)
    return Step("eval", model, out, words, _is_evaluated(out), problem)


def _is_evaluated(out: Path) -> bool:
    if not (out / PREDICTIONS).is_file() or not (out / SCORES).is_file():
        return False
    return bool(read_json(out / SCORES).get("n_pairs") == read_arguments(out).get("n_pairs"))


def _waits_for(step: Step | None) -> str:
    return f"it waits for {step.out}" if step is not None and step.obstacle and not step.done else ""


def _cost(model: str, setting: Setting) -> Step:
    out = setting.folder("cost", model) / COST
    return Step("cost", model, out, done=out.is_file())


def _draw(picture: PictureOf, setting: Setting, trained: Step | None, evaluated: Step | None) -> Step:
    root, weights = setting.data / benchmark_folder("spair"), weights_of(picture.model, setting)
    given = ["--weights", weights] if weights else []
    if picture.kind == "nonlocality":
        out = setting.folder("nonlocality", picture.model)
        words = ["analyse", "nonlocality", "--benchmark", "spair", "--root", str(root), "--split", setting.split]
        words += ["--out", str(out), "--device", setting.device, *given]
        problem = _missing_list("spair", root, setting.split) or _waits_for(trained)
        return Step("nonlocality", picture.model, out, words, (out / SUMMARY).is_file(), problem, picture=picture)
    assert evaluated is not None
    waits = evaluated.obstacle or _waits_for(trained)
    if picture.kind == "errors":
        out = setting.folder("errors", picture.model) / "failures.html"
        words = ["analyse", "failures", str(evaluated.out), "--root", str(root), "--most", str(PICTURES)]
        return Step("errors", picture.model, out, [*words, "--out", str(out)], out.is_file(), waits, picture=picture)
    out = setting.folder("warps", picture.model, f"-{picture.factor or 'any'}")
    return Step("warps", picture.model, out, done=(out / WARPED).is_file(), obstacle=waits, picture=picture)

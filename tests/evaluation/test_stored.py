"""Files of ours that somebody changed: any value of another type is refused, and named."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.analysis import BENCH, measured, prediction, write_eval
from safetensors.torch import save_file

from transformatcher.cli.main import main
from transformatcher.errors import InputError
from transformatcher.evaluation.analysis.nonlocality_figures import plot_difficulty, plot_nonlocality
from transformatcher.evaluation.analysis.nonlocality_run import summarise
from transformatcher.evaluation.analysis.paper_tables import ablation_table, cost_table, nonlocality_tables
from transformatcher.evaluation.analysis.report import collect_inputs
from transformatcher.evaluation.analysis.run_folders import read_eval
from transformatcher.evaluation.scores import primary_metric, score_warnings
from transformatcher.evaluation.stored import read_eval_arguments
from transformatcher.run_folder import RUN
from transformatcher.training.state import load_state
from transformatcher.viz.plots import plot_ablation, plot_costs

VALUES: list[Any] = [
    None,
    True,
    -1,
    1e308,
    10**30,
    float("nan"),
    "text",
    "<b>\ud800",
    [],
    [[]],
    {},
    [1, "a"],
    {"a": {}},
]
ABLATION = {
    "name": "study", "title": "A study", "question": "Why?", "columns": ["val @ 0.1"],
    "pck_thresholds": {"val": "img"},
    "rows": [
        {"label": "one", "seeds": 2, "val @ 0.1": {"mean": 2.5, "spread": 0}}
    ],
}  # fmt: skip


def changed(data: Any) -> Iterator[Any]:
    """The same data with one of its values replaced, or left out; every value in turn."""
    if not isinstance(data, dict | list):
        return
    for key in data if isinstance(data, dict) else range(len(data)):
        for value in VALUES:
            yield {**data, key: value} if isinstance(data, dict) else [*data[:key], value, *data[key + 1 :]]
        for inner in changed(data[key]):
            yield {**data, key: inner} if isinstance(data, dict) else [*data[:key], inner, *data[key + 1 :]]
        yield {k: v for k, v in data.items() if k != key} if isinstance(data, dict) else data[:key] + data[key + 1 :]


def refusal(read: Callable[[Any], object], source: Any) -> str:
    """The message of the InputError that reading raises; empty if it raises none."""
    try:
        read(source)
    except InputError as error:
        return str(error)
    return ""


def test_arguments_of_eval(tmp_path: Path):
    predictions = [prediction("p", 1)]
    folder = write_eval(tmp_path / "run", predictions, seed=0, set={"a": 1}, unrelated=False, facing="same")
    run = json.loads((folder / RUN).read_text())
    scores = read_eval(folder).scores
    for other in changed(run["arguments"]):
        (folder / RUN).write_text(json.dumps(run | {"arguments": other}))
        if message := refusal(read_eval, folder):
            assert str(folder / RUN) in message
            continue
        found = read_eval(folder)
        assert found.benchmark in ("spair", "")
        assert found.model + found.data + found.command
        primary_metric(scores, read_eval_arguments(folder))
        score_warnings(predictions, read_eval_arguments(folder))


@pytest.mark.parametrize("name", ["x/../../../pwned", "/etc", "<script>", "spair\n", 5, None, ["spair"], {"spair": 1}])
def test_a_benchmark_is_one_of_ours(name, tmp_path: Path):
    folder = write_eval(tmp_path / "run", [prediction("p", 1)], benchmark=name)
    for command in (
        ["score", folder],
        ["calibrate", folder],
        ["analyse", "tables", folder, "--out", tmp_path / "a" / "b"],
    ):
        assert main([str(word) for word in command]) == 2
    with pytest.raises(InputError, match="is no benchmark that is known here; run eval again"):
        read_eval_arguments(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    assert sorted(path.name for path in folder.iterdir()) == ["predictions.jsonl", "run.json"]


def read_all(path: Path, data: Any) -> bool:
    """Whether a file is read, and everything is drawn from it; False if an InputError names the file."""
    path.write_text(json.dumps(data))
    if message := refusal(collect_inputs, [path]):
        assert path.name in message
        return False
    inputs = collect_inputs([path])
    for _, bench in inputs.benches:
        assert cost_table([bench]).sections
        plot_costs(bench)
    for ablation in inputs.ablations:
        assert ablation_table(ablation).sections
        if ablation.get("pck_thresholds") and ablation["rows"]:
            plot_ablation(ablation)
    for _, summary in inputs.nonlocalities:
        assert nonlocality_tables(summary)
        plot_nonlocality(summary)
        plot_difficulty(summary)
    return True


@pytest.mark.parametrize("name", ["bench", "ablation", "nonlocality"])
def test_reports_of_other_commands(name, tmp_path: Path):
    summary = json.loads(json.dumps(summarise([measured("a", 1.0, 0), measured("b", 2.0, 1)])))
    summary["difficulty"] = {form: {"scale": cells["scale"]} for form, cells in summary["difficulty"].items()}
    summary["layers"] = {form: layers[:1] for form, layers in summary["layers"].items()}
    summary["convolutions"] = summary["convolutions"][:1]
    data = {"bench": BENCH | {"rows": BENCH["rows"][:1]}, "ablation": ABLATION, "nonlocality": summary}[name]
    assert read_all(tmp_path / f"{name}.json", data)
    others = list(changed(data))
    read = [read_all(tmp_path / f"{name}.json", other) for other in others[:: max(1, len(others) // 60)]]
    assert not all(read)


def test_deeply_nested(tmp_path: Path):
    folder = write_eval(tmp_path / "run", [prediction("p", 1)])
    text = '{"command": "eval", "arguments": {"model": ' + '{"a": ' * 900 + "1" + "}" * 900 + "}}"
    (folder / RUN).write_text(text)
    read_eval(folder)


@pytest.mark.parametrize("state", [None, "{", {"epoch": "x"}, [1], {"step": 1.5}, {"metrics": {}}])
def test_a_state_that_is_none(state, tmp_path: Path):
    model = torch.nn.Linear(2, 3)
    path = tmp_path / "last.safetensors"
    save_file(
        {f"model.{k}": v for k, v in model.state_dict().items()},
        path,
        {} if state is None else {"state": state if state == "{" else json.dumps(state)},
    )
    with pytest.raises(InputError, match=r"last\.safetensors: not the state of a training run"):
        load_state(path, model, None, torch.optim.Adam(model.parameters()))


@pytest.mark.parametrize("key", ["optimizer.x.exp_avg", "optimizer.7.exp_avg", "optimizer.0.exp_avg", "other.thing"])
def test_moments_of_another_model(key, tmp_path: Path):
    model = torch.nn.Linear(2, 3)
    path = tmp_path / "last.safetensors"
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()} | {key: torch.zeros(5)}
    save_file(tensors, path, {"state": "{}"})
    if key == "other.thing":
        load_state(path, model, None, torch.optim.Adam(model.parameters()))
        return
    with pytest.raises(InputError, match="its optimizer belongs to another model"):
        load_state(path, model, None, torch.optim.Adam(model.parameters()))

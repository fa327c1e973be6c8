"""A run survives what can happen to it, learns, and comes out the same however it was run."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.training import tiny_config, tiny_tables, to_toml, write_benchmark
from safetensors.torch import load_file

from transformatcher.cli.main import main
from transformatcher.config import run_config
from transformatcher.errors import InputError
from transformatcher.files import exclusive_lock
from transformatcher.inference.checkpoint import load_checkpoint
from transformatcher.models import weights_io
from transformatcher.models.weights_io import read_safetensors
from transformatcher.run_folder import RUN, Run, read_run, write_run
from transformatcher.training.distributed import DistributedContext
from transformatcher.training.objective import Objective
from transformatcher.training.run_log import METRICS
from transformatcher.training.trainer import BEST, LAST, Trainer, check_folder, describe_run, train

CPU = torch.device("cpu")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0"}


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("data") / "PF-PASCAL")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def whole_run(benchmark: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupts."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("whole")
    train(tiny_config(benchmark), out, CPU)
    return out


def assert_same_end(a: Path, b: Path) -> None:
    """Bit for bit."""
    for name in (LAST, f"{BEST}/model.safetensors"):
        one, two = load_file(a / name), load_file(b / name)
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)
    rows = [[json.loads(line) for line in (out / METRICS).read_text().splitlines()] for out in (a, b)]
    for row in (*rows[0], *rows[1]):
        row.pop("seconds")
    assert rows[0] == rows[1]


class TestRunFolder:
    def test_what_it_holds(self, whole_run: Path, benchmark: Path):
        run = read_run(whole_run)
        assert run.arguments["train"]["seed"] == 0
        assert run.arguments["train"]["batch_size"] == 2
        assert run.info["versions"]["torch"] == torch.__version__
        rows = [json.loads(line) for line in (whole_run / METRICS).read_text().splitlines()]
        assert [(row["epoch"], row["step"], row["pairs"]) for row in rows] == [(0, 0, 0), (1, 4, 8), (2, 8, 16)]
        assert set(rows[0]["pck"]["PF-PASCAL-val"]) == {"0.01", "0.05", "0.1", "0.15"}
        for picture in ("curves.png", "pictures/start.png", "pictures/early.png", "pictures/last.png"):
            assert (whole_run / picture).stat().st_size > 1000
        assert list((whole_run / "tensorboard").iterdir())
        _, config = load_checkpoint(whole_run / BEST)
        assert config == tiny_config(benchmark).model

    @pytest.mark.parametrize("scores", [(50.0, 40.0), (40.0, 50.0)])
    def test_best_is_the_averaged_model_of_the_best_epoch(self, benchmark: Path, tmp_path: Path, monkeypatch, scores):
        averages = []

        def validate(self):
            averages.append({key: value.clone() for key, value in self.ema.module.state_dict().items()})
            pck = {"0.01": 0.0, "0.05": 0.0, "0.1": [60.0, *scores][len(averages) - 1], "0.15": 0.0}
            return {"PF-PASCAL-val": pck}

        monkeypatch.setattr(Trainer, "validate", validate)
        state = train(tiny_config(benchmark), tmp_path, CPU, pictures=False)
        index = 1 + scores.index(50.0)
        assert (state.start, state.best, state.best_epoch) == (60.0, 50.0, index)  # of epochs, not the start
        best, last = load_file(tmp_path / BEST / "model.safetensors"), load_file(tmp_path / LAST)
        assert all(torch.equal(best[key], averages[index][key]) for key in best)
        assert any(not torch.equal(averages[1][key], averages[2][key]) for key in best)
        assert any(not torch.equal(last[f"ema.module.{key}"], last[f"model.{key}"]) for key in best)

    def test_two_processes_do_not_share_a_folder(self, benchmark: Path, tmp_path: Path):
        with exclusive_lock(tmp_path), pytest.raises(InputError, match="another process is writing there"):
            train(tiny_config(benchmark), tmp_path, CPU)
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_with_a_run_is_not_overwritten(self, whole_run: Path, benchmark: Path):
        before = (whole_run / LAST).read_bytes()
        with pytest.raises(InputError, match="holds a run already; give --resume"):
            train(tiny_config(benchmark), whole_run, CPU)
        with pytest.raises(InputError, match=r"differs in train\.lr \(0\.001 there, 0\.1 here\)"):
            train(tiny_config(benchmark, lr=0.1), whole_run, CPU, resume=True)
        assert (whole_run / LAST).read_bytes() == before

    def test_validated_every_other_epoch_and_at_the_end(self, benchmark: Path, tmp_path: Path):
        config = tiny_config(benchmark, epochs=3, validate_every=2, select_alphas=[0.05, 0.1], save_every=1000)
        state = train(config, tmp_path, CPU, pictures=False)
        rows = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
        assert [(row["epoch"], row["step"]) for row in rows] == [(0, 0), (2, 8), (3, 12)]
        for row in rows:
            pck = row["pck"]["PF-PASCAL-val"]
            assert row["score"] == pytest.approx((pck["0.05"] + pck["0.1"]) / 2)
        assert state.best == max(row["score"] for row in rows[1:])

    def test_a_run_from_before_a_setting_existed_goes_on(self, benchmark: Path, tmp_path: Path):
        """What its config does not name had the default then, which leaves nothing out."""
        train(tiny_config(benchmark, epochs=1), tmp_path, CPU, pictures=False)
        run = read_run(tmp_path)
        data = {key: value for key, value in run.arguments["data"].items() if key != "exclude_images_of"}
        write_run(tmp_path, replace(run, arguments={**run.arguments, "data": data}))
        check_folder(tmp_path, describe_run(tiny_config(benchmark, epochs=1), CPU), resume=True)
        tables = tiny_tables(benchmark, epochs=1)
        tables["data"]["exclude_images_of"] = tables["data"]["validate"]
        changed = describe_run(run_config(tables), CPU)
        with pytest.raises(InputError, match=r"another run, which differs in data\.exclude_images_of; resume with"):
            check_folder(tmp_path, changed, resume=True)
        for text in ("[]", "{}", '{"command": "train", "arguments": 3}'):
            (tmp_path / RUN).write_text(text)
            with pytest.raises(InputError, match=r"no valid run\.json that says which run made them"):
                check_folder(tmp_path, changed, resume=True)
        write_run(tmp_path, Run("eval", {}))
        with pytest.raises(InputError, match="holds the results of transformatcher eval"):
            check_folder(tmp_path, changed, resume=True)

    def test_nothing_to_resume(self, benchmark: Path, tmp_path: Path):
        with pytest.raises(InputError, match=r"no last\.safetensors to resume from"):
            train(tiny_config(benchmark), tmp_path / "new", CPU, resume=True)

    def test_pairs_that_have_changed_since(self, tmp_path: Path):
        root = write_benchmark(tmp_path / "PF-PASCAL", n_train=4, n_val=2)
        train(tiny_config(root, epochs=1), tmp_path / "run", CPU, pictures=False)
        listed = root / "trn_pairs.csv"
        before = listed.read_text()
        header, first, *others = before.splitlines()
        listed.write_text("\n".join([header, *others, first]) + "\n")
        with pytest.raises(InputError, match="its lists of pairs, or their annotations, have changed since"):
            train(tiny_config(root, epochs=1), tmp_path / "run", CPU, resume=True, pictures=False)
        listed.write_text(before)
        train(tiny_config(root, epochs=1), tmp_path / "run", CPU, resume=True, pictures=False)


class TestSettings:
    def test_a_batch_that_is_never_filled(self, benchmark: Path, tmp_path: Path):
        with pytest.raises(InputError, match="an epoch of 8 pairs does not fill one batch of 9"):
            Trainer(tiny_config(benchmark, batch_size=9), tmp_path, CPU)

    def test_a_batch_that_cannot_be_shared(self, benchmark: Path, tmp_path: Path):
        with pytest.raises(InputError, match=r"train\.batch_size = 2 cannot be divided among 3 processes"):
            Trainer(tiny_config(benchmark), tmp_path, CPU, DistributedContext(0, 3))

    def test_the_best_is_chosen_at_a_measured_threshold(self, tmp_path: Path):
        with pytest.raises(
            InputError, match=r"train\.select_alphas = \[0\.2\]: choose some of 0\.01, 0\.05, 0\.1, 0\.15"
        ):
            Trainer(tiny_config(tmp_path / "any", select_alphas=[0.2]), tmp_path, CPU)


class TestInterruption:
    def test_kill_9_and_resume_end_bit_identical(self, whole_run: Path, benchmark: Path, tmp_path: Path):
        config, out = tmp_path / "tiny.toml", tmp_path / "run"
        config.write_text(to_toml(tiny_tables(benchmark)))
        command = ["train", str(config), "--out", str(out), "--device=cpu"]
        process = subprocess.Popen(
            [sys.executable, "-m", "transformatcher", *command],
            env=ENVIRONMENT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 120
        while not (out / LAST).exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        process.wait()
        _, metadata = read_safetensors(out / LAST)
        assert 0 < json.loads(metadata["state"])["step"] < 8  # it was killed on its way
        assert main([*command, "--resume"]) == 0
        assert_same_end(whole_run, out)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_ctrl_c_saves_and_leaves(self, whole_run: Path, benchmark: Path, tmp_path: Path, monkeypatch, number):
        trainer = Trainer(tiny_config(benchmark, save_every=1000), tmp_path, CPU)
        step = trainer.step

        def interrupted(batch):
            loss = step(batch)
            if trainer.state.step == 6:
                signal.raise_signal(number)
            return loss

        monkeypatch.setattr(trainer, "step", interrupted)
        handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
        with pytest.raises(KeyboardInterrupt):
            trainer.fit()
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
        again = Trainer(tiny_config(benchmark, save_every=1000), tmp_path, CPU)
        again.load()
        assert (again.state.step, again.state.epoch, again.state.batch) == (6, 1, 2)
        again.fit()
        assert_same_end(whole_run, tmp_path)

    def test_killed_while_validating(self, benchmark: Path, tmp_path: Path, monkeypatch):
        config = tiny_config(benchmark, save_every=2)  # and an epoch has four batches

        validate = Trainer.validate

        def killed(self):
            if self.state.step:
                raise RuntimeError("killed")
            return validate(self)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "validate", killed)
            with pytest.raises(RuntimeError, match="killed"):
                train(config, tmp_path, CPU, pictures=False)
        state = train(config, tmp_path, CPU, pictures=False, resume=True)
        assert [(row["epoch"], row["step"]) for row in state.metrics] == [(0, 0), (1, 4), (2, 8)]
        assert (tmp_path / BEST).is_dir()

    def test_the_first_nan_is_named(self, benchmark: Path, tmp_path: Path, monkeypatch):
        trainer = Trainer(tiny_config(benchmark, save_every=1000), tmp_path, CPU)
        forward = Objective.forward
        monkeypatch.setattr(
            Objective, "forward", lambda self, b: forward(self, b) * (math.nan if trainer.state.step >= 1 else 1)
        )
        with pytest.raises(InputError, match="loss became nan at step 2 "):
            trainer.fit()

    def test_nan_stops_and_keeps_the_last_good_state(self, benchmark: Path, tmp_path: Path, monkeypatch):
        trainer = Trainer(tiny_config(benchmark), tmp_path, CPU)
        forward = Objective.forward

        def poisoned(self, batch):
            return forward(self, batch) * (float("nan") if trainer.state.step == 3 else 1)

        monkeypatch.setattr(Objective, "forward", poisoned)
        with pytest.raises(InputError, match=r"loss became nan at step 4 .*the last good state is .*last\.safetensors"):
            trainer.fit()
        kept = load_file(tmp_path / LAST)
        assert all(value.isfinite().all() for value in kept.values())
        trainer.load()
        assert trainer.state.step == 3

    def test_full_disk_keeps_the_last_good_state(self, benchmark: Path, tmp_path: Path, monkeypatch):
        trainer = Trainer(tiny_config(benchmark), tmp_path, CPU)
        trainer.step(next(trainer.batches.stream(0, 0, 1)))
        trainer.save()
        before = (tmp_path / LAST).read_bytes()

        def full(_tensors, path, _metadata):
            Path(path).write_bytes(b"half a file")
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(weights_io, "save_file", full)
        with pytest.raises(InputError, match=r"last\.safetensors: cannot be written .*No space left.* is kept"):
            trainer.save()
        assert (tmp_path / LAST).read_bytes() == before
        assert [path.name for path in tmp_path.iterdir()] == [LAST]


class TestLearning:
    def test_it_learns_the_synthetic_pairs(self, benchmark: Path, tmp_path: Path):
        """From a random backbone, on pairs it sees again and again."""
        tables = tiny_tables(benchmark, epochs=10, lr=1e-2, lr_backbone=1e-3, ema_decay=None, save_every=1000)
        tables["model"] |= {"correlation_skip": 0.0}
        tables["data"] |= {"p_color": 0.0, "p_crop": 0.0}
        tables["data"]["validate"][0]["split"] = "trn"
        state = train(run_config(tables), tmp_path, CPU, pictures=False)
        first, last = state.metrics[1], state.metrics[-1]
        assert last["loss"] < 0.8 * first["loss"]
        assert last["pck"]["PF-PASCAL-trn"]["0.15"] > first["pck"]["PF-PASCAL-trn"]["0.15"] + 20

    def test_the_start_is_what_the_first_step_found(self, benchmark: Path, tmp_path: Path):
        """Its score is that of the initial model, and no epoch, even a worse one, takes its place."""
        config = tiny_config(benchmark)
        trainer = Trainer(config, tmp_path, CPU, pictures=False)
        before = trainer.validate()
        state = trainer.fit()
        first = state.metrics[0]
        assert (first["epoch"], first["step"], first["pairs"], first["loss"]) == (0, 0, 0, None)
        assert first["pck"] == before
        assert state.start == first["score"]
        assert state.best_epoch > 0

    def test_frozen_parts_stay(self, benchmark: Path, tmp_path: Path):
        trainer = Trainer(tiny_config(benchmark, lr_backbone=0.0), tmp_path, CPU)
        before = {key: value.clone() for key, value in trainer.model.backbone.state_dict().items()}
        trainer.step(next(trainer.batches.stream(0, 0, 1)))
        assert all(torch.equal(value, before[key]) for key, value in trainer.model.backbone.state_dict().items())

    @pytest.mark.parametrize("mode", ["train", "frozen"])
    def test_batch_norm(self, benchmark: Path, tmp_path: Path, mode):
        trainer = Trainer(tiny_config(benchmark, batch_norm=mode), tmp_path, CPU)
        before = trainer.model.backbone.bn1.running_mean.clone()
        trainer.step(next(trainer.batches.stream(0, 0, 1)))
        assert torch.equal(trainer.model.backbone.bn1.running_mean, before) == (mode == "frozen")

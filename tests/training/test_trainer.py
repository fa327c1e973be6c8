"""A run survives what can happen to it, learns, and comes out the same however it was run."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.training import one_step, tiny_config, tiny_tables, write_benchmark
from PIL import Image
from safetensors.torch import load_file

from transformatcher.cli.main import main
from transformatcher.config import run_config
from transformatcher.data.image_cache import ImageStore
from transformatcher.data.loader import Augmentation, Draws, TrainingPairs, open_store
from transformatcher.errors import InputError
from transformatcher.files import exclusive_lock
from transformatcher.inference.checkpoint import load_checkpoint
from transformatcher.models import weights_io as tensors_module
from transformatcher.training.distributed import Team
from transformatcher.training.objective import Objective, training_source
from transformatcher.training.trainer import BEST, LAST, METRICS, RUN, Trainer, check_folder, train

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
        run = json.loads((whole_run / RUN).read_text())
        assert run["seed"] == 0
        assert run["config"]["train"]["batch"] == 2
        assert run["versions"]["torch"] == torch.__version__
        rows = [json.loads(line) for line in (whole_run / METRICS).read_text().splitlines()]
        assert [(row["epoch"], row["step"], row["pairs"]) for row in rows] == [(1, 4, 8), (2, 8, 16)]
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
            averages.append({key: value.clone() for key, value in self.average.model.state_dict().items()})
            pck = {"0.01": 0.0, "0.05": 0.0, "0.1": scores[len(averages) - 1], "0.15": 0.0}
            return {"PF-PASCAL-val": pck}

        monkeypatch.setattr(Trainer, "validate", validate)
        progress = train(tiny_config(benchmark), tmp_path, CPU, pictures=False)
        index = scores.index(50.0)
        assert (progress.best, progress.best_epoch) == (50.0, index + 1)
        best, last = load_file(tmp_path / BEST / "model.safetensors"), load_file(tmp_path / LAST)
        assert all(torch.equal(best[key], averages[index][key]) for key in best)
        assert any(not torch.equal(averages[0][key], averages[1][key]) for key in best)
        assert any(not torch.equal(last[f"average.{key}"], last[f"model.{key}"]) for key in best)

    def test_two_processes_do_not_share_a_folder(self, benchmark: Path, tmp_path: Path):
        with exclusive_lock(tmp_path), pytest.raises(InputError, match="another process is writing there"):
            train(tiny_config(benchmark), tmp_path, CPU)
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_with_a_run_is_not_overwritten(self, whole_run: Path, benchmark: Path):
        before = (whole_run / LAST).read_bytes()
        with pytest.raises(InputError, match="holds a run already; give --resume"):
            train(tiny_config(benchmark), whole_run, CPU)
        with pytest.raises(InputError, match=r"train\.lr = 0\.001, this config 0\.1"):
            train(tiny_config(benchmark, lr=0.1), whole_run, CPU, resume=True)
        assert (whole_run / LAST).read_bytes() == before

    def test_validated_every_other_epoch_and_at_the_end(self, benchmark: Path, tmp_path: Path):
        config = tiny_config(benchmark, epochs=3, validate_every=2, select_alphas=[0.05, 0.1], save_every=1000)
        progress = train(config, tmp_path, CPU, pictures=False)
        rows = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
        assert [(row["epoch"], row["step"]) for row in rows] == [(2, 8), (3, 12)]
        for row in rows:
            pck = row["pck"]["PF-PASCAL-val"]
            assert row["score"] == pytest.approx((pck["0.05"] + pck["0.1"]) / 2)
        assert progress.best == max(row["score"] for row in rows)

    def test_a_run_from_before_a_setting_existed_goes_on(self, benchmark: Path, tmp_path: Path):
        """What its config does not name had the default then, which leaves nothing out."""
        train(tiny_config(benchmark, epochs=1), tmp_path, CPU, pictures=False)
        run = json.loads((tmp_path / RUN).read_text())
        del run["config"]["data"]["leave_out"]
        (tmp_path / RUN).write_text(json.dumps(run))
        check_folder(tmp_path, tiny_config(benchmark, epochs=1), resume=True)
        tables = tiny_tables(benchmark, epochs=1)
        tables["data"]["leave_out"] = tables["data"]["validate"]
        with pytest.raises(InputError, match=r"data\.leave_out = \[\], this config \[\{"):
            check_folder(tmp_path, run_config(tables), resume=True)
        for text in ("[]", "{}", '{"config": 3}'):
            (tmp_path / RUN).write_text(text)
            with pytest.raises(InputError, match=r"run\.json: does not say how the run there was started"):
                check_folder(tmp_path, run_config(tables), resume=True)

    def test_nothing_to_resume(self, benchmark: Path, tmp_path: Path):
        with pytest.raises(InputError, match=r"no last\.safetensors to resume from"):
            train(tiny_config(benchmark), tmp_path / "new", CPU, resume=True)


class TestInterruption:
    def test_kill_9_and_resume_end_bit_identical(self, whole_run: Path, benchmark: Path, tmp_path: Path):
        config = tmp_path / "tiny.toml"
        config.write_text(to_toml(tiny_tables(benchmark)))
        out = tmp_path / "run"
        command = [
            sys.executable,
            "-m",
            "transformatcher",
            "train",
            str(config),
            "--out",
            str(out),
            "--device=cpu",
        ]
        process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while not (out / LAST).exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        process.wait()
        steps = Trainer(tiny_config(benchmark), out, CPU)
        steps.load()
        assert 0 < steps.progress.step < 8  # it was killed on its way
        assert subprocess.run([*command, "--resume"], env=ENVIRONMENT, check=True, capture_output=True).returncode == 0
        assert_same_end(whole_run, out)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_ctrl_c_saves_and_leaves(self, whole_run: Path, benchmark: Path, tmp_path: Path, monkeypatch, number):
        trainer = Trainer(tiny_config(benchmark, save_every=1000), tmp_path, CPU)
        step = trainer.step

        def interrupted(batch):
            loss = step(batch)
            if trainer.progress.step == 6:
                signal.raise_signal(number)
            return loss

        monkeypatch.setattr(trainer, "step", interrupted)
        handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
        with pytest.raises(KeyboardInterrupt):
            trainer.fit()
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
        again = Trainer(tiny_config(benchmark, save_every=1000), tmp_path, CPU)
        again.load()
        assert (again.progress.step, again.progress.epoch, again.progress.batch) == (6, 1, 2)
        again.fit()
        assert_same_end(whole_run, tmp_path)

    def test_killed_while_validating(self, benchmark: Path, tmp_path: Path, monkeypatch):
        config = tiny_config(benchmark, save_every=2)  # and an epoch has four batches

        def killed(_self):
            raise RuntimeError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "validate", killed)
            with pytest.raises(RuntimeError, match="killed"):
                train(config, tmp_path, CPU, pictures=False)
        progress = train(config, tmp_path, CPU, pictures=False, resume=True)
        assert [(row["epoch"], row["step"]) for row in progress.metrics] == [(1, 4), (2, 8)]
        assert (tmp_path / BEST).is_dir()

    def test_the_first_nan_is_named(self, benchmark: Path, tmp_path: Path, monkeypatch):
        trainer = Trainer(tiny_config(benchmark, save_every=1000), tmp_path, CPU)
        forward = Objective.forward
        monkeypatch.setattr(
            Objective, "forward", lambda self, b: forward(self, b) * (math.nan if trainer.progress.step >= 1 else 1)
        )
        with pytest.raises(InputError, match="loss became nan at step 2 "):
            trainer.fit()

    def test_nan_stops_and_keeps_the_last_good_state(self, benchmark: Path, tmp_path: Path, monkeypatch):
        trainer = Trainer(tiny_config(benchmark), tmp_path, CPU)
        forward = Objective.forward

        def poisoned(self, batch):
            return forward(self, batch) * (float("nan") if trainer.progress.step == 3 else 1)

        monkeypatch.setattr(Objective, "forward", poisoned)
        with pytest.raises(InputError, match=r"loss became nan at step 4 .*the last good state is .*last\.safetensors"):
            trainer.fit()
        kept = load_file(tmp_path / LAST)
        assert all(value.isfinite().all() for value in kept.values())
        trainer.load()
        assert trainer.progress.step == 3

    def test_full_disk_keeps_the_last_good_state(self, benchmark: Path, tmp_path: Path, monkeypatch):
        trainer = Trainer(tiny_config(benchmark), tmp_path, CPU)
        trainer.step(next(trainer.batches.stream(0, 0, 1)))
        trainer.save()
        before = (tmp_path / LAST).read_bytes()

        def full(_tensors, path, _metadata):
            Path(path).write_bytes(b"half a file")
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(tensors_module, "save_file", full)
        with pytest.raises(InputError, match=r"last\.safetensors: cannot be written .*No space left.* is kept"):
            trainer.save()
        assert (tmp_path / LAST).read_bytes() == before
        assert [path.name for path in tmp_path.iterdir()] == [LAST]


class TestTeam:
    def test_two_processes_equal_one(self, benchmark: Path, tmp_path: Path):
        alone = one_step(benchmark, tmp_path / "alone.safetensors")
        out = tmp_path / "two.safetensors"
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
        script = Path(__file__).parents[1] / "helpers" / "training.py"
        subprocess.run(
            [*command, str(script), json.dumps([str(benchmark), str(out)])],
            env=ENVIRONMENT, check=True, capture_output=True, timeout=240,
        )  # fmt: skip
        together = load_file(out)
        assert together.keys() == alone.keys()
        torch.testing.assert_close(together["scores"], alone["scores"], rtol=0, atol=1e-9)
        for name, gradient in alone.items():
            scale = gradient.abs().max().item()
            torch.testing.assert_close(together[name], gradient, rtol=0, atol=1e-4 * scale + 1e-9, msg=name)

    def test_a_batch_that_is_never_filled(self, benchmark: Path, tmp_path: Path):
        with pytest.raises(InputError, match="an epoch of 8 pairs does not fill one batch of 9"):
            Trainer(tiny_config(benchmark, batch=9), tmp_path, CPU)

    def test_a_batch_that_cannot_be_shared(self, benchmark: Path, tmp_path: Path):
        with pytest.raises(InputError, match=r"train\.batch = 2 cannot be shared by 3 processes"):
            Trainer(tiny_config(benchmark), tmp_path, CPU, Team(0, 3))


class TestLearning:
    def test_it_learns_the_synthetic_pairs(self, benchmark: Path, tmp_path: Path):
        """From a random backbone, on pairs it sees again and again."""
        tables = tiny_tables(benchmark, epochs=10, lr=1e-2, lr_backbone=1e-3, average=None, save_every=1000)
        tables["model"] |= {"raw_gain": 0.0}
        tables["data"] |= {"colour": 0.0, "crop": 0.0}
        tables["data"]["validate"][0]["split"] = "trn"
        progress = train(run_config(tables), tmp_path, CPU)
        first, last = progress.metrics[0], progress.metrics[-1]
        assert last["loss"] < 0.8 * first["loss"]
        assert last["pck"]["PF-PASCAL-trn"]["0.15"] > first["pck"]["PF-PASCAL-trn"]["0.15"] + 20

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


class TestWithItself:
    def test_objects_of_a_list_lie_as_their_pairs_do(self, spair_root: Path):
        """SPair's keypoints are of the file as it lies, whatever its EXIF tag says."""
        path = spair_root / "JPEGImages" / "cat" / "a.jpg"
        exif = Image.Exif()
        exif[0x0112] = 6  # a quarter turn
        Image.open(path).save(path, exif=exif)
        item = {"benchmark": "spair", "folder": spair_root.name, "split": "val", "with_itself": True}
        tables = {"data": {"root": str(spair_root.parent), "train": [item], "validate": [item]}}
        with pytest.raises(InputError, match=r"pairs_per_epoch = None: a source .* with_itself is endless: say it"):
            run_config(tables)
        tables["data"]["pairs_per_epoch"] = 8
        data = run_config(tables).data
        source = training_source(data.train[0], data, seed=0)
        pairs = TrainingPairs([source], 0, data.pairs_per_epoch)
        store = open_store(pairs.sources, lambda images: ImageStore(images, (48, 48), CPU, "host", 1))
        draws = Draws(pairs, store, (48, 48), Augmentation(), batch=8)
        assert [orient for _, orient in source.images()] == [False, False]
        assert {sample.sizes for sample in draws[0, 0]} == {((60, 80), (60, 80))}


class TestCommand:
    def test_errors(self, benchmark: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        config = tmp_path / "tiny.toml"
        config.write_text(to_toml(tiny_tables(benchmark)))
        for arguments, message in (
            ([str(tmp_path / "no.toml")], "no.toml: no such config file"),
            ([str(config), "--set", "lr=1"], "--set lr: name the table too"),
            ([str(config), "--set", "train.lr=-1"], "train.lr = -1.0: must be positive"),
            ([str(config), "--set", "train.epoch=1"], "unknown key 'epoch'; did you mean 'epochs'?"),
            ([str(config), "--set", "data.root=nowhere"], "nowhere"),
            ([str(config), "--set", "train.backbone_weights=no.safetensors"], "no.safetensors: no such weights file"),
        ):
            assert main(["train", *arguments, "--out", str(tmp_path / "run"), "--device", "cpu"]) == 2
            assert message in capsys.readouterr().err

    def test_a_config_that_fails_leaves_a_folder_that_can_be_used(self, benchmark: Path, tmp_path: Path):
        config = tmp_path / "tiny.toml"
        config.write_text(to_toml(tiny_tables(benchmark, epochs=1)))
        command = ["train", str(config), "--out", str(tmp_path / "run"), "--device", "cpu"]
        for setting in ("data.root=nowhere", "model.sampler=soft", "train.backbone_weights=gone.safetensors"):
            assert main([*command, "--set", setting]) == 2
            assert not (tmp_path / "run").exists()
        assert main(command) == 0

    @pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
    def test_workers_end_with_who_trains(self):
        """However that ends: a worker may be waiting to hand over a batch that nobody will take."""
        code = (
            "import os, sys, time; from transformatcher.data.loader import _let_main_decide\n"
            "if os.fork() == 0:\n    _let_main_decide(0); print(os.getpid(), flush=True); time.sleep(60)\n"
            "os.wait()"
        )
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            worker = int(process.stdout.readline())
            process.kill()
            process.stdout.close()
        deadline = time.monotonic() + 20
        while Path(f"/proc/{worker}/stat").exists() and time.monotonic() < deadline:
            if Path(f"/proc/{worker}/stat").read_text().split()[2] == "Z":
                break
            time.sleep(0.1)
        else:
            assert not Path(f"/proc/{worker}").exists()


def to_toml(tables: dict[str, Any]) -> str:
    """TOML is JSON with = for a list of flat tables."""

    def value(item: Any) -> str:
        if isinstance(item, dict):
            return "{" + ", ".join(f"{key} = {value(entry)}" for key, entry in item.items()) + "}"
        return "[" + ", ".join(map(value, item)) + "]" if isinstance(item, list) else json.dumps(item)

    return "\n".join(
        f"[{name}]\n" + "\n".join(f"{key} = {value(entry)}" for key, entry in table.items())
        for name, table in tables.items()
    )

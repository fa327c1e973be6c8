"""Workers on Ray: every result once, whatever dies; the same results as one process, bit for bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import write_image
from helpers.bulk import SMALL, all_rows, match_listed, pairs_of, write_csv
from helpers.command import run
from helpers.propagation import POINTS, make_photo
from helpers.ray_workers import NeverReady, NoWeights, Squares, sorted_results, worker_pids

from transformatcher.config import model_config
from transformatcher.errors import InputError
from transformatcher.inference import ray_engine
from transformatcher.inference.engine import LocalEngine
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.ray_engine import RayEngine
from transformatcher.models.build import build_matcher

ray = pytest.importorskip("ray", reason="the extra 'cluster' is not installed")
pytest.importorskip("pyarrow")
pytestmark = [
    pytest.mark.enable_socket,  # Ray's processes speak with each other on this machine
    pytest.mark.skipif(sys.platform == "win32", reason="there is no /proc to find Ray's processes in"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Ray on two CPUs of this machine."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    helpers = {"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", runtime_env=helpers)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for seed in range(5):
        write_image(folder / f"{seed}.png", (30 + seed, 40 + 2 * seed), seed)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("weights")
    config = model_config(SMALL)
    Matcher(build_matcher(config), config, "cpu").save_pretrained(folder)
    return folder


def squares(numbers: list[int], engine: RayEngine, chunk: int = 1, **options) -> list[tuple[int, int]]:
    return sorted_results(engine.run(Squares, numbers, name="squares", chunk=chunk, **options))


def test_all_results_by_several_workers():
    wanted = sorted_results(LocalEngine().run(Squares, range(40), name="squares"))
    assert squares(list(range(40)), RayEngine(workers=2), chunk=3) == wanted
    results = list(RayEngine().run(partial(Squares, seconds=0.05), range(40), name="squares"))
    assert sorted_results(results) == wanted
    assert len({process for _, _, process in results}) == 2  # as many as there are CPUs
    assert squares([], RayEngine(), chunk=3) == []


def test_errors_of_the_work_are_those_of_the_caller():
    with pytest.raises(InputError, match=r"^-1: a number that cannot be squared$"):
        squares([1, 2, -1, 3], RayEngine(workers=1))
    with pytest.raises(InputError, match=r"^weights: no such folder$"):
        list(RayEngine(workers=1).run(NoWeights, [1], name="none"))
    deadline = time.monotonic() + 30
    while worker_pids():  # they end with their run
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_workers_die_of_is_named_and_the_rest_is_done(monkeypatch):
    monkeypatch.setattr(ray_engine, "MAX_ATTEMPTS", 2)
    monkeypatch.setattr(ray_engine, "MAX_FAILED_STARTS", 2)
    results = []

    def collect() -> None:
        for result in RayEngine(workers=2).run(Squares, [1, 2, -2, 3, 4], name="squares"):
            results.append(result)

    with pytest.raises(InputError, match=r"^given up, as 2 workers died of it: -2 \(ActorDiedError: "):
        collect()
    assert sorted_results(results) == [(1, 1), (2, 4), (3, 9), (4, 16)]
    with pytest.raises(InputError, match="2 workers in a row died before they were ready"):
        list(RayEngine(workers=1).run(NeverReady, [1], name="never"))


def test_progress_within_items(monkeypatch):
    monkeypatch.setattr(ray_engine, "LOOK_S", 0.1)
    monkeypatch.setattr(ray_engine, "POLL_S", 0.1)
    reports: list[int] = []
    work = partial(Squares, seconds=0.1)
    list(RayEngine(workers=1).run(work, range(12), name="squares", chunk=12, track=reports.append))
    assert reports == sorted(reports)
    assert 0 < max(reports) < 12


def test_bit_for_bit_as_by_one_process_though_a_worker_is_killed(weights: Path, photos: Path, tmp_path: Path):
    matcher = Matcher.from_pretrained(weights, device="cpu", precision="float32")
    rows = [(f"{i % 5}.png", f"{i // 5 % 5}.png", "5,5;9,9" if i % 3 else "") for i in range(60)]
    path = write_csv(tmp_path / "pairs.csv", [*rows, ("none.png", "0.png", "")])
    options = {"root": photos, "anywhere": False, "shard_size": 4, "batch": 2}
    torch.set_num_threads(1)  # as each worker has
    assert match_listed(matcher, path, tmp_path / "one", **options).failed == 1
    killed: list[int] = []

    def track(progress) -> None:
        if progress.done >= 8 and not killed:
            killed.extend(worker_pids()[:1])
            os.kill(killed[0], signal.SIGKILL)

    summary = match_listed(matcher, path, tmp_path / "ray", engine=RayEngine(workers=2), track=track, **options)
    assert killed
    assert summary.failed == 1
    assert pairs_of(tmp_path / "ray") == list(range(61))
    assert all_rows(tmp_path / "ray") == all_rows(tmp_path / "one")


def transformatcher(*words: object) -> list[str]:
    return [sys.executable, "-m", "transformatcher", *map(str, words)]


@pytest.mark.slow
def test_the_driver_is_killed_and_started_again(weights: Path, photos: Path, tmp_path: Path):
    """First on Ray, then here; the result is that of one process."""
    rows = [(f"{i % 5}.png", f"{i // 5 % 5}.png", "5,5") for i in range(300)]
    path = write_csv(tmp_path / "pairs.csv", rows)
    shutil.copytree(photos, tmp_path, dirs_exist_ok=True)
    out, one = tmp_path / "out", tmp_path / "one"
    common = ["--weights", weights, "--device", "cpu", "--shard-size", 3, "--batch", 1]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = transformatcher("match-pairs", path, "--out", out, *common, "--engine", "ray", "--workers", 2)
    driver = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 180
    while not list(out.glob("part-*.parquet")):
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    before = {file: file.stat().st_mtime_ns for file in out.glob("part-*.parquet")}
    assert len(before) < 100
    for target in (out, one):
        words = transformatcher("match-pairs", path, "--out", target, *common, "--threads", 1)
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
    assert pairs_of(out) == list(range(300))
    assert all_rows(out) == all_rows(one)
    assert {file: file.stat().st_mtime_ns for file in before} == before


@pytest.mark.slow
def test_nodes_come_and_go():
    """On a cluster of two nodes: one is removed while its worker works, and another is added."""
    script = Path(__file__).parents[1] / "helpers" / "ray_cluster.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "all results once, from 3 nodes"


def test_propagate_and_eval_say_the_same_on_ray(weights: Path, spair_root: Path, tmp_path: Path, capsys):
    (tmp_path / "photos").mkdir()
    for seed in range(3):
        make_photo(seed).save(tmp_path / "photos" / f"{seed}.png")
    (tmp_path / "photos" / "bad.png").write_bytes(b"no photo")
    keypoints = [value for x, y in POINTS.values() for value in (x, y, 2)]
    notes = {
        "images": [{"id": 1, "file_name": "0.png", "width": 200, "height": 120}],
        "categories": [{"id": 3, "name": "thing", "keypoints": list(POINTS)}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 3, "keypoints": keypoints, "bbox": [30, 20, 130, 80]}],
    }
    (tmp_path / "marked.json").write_text(json.dumps(notes))
    common = ["--weights", weights, "--device", "cpu", "--precision", "float32"]
    marked = ["propagate", tmp_path / "marked.json", tmp_path / "photos", "--images-root", tmp_path / "photos"]
    scored = ["eval", "--benchmark", "spair", "--root", spair_root, "--split", "val"]
    for engine in ("local", "ray"):
        options = [*common, "--engine", engine, *(["--workers", 1] if engine == "ray" else [])]
        assert run(*marked, "--out", tmp_path / f"{engine}.json", *options) == 1  # one photo cannot be read
        assert run(*scored, "--out", tmp_path / engine, *options) == 0
    one, other = (json.loads((tmp_path / f"{engine}.json").read_text()) for engine in ("local", "ray"))
    assert one == other
    assert len(one["annotations"]) == 3
    assert [item["file_name"] for item in one["info"]["propagate"]["failed"]] == ["bad.png"]
    predictions = [(tmp_path / engine / "predictions.jsonl").read_text() for engine in ("local", "ray")]
    assert predictions[0] == predictions[1]
    capsys.readouterr()

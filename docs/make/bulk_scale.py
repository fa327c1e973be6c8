"""100,000 pairs of 2,000 small photos on Ray → memory of driver and workers over time, and the overhead of a shard.

    python docs/make/bulk_scale.py

The model is tiny and random, so that what is left is reading, handing out and writing.
"""

import csv
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image

from transformatcher.config import model_config
from transformatcher.inference.engine import Track
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.ray_engine import RayEngine
from transformatcher.models.build import build_matcher

PAIRS, PHOTOS = 100_000, 2000
EMPTY = 2000  # shards without work
TINY = {
    "variant": "raw", "backbone": "resnet50", "stages": [1], "image_size": [32, 32], "kernel_sigma": 2.5,
    "sampler": "bilinear",
}  # fmt: skip


def resident_mb(pid: int) -> float:
    """Resident memory of a process, without what it shares with others; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0.0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE") / 1e6


def ray_workers() -> list[int]:
    """The processes of Ray's actors on this machine."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"ray::RayWorker" in file.read_bytes():
                found.append(int(file.parent.name))
        except OSError:
            continue
    return found


def nothing(_track: Track) -> "Nothing":
    """Make a worker that does nothing."""
    return Nothing()


class Nothing:
    """Items → the same items."""

    def __call__(self, items: Iterable[int]) -> Iterator[int]:
        """Return them."""
        yield from items


def main() -> None:
    """Write photos, list and model; run; print."""
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # of the workers
    with TemporaryDirectory() as name:
        folder = Path(name)
        rng = np.random.default_rng(0)
        for i in range(PHOTOS):
            Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(folder / f"{i}.png")
        with (folder / "pairs.csv").open("w", newline="") as file:
            pairs = ((i // 50 % PHOTOS, rng.integers(PHOTOS)) for i in range(PAIRS))
            rows = ((f"{src}.png", f"{trg}.png", "5,5;20,20") for src, trg in pairs)
            csv.writer(file).writerows([("src", "trg", "keypoints"), *rows])
        config = model_config(TINY)
        torch.manual_seed(0)
        Matcher(build_matcher(config), config, "cpu").save_pretrained(folder / "model")
        command = [sys.executable, "-m", "transformatcher", "match-pairs", str(folder / "pairs.csv")]
        command += ["--weights", str(folder / "model"), "--out", str(folder / "out"), "--batch", "32"]
        command += ["--engine", "ray", "--workers", "2"]
        start, samples = time.monotonic(), []
        with (folder / "log").open("w") as log:
            driver = subprocess.Popen(command, stderr=log)
            while driver.poll() is None:
                time.sleep(1)
                done = len(list((folder / "out").glob("part-*")))
                samples.append((done, resident_mb(driver.pid), max(map(resident_mb, ray_workers()), default=0.0)))
        assert driver.returncode == 0, (folder / "log").read_text()[-2000:]
        print(f"{PAIRS:,} pairs in {time.monotonic() - start:.0f} s, with the start of Ray and two workers")
        for low, high in ((1, 25), (25, 50), (50, 75), (75, 100)):
            part = [(driver_mb, worker_mb) for done, driver_mb, worker_mb in samples if low <= done < high]
            if part:
                ours, theirs = (max(values) for values in zip(*part, strict=True))
                print(f"shards {low} to {high}: driver {ours:.0f} MB, larger worker {theirs:.0f} MB at most")
    times = []
    last = time.perf_counter()
    for _ in RayEngine(workers=2).run(nothing, range(EMPTY), name="nothing"):
        times.append(time.perf_counter() - last)
        last = time.perf_counter()
    print(f"a shard without work: {1e3 * median(times[EMPTY // 2 :]):.1f} ms from one to the next")


if __name__ == "__main__":
    from bulk_scale import main as run  # by its name, under which workers find it, too

    run()

"""Processes that train together compute what one process computes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from helpers.training import one_step, write_benchmark
from safetensors.torch import load_file


def test_two_processes_equal_one(tmp_path: Path):
    benchmark = write_benchmark(tmp_path / "PF-PASCAL")
    alone = one_step(benchmark, tmp_path / "alone.safetensors")
    out = tmp_path / "two.safetensors"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    script = Path(__file__).parents[1] / "helpers" / "training.py"
    subprocess.run(
        [*command, str(script), json.dumps([str(benchmark), str(out)])],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True, timeout=240,
    )  # fmt: skip
    together = load_file(out)
    assert together.keys() == alone.keys()
    torch.testing.assert_close(together["scores"], alone["scores"], rtol=0, atol=1e-9)
    for name, gradient in alone.items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(together[name], gradient, rtol=0, atol=1e-4 * scale + 1e-9, msg=name)

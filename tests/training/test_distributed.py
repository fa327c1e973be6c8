"""Processes that train together compute what one process computes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers.training import one_step, write_benchmark
from safetensors.torch import load_file

from transformatcher.training.distributed import DistributedContext, init_distributed

SCRIPT = Path(__file__).parents[1] / "helpers" / "training.py"


def start_by_torchrun(arguments: str) -> list[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return [subprocess.Popen([*command, str(SCRIPT), arguments], env=environment, stderr=subprocess.PIPE)]


def start_directly(arguments: str) -> list[subprocess.Popen[bytes]]:
    """With torchrun's environment variables, but without its own process, which takes seconds to start."""
    port = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).port  # a free one
    shared = {"OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), arguments],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("start", [start_directly, pytest.param(start_by_torchrun, marks=pytest.mark.slow)])
def test_two_processes_equal_one(tmp_path: Path, start):
    benchmark, out = write_benchmark(tmp_path / "PF-PASCAL"), tmp_path / "two.safetensors"
    processes = start(json.dumps([str(benchmark), str(out)]))
    try:
        alone = one_step(benchmark, tmp_path / "alone.safetensors")
        for process in processes:
            _, error = process.communicate(timeout=240)
            assert process.returncode == 0, error.decode()
    finally:
        for process in processes:
            process.kill()
    together = load_file(out)
    assert together.keys() == alone.keys()
    torch.testing.assert_close(together["scores"], alone["scores"], rtol=0, atol=1e-9)
    for name, gradient in alone.items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(together[name], gradient, rtol=0, atol=1e-4 * scale + 1e-9, msg=name)


def test_one_process_needs_no_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    device = torch.device("cpu")
    with init_distributed(device) as (distributed, same):
        assert (distributed, same) == (DistributedContext(0, 1), device)
        assert distributed.is_main
        distributed.barrier()
        tensor = torch.ones(2)
        assert distributed.sum(tensor) is tensor
        assert [distributed.any(flag, device) for flag in (True, False)] == [True, False]

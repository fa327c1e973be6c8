"""Environment of torchrun → rank and collective operations of this training process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from transformatcher.errors import InputError


@dataclass(frozen=True)
class DistributedContext:
    """The rank of this process among all of a training run. With one process, every method returns at once."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and shows progress."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes, written to the tensor itself."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is set in any process; all processes get the same answer."""
        return bool(self.sum(torch.tensor(float(flag), device=device))) if self.world_size > 1 else flag

    def barrier(self) -> None:
        """Wait until every process has come here."""
        if self.world_size > 1:
            dist.barrier()


@contextmanager
def init_distributed(device: torch.device) -> Iterator[tuple[DistributedContext, torch.device]]:
    """Join the process group that torchrun's environment variables describe, and leave it at the end.

    Args:
        device: the kind of device to train on. Each CUDA process gets the GPU of its local rank.
    """
    world_size = _from_environment("WORLD_SIZE", 1)
    if world_size == 1:
        yield DistributedContext(), device
        return
    if device.type == "cuda":
        device = torch.device("cuda", _from_environment("LOCAL_RANK", 0))
        torch.cuda.set_device(device)
    try:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    except (ValueError, RuntimeError) as error:  # RANK, MASTER_ADDR and MASTER_PORT are missing or wrong
        raise InputError(f"WORLD_SIZE={world_size}, but the processes do not find each other ({error})") from error
    try:
        yield DistributedContext(dist.get_rank(), world_size), device
    finally:
        dist.destroy_process_group()


def _from_environment(name: str, least: int) -> int:
    """A whole number that torchrun sets; ``least`` where it is not set."""
    text = os.environ.get(name, str(least))
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and int(text) >= least):
        raise InputError(f"{name}={text!r} in the environment is not a whole number from {least}; torchrun sets it")
    return int(text)

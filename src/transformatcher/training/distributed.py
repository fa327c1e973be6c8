"""One process, or several that torchrun started on any number of machines."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Team:
    """This process among all; alone, every method does nothing."""

    rank: int = 0
    world: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether any process says so."""
        return bool(self.sum(torch.tensor(float(flag), device=device))) if self.world > 1 else flag

    def wait(self) -> None:
        """Go on when all are here."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def team_of(device: torch.device) -> Iterator[tuple[Team, torch.device]]:
    """The team that the environment describes, and the device of this process."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Team(), device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Team(dist.get_rank(), world), device
    finally:
        dist.destroy_process_group()

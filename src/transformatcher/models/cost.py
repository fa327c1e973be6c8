"""Sizes of a model → how much memory its weights and one pair of images take, before either is there."""

import os
import sys
from pathlib import Path

import torch
from torch import nn

from transformatcher.errors import InputError
from transformatcher.schema import Size

FLOAT_BYTES = 4
GIB = 2**30
READOUT_COPIES = 4  # of the upsampled scores: logits, the Gaussian at the peak, probabilities, their product
BACKBONE_FLOATS = 48  # for each pixel: the first stage of a ResNet
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def pair_bytes(image_size: Size, grid: Size, channels: int, upsample: int) -> int:
    """About how many bytes of memory matching one pair of images takes at its peak.

    Args:
        image_size: (h, w) of the images.
        grid: (h, w) of the correlation map.
        channels: numbers that are kept for each candidate match while the refiner runs.
        upsample: of the read-out, for each of the four axes.
    """
    matches = (grid[0] * grid[1]) ** 2
    per_match = max(channels, READOUT_COPIES * upsample**4)
    return FLOAT_BYTES * (matches * per_match + BACKBONE_FLOATS * image_size[0] * image_size[1])


def weight_count(module: nn.Module) -> int:
    """How many numbers a module's weights have; its tensors may be on the device "meta", where they take no memory."""
    return sum(tensor.numel() for tensor in module.state_dict().values())


def check_cost(weights: int, pair: int) -> None:
    """Raise InputError if the weights and one pair of images need more memory than this machine has."""
    needed, there = FLOAT_BYTES * weights + pair, machine_bytes()
    if needed > there:
        size = f"with its {weights / 1e6:,.0f} million weights, " if weights else ""
        raise InputError(
            f"{size}this model takes about {needed / GIB:,.1f} GiB of memory for a pair of photos, and this machine "
            f"has {there / GIB:,.1f} GiB; choose a smaller image_size, grid or upsample, or a smaller refiner"
        )


def largest_batch(pair: int) -> int:
    """How many pairs of so many bytes each fit into half of the memory of this machine; at least one."""
    return max(1, machine_bytes() // 2 // pair)


def machine_bytes() -> int:
    """The memory that a process may take here: of the machine, of its container, or of its largest GPU."""
    limits = [_physical_bytes(), *map(_container_bytes, CGROUP_LIMITS), _address_bytes()]
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return max(min(limits), *(torch.cuda.get_device_properties(gpu).total_memory for gpu in gpus), 0)


def _physical_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return sys.maxsize


def _container_bytes(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # none, or "max"
        return sys.maxsize


def _address_bytes() -> int:
    if sys.platform == "win32":
        return sys.maxsize
    import resource  # of POSIX

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit

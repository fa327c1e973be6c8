"""Functions → the median time of each, measured in turn; peak memory."""

import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

STAGES = ("backbone", "correlation", "refiner", "flow")  # of a model

MIN_CALLS, MAX_CALLS = 5, 200

Runnable = Callable[[], Any]


def median_ms(functions: Mapping[str, Runnable], device: torch.device, seconds: float) -> dict[str, float]:
    """Median milliseconds of a call of each function.

    The functions take turns, so that what else the machine does counts for all of them alike.

    Args:
        functions: by name. Each is called twice beforehand, and then ``MIN_CALLS`` times or more.
        device: where they run; on CUDA, the time between two events.
        seconds: to spend on each function.

    Example:
        >>> median_ms({"wide": lambda: a @ b, "tall": lambda: c @ d}, torch.device("cpu"), seconds=1)
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
        function()
    start, rounds = time.perf_counter(), 0
    while rounds < MIN_CALLS or (time.perf_counter() - start < seconds * len(functions) and rounds < MAX_CALLS):
        for name, function in functions.items():
            times[name].append(_one_call_ms(function, device))
        rounds += 1
    return {name: sorted(values)[len(values) // 2] for name, values in times.items()}


def _one_call_ms(function: Runnable, device: torch.device) -> float:
    if device.type == "cuda":
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        function()
        after.record()
        torch.cuda.synchronize(device)
        return float(before.elapsed_time(after))
    start = time.perf_counter()
    function()
    return 1e3 * (time.perf_counter() - start)


def allocated_bytes(device: torch.device) -> int:
    """Bytes that torch's allocator holds on a GPU after garbage collection; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(device)


@contextmanager
def peak_memory(device: torch.device, before: int) -> Iterator[Callable[[], float]]:
    """Peak GiB: of torch's allocator on a GPU, minus the bytes it held ``before``; of the whole process on a CPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield lambda: (torch.cuda.max_memory_allocated(device) - before) / 2**30
    else:
        yield resident_gib


def resident_gib() -> float:
    """Peak resident memory of this process in GiB."""
    if sys.platform == "win32":
        return float("nan")
    import resource

    unit = 1 if sys.platform == "darwin" else 2**10  # that getrusage counts in
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def device_name(device: torch.device) -> str:
    """The name of a GPU; for a CPU, the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"

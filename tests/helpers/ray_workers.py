"""Workers for a Ray cluster that tests have started, and ways to find their processes."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from transformatcher.errors import InputError


class Squares:
    """Numbers → (number, its square, process), each in a moment. Some numbers are bad."""

    def __init__(self, track: Callable[[int], None], seconds: float = 0.0) -> None:
        self.track, self.seconds = track, seconds

    def __call__(self, numbers: Iterable[int]) -> Iterator[tuple[int, int, int]]:
        for done, number in enumerate(numbers, 1):
            time.sleep(self.seconds)
            if number == -1:
                raise InputError("-1: a number that cannot be squared")
            if number == -2:
                os._exit(7)
            self.track(done)
            yield number, number**2, os.getpid()


class NeverReady:
    """A worker that dies while it is made."""

    def __init__(self, _track: Callable[[int], None]) -> None:
        os._exit(7)


class NoWeights:
    """A worker that cannot be made, and says why."""

    def __init__(self, _track: Callable[[int], None]) -> None:
        raise InputError("weights: no such folder")


def worker_pids() -> list[int]:
    """The processes of Ray's actors on this machine that belong to this process, by the name that Ray gives them."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if b"ray::RayWorker" in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def sorted_results(results: Iterable[Any]) -> list[Any]:
    return sorted(result[:2] for result in results)

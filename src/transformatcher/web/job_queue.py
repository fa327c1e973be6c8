"""Heavy work → a few threads with a short queue; who comes when it is full is sent away, not kept waiting."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import BoundedSemaphore
from typing import TypeVar

from transformatcher.web.refusal import RefusedError

T = TypeVar("T")


class Workers:
    """Runs functions one after another.

    Args:
        threads: that work at a time; the arithmetic inside has threads of its own.
        waiting: how many callers may wait for them.
    """

    def __init__(self, threads: int = 1, waiting: int = 8) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="matching")
        self._places = BoundedSemaphore(threads + waiting)

    @contextmanager
    def place(self) -> Iterator[Callable[[Callable[[], T]], T]]:
        """A place in the queue, taken before a photo is even read: what is given runs a function and waits for it."""
        if not self._places.acquire(blocking=False):
            raise RefusedError(503, "The server is busy with other photos; try again in a moment.")
        try:
            yield lambda work: self._pool.submit(work).result()
        finally:
            self._places.release()

    def run(self, work: Callable[[], T]) -> T:
        """Wait for a turn, and for the result."""
        with self.place() as run:
            return run(work)

    def close(self) -> None:
        """Forget what has not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)

"""Heavy jobs → a few threads with a short queue; when the queue is full, new jobs are refused with status 503."""

import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import BoundedSemaphore
from typing import TypeVar

from transformatcher.web.errors import RequestError

T = TypeVar("T")

BUSY = "The server is busy with other photos; try again in a moment."


class JobQueue:
    """Runs jobs in the order they come.

    Args:
        threads: number of jobs that run at the same time; PyTorch uses threads of its own inside each.
        waiting: number of jobs that may wait for a thread.
    """

    def __init__(self, threads: int = 1, waiting: int = 8) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="jobs")
        self._slots = BoundedSemaphore(threads + waiting)

    @contextmanager
    def slot(self) -> Iterator[Callable[[Callable[[], T]], T]]:
        """Reserve a place in the queue and yield a function that runs a job there and returns its result.

        A request reserves its slot before it reads an upload, so that a full queue also limits memory.

        Raises:
            RequestError: 503 if the queue is full.
        """
        if not self._slots.acquire(blocking=False):
            raise RequestError(503, BUSY)
        try:
            yield lambda job: self._pool.submit(_without_locals, job).result()
        finally:
            self._slots.release()

    def run(self, job: Callable[[], T]) -> T:
        """Wait until the job has run and return its result."""
        with self.slot() as run_job:
            return run_job(job)

    def close(self) -> None:
        """Drop the jobs that have not started."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _without_locals(job: Callable[[], T]) -> T:
    """Run a job. An error keeps no local variables alive, which may be large: it may wait long for its response."""
    try:
        return job()
    except BaseException as error:
        chain: BaseException | None = error
        while chain is not None:
            traceback.clear_frames(chain.__traceback__)
            chain = chain.__context__
        raise

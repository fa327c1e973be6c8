"""Heavy jobs → a few threads with a short queue; when the queue is full, new jobs are refused with status 503."""

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock
from typing import TypeVar

from transformatcher.web.errors import RequestError

T = TypeVar("T")

BUSY = "The server is busy with other photos; try again in a moment."
BUSY_WITH_YOURS = "The server is still receiving other files from you; try again in a moment."


class JobQueue:
    """Runs jobs in the order they come.

    Args:
        threads: number of jobs that run at the same time; PyTorch uses threads of its own inside each.
        waiting: number of jobs that may wait for a thread.
    """

    def __init__(self, threads: int = 1, waiting: int = 8) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="jobs")
        self._slots = BoundedSemaphore(threads + waiting)
        self._share = max(1, (threads + waiting) // 2)
        self._clients: Counter[str] = Counter()
        self._counting = Lock()

    @contextmanager
    def slot(self, client: str | None = None) -> Iterator[Callable[[Callable[[], T]], T]]:
        """Reserve a place in the queue and yield a function that runs a job there and returns its result.

        A request reserves its slot before it reads an upload, so that a full queue also limits memory. One client gets
        half of the slots at most: slow uploads shut nobody else out.

        Args:
            client: the address that the request comes from; None: it does not count.

        Raises:
            RequestError: 503 if the queue is full, or the client's half of it.
        """
        with self._client_share(client):
            if not self._slots.acquire(blocking=False):
                raise RequestError(503, BUSY)
            try:
                yield lambda job: self._pool.submit(_without_locals, job).result()
            finally:
                self._slots.release()

    @contextmanager
    def _client_share(self, client: str | None) -> Iterator[None]:
        if client is None:
            yield
            return
        with self._counting:
            if self._clients[client] >= self._share:
                raise RequestError(503, BUSY_WITH_YOURS)
            self._clients[client] += 1
        try:
            yield
        finally:
            with self._counting:
                self._clients[client] -= 1
                self._clients += Counter()  # forgets those at zero

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

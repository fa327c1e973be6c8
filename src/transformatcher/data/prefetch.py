"""Items → results of a function, computed by threads a little ahead of their use."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from types import TracebackType
from typing import Generic, TypeVar

from transformatcher.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Prefetcher(Generic[Item, Result]):
    """Applies a function to items in threads, so that results are ready when they are needed.

    It is a context manager: leaving it drops the items that no thread has begun and waits for those in progress.

    Args:
        function: called with one item, in any of the threads.
        threads: how many items are in progress at a time.

    Example:
        >>> with Prefetcher(len, threads=2) as lengths:
        ...     lengths.start("first", "abc")
        ...     lengths.take("first")
        3
    """

    def __init__(self, function: Callable[[Item], Result], threads: int) -> None:
        self._function, self._pool = function, ThreadPoolExecutor(threads)
        self._pending: dict[Hashable, Future[Result]] = {}

    def start(self, key: Hashable, item: Item) -> None:
        """Begin with an item, unless one is pending under the same key."""
        if key not in self._pending:
            self._pending[key] = self._pool.submit(self._function, item)

    def take(self, key: Hashable) -> Result:
        """Wait for the result of a started item and forget it. If the function raised an error, it is raised here."""
        return self._pending.pop(key).result()

    def __enter__(self) -> "Prefetcher[Item, Result]":
        """Nothing is started yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the threads."""
        self._pool.shutdown(cancel_futures=True)


def prefetch(
    function: Callable[[Item], Result], items: Iterable[Item], *, ahead: int, threads: int = 1
) -> Iterator[Result]:
    """Yield ``function(item)`` of every item, in order; threads work on the next items while one is in use.

    An error of the function is raised when the turn of its item comes. Closing the iterator stops the threads.

    Args:
        function: called with one item, in any of the threads.
        items: read as far as they are needed, by the thread that iterates.
        ahead: how many items beyond the one in use are read.
        threads: how many items are in progress at a time.

    Example:
        >>> list(prefetch(len, ["a", "bb", "ccc"], ahead=2))
        [1, 2, 3]
    """
    remaining = enumerate(items)
    waiting: deque[int] = deque()
    with Prefetcher(function, threads) as results:

        def start(count: int) -> None:
            for number, item in islice(remaining, count):
                results.start(number, item)
                waiting.append(number)

        start(ahead)
        while True:
            start(1)
            if not waiting:
                return
            yield results.take(waiting.popleft())


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Consecutive items in lists of ``size``; the last may be shorter. (``itertools.batched`` needs Python 3.12.)

    Example:
        >>> list(batched("abcde", 2))
        [['a', 'b'], ['c', 'd'], ['e']]
    """
    if size < 1:
        raise InputError(f"batch = {size}: expected a whole number from 1")
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch

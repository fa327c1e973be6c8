"""Items → results, by one worker in this process, or by many on a Ray cluster.

A worker is a function: an iterable of items in, a result for each of them out. It is made in the process that it works
in, so that its model is loaded there, once.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar, runtime_checkable

Item = TypeVar("Item")
Result = TypeVar("Result")
Track = Callable[[int], None]  # is called with the number of parts of items that are done, beside finished items
Worker = Callable[[Iterable[Item]], Iterator[Result]]


def ignore(_done: int) -> None:
    """A :data:`Track` for callers that need no progress within items."""


@runtime_checkable
class Engine(Protocol):
    """What runs workers."""

    def run(
        self,
        make_worker: Callable[[Track], Worker[Item, Result]],
        items: Iterable[Item],
        *,
        name: str,
        chunk: int = 1,
        track: Track = ignore,
    ) -> Iterator[Result]:
        """Yield the results of all items, in any order.

        Args:
            make_worker: makes a worker, which may report the work on unfinished items to the function it is given.
            items: are read as they are needed.
            name: of the work, such as the command, for dashboards.
            chunk: how many items are handed to a worker at a time.
            track: is called now and then with what all workers have reported.
        """


class LocalEngine:
    """One worker, in this process."""

    def run(
        self,
        make_worker: Callable[[Track], Worker[Item, Result]],
        items: Iterable[Item],
        *,
        name: str = "",  # noqa: ARG002 (nobody shows it)
        chunk: int = 1,  # noqa: ARG002 (the only worker reads all items itself)
        track: Track = ignore,
    ) -> Iterator[Result]:
        """See :meth:`Engine.run`."""
        yield from make_worker(track)(items)

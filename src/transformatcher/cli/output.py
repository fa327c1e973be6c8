"""Where commands print: tables to standard output, progress to standard error."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

# A file or a pipe has no width. Markup is off, so that brackets in names of files and points are printed as they are.
STDOUT = Console(width=None if sys.stdout.isatty() else 160, markup=False)
STDERR = Console(stderr=True, markup=False)


@contextmanager
def progress_bar(what: str, unit: str = "pairs") -> Iterator[Callable[[int, int], None]]:
    """A progress bar with ``unit`` a second and the time left, as a ``track(done, total)`` function."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=STDERR) as bar:
        task = bar.add_task(what, total=None, rate="")
        start, before = time.monotonic(), -1

        def track(done: int, total: int) -> None:
            nonlocal before
            before = done if before < 0 else before  # the work of an earlier run does not count for the speed
            rate = (done - before) / max(time.monotonic() - start, 1e-3)
            bar.update(task, completed=done, total=total, rate=f"{rate:.1f} {unit}/s" if rate else "")

        yield track


@contextmanager
def training_progress(quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """A bar with pairs a second and the time left; text that ends in a newline stays, as a line above it."""
    columns = (BarColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True, quiet=quiet, markup=False)) as bar:
        task = bar.add_task("", total=None, rate="")
        start = (time.monotonic(), 0)

        def report(done: int, total: int, text: str) -> None:
            nonlocal start
            now = time.monotonic()
            if done and not start[1]:
                start = (now, done)
            rate = (done - start[1]) / max(now - start[0], 1e-3)
            bar.update(
                task, completed=done, total=total, description=text.strip(), rate=f"{rate:.0f} pairs/s" * (rate > 0)
            )
            if text.endswith("\n"):
                bar.console.print(text.strip(), highlight=False)

        yield report

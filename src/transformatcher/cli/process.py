"""The standard streams and signals of a process → as a command needs them."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn, TextIO

STANDARD_STREAMS = (0, 1, 2)  # file descriptors
INTERRUPTED = 130  # exit code


def open_closed_streams() -> bool:
    """Open the null device in place of standard streams that are closed; returns whether there is standard output.

    Otherwise the first files that are opened would take their numbers, and messages of C libraries would go there.
    """
    for number in STANDARD_STREAMS:
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
    has_output = sys.stdout is not None
    sys.stdout = sys.stdout or _null()
    sys.stderr = sys.stderr or _null()
    return has_output


def print_anything() -> None:
    """Let both streams print what their encoding does not have, as a terminal with ASCII alone: as escapes."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):  # a notebook's stream
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def flush_output() -> None:
    """Write what is buffered to standard output; what it cannot take is forgotten, so that Python does not try again.

    Raises:
        OSError: if it cannot be written, as on a full disk.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
        if isinstance(error, BrokenPipeError):
            raise
        raise OSError(error.errno, error.strerror, "standard output") from error


@contextlib.contextmanager
def termination_interrupts() -> Iterator[None]:
    """SIGTERM and a closed terminal (SIGHUP) interrupt as Ctrl-C does, so that what was begun is tidied up."""
    if threading.current_thread() is not threading.main_thread():  # Python handles signals there alone
        yield
        return
    owner = os.getpid()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a process that was forked to decode photos ends as it would
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise KeyboardInterrupt

    before = {}
    for number in filter(None, (signal.SIGTERM, getattr(signal, "SIGHUP", None))):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_at_next_interrupt() -> None:
    """After an interruption: a further Ctrl-C ends the process at once, with the same exit code."""

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        os._exit(INTERRUPTED)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, end)


def _null() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 (open until the process ends)

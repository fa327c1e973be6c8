"""Ctrl-C and kill → a request to stop after the current step."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether a signal asked this process to stop."""

    def __init__(self) -> None:
        self.received = False

    @contextmanager
    def catch_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM: the first sets ``received``, a second one interrupts at once."""

        def handle(_number: int, _frame: FrameType | None) -> None:
            if self.received:
                raise KeyboardInterrupt
            self.received = True

        try:
            before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # only the main thread can handle signals
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

"""The first signal asks, the second one interrupts."""

import signal
import threading

import pytest

from transformatcher.training.signals import StopRequest

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", NUMBERS)
def test_two_signals(number: signal.Signals):
    before = [signal.getsignal(n) for n in NUMBERS]
    stop = StopRequest()
    with stop.catch_signals():
        assert not stop.received
        signal.raise_signal(number)
        assert stop.received
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert [signal.getsignal(n) for n in NUMBERS] == before


def test_a_thread_catches_none():
    seen = []

    def work() -> None:
        with StopRequest().catch_signals():
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]

"""Which connections are cut off, by a clock that need not be waited for; over real connections: test_load.py."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")

from uvicorn.server import ServerState  # noqa: E402

from transformatcher.web import timeouts as patience  # noqa: E402
from transformatcher.web.timeouts import PatientProtocol  # noqa: E402


class Pipe:
    """As much of a transport as is asked for."""

    def __init__(self) -> None:
        self.aborted = False

    def get_extra_info(self, _: str) -> None:
        return None

    def abort(self) -> None:
        self.aborted = True


async def nothing(_scope: Any, _receive: Any, _send: Any) -> None:
    pass


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that opens one more; all in a loop of their own."""
    monkeypatch.setattr(patience, "MOST", 2)
    loop = asyncio.new_event_loop()
    options = {"http": PatientProtocol, "ws": "none", "interface": "asgi3", "log_level": "critical"}
    config, state = uvicorn.Config(nothing, **options), ServerState()
    opened = []

    def open_one() -> PatientProtocol:
        connection = PatientProtocol(config, state, {}, _loop=loop)
        connection.connection_made(Pipe())  # type: ignore[arg-type]
        opened.append(connection)
        return connection

    yield open_one
    for connection in opened:
        connection._timer.cancel()
    loop.close()


def was_cut(connection: PatientProtocol) -> bool:
    return bool(connection.transport.aborted)  # type: ignore[attr-defined]


def wait(connection: PatientProtocol, seconds: int) -> None:
    for _ in range(seconds):
        connection._timer.cancel()
        connection._look()


def test_silence_is_borne_for_a_while(connections: Any):
    connection = connections()
    wait(connection, int(patience.QUIET_S))
    assert not was_cut(connection)
    wait(connection, 1)
    assert was_cut(connection)


def test_a_request_in_work_may_take_its_time(connections: Any):
    connection = connections()
    connection.cycle = SimpleNamespace(response_complete=False)
    wait(connection, 1000)
    assert not was_cut(connection)
    connection.cycle.response_complete = True
    wait(connection, int(patience.QUIET_S) + 1)
    assert was_cut(connection)


def test_one_request_after_another_is_not_silence(connections: Any):
    connection = connections()
    for _ in range(100):  # each is done before anybody looks
        connection.cycle = SimpleNamespace(response_complete=True)
        wait(connection, 1)
    assert not was_cut(connection)


def test_who_does_not_read(connections: Any):
    connection = connections()
    connection.cycle = SimpleNamespace(response_complete=False)
    connection.pause_writing()
    wait(connection, int(patience.STUCK_S))
    connection.resume_writing()
    wait(connection, 1)
    assert not was_cut(connection)
    connection.pause_writing()
    wait(connection, int(patience.STUCK_S) + 1)
    assert was_cut(connection)


def test_in_a_crowd_the_most_silent_goes(connections: Any):
    first, second = connections(), connections()
    wait(first, 3)
    wait(second, 2)
    third = connections()
    assert [was_cut(one) for one in (first, second, third)] == [True, False, False]
    fourth = connections()
    assert [was_cut(one) for one in (second, third, fourth)] == [True, False, False]


def test_a_burst_cuts_nobody(connections: Any):
    """Clients that came a moment ago have not been silent: the server answers them with 503 instead."""
    assert not any(was_cut(one) for one in [connections() for _ in range(10)])

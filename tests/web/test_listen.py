"""The socket that the page is served on, and uvicorn's limits."""

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")

from transformatcher.errors import InputError
from transformatcher.web import listen
from transformatcher.web.listen import bind, uvicorn_config
from transformatcher.web.security import SecurityMiddleware


async def no_app(_scope: Any, _receive: Any, _send: Any) -> None:
    pass


class TestSocket:
    """pytest blocks sockets, so a process of its own binds them."""

    def test_a_port_that_is_taken(self):
        code = (
            "from transformatcher.web.listen import bind\n"
            "a = bind('127.0.0.1', 0); a.listen()\n"
            "assert a.proto == 6, 'without TCP_NODELAY, small responses take 40 ms longer'\n"
            "bind('127.0.0.1', a.getsockname()[1])"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "InputError: port" in result.stderr
        assert "choose another by --port" in result.stderr

    def test_a_host_that_is_not_here(self):
        code = "from transformatcher.web.listen import bind; bind('nowhere.invalid', 0)"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "InputError: --host nowhere.invalid: not an address of this machine" in result.stderr

    @pytest.mark.parametrize("port", [-1, 65536, 99999])
    def test_a_port_out_of_range(self, port: int):
        with pytest.raises(InputError, match=f"--port {port}: a port is a number from 1 to 65535, or 0"):
            bind("127.0.0.1", port)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_what_was_opened_is_closed_when_the_server_is_ended(name: str):
    code = (
        "from transformatcher.web.listen import bind, run_server\n"
        "async def app(scope, receive, send):\n"
        "    while scope['type'] == 'lifespan':\n"
        "        await send({'type': (await receive())['type'] + '.complete'})\n"
        "try:\n"
        "    run_server(app, bind('127.0.0.1', 0), 'page', 'it runs', browser=False)\n"
        "finally:\n"
        "    print('closed')\n"
    )
    command = [sys.executable, "-u", "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "it runs\n"
        os.kill(process.pid, getattr(signal, name))
        assert process.stdout.read() == "stopped\nclosed\n"
    assert process.returncode == 0


def test_uvicorn_limits():
    """Over real connections: test_load.py."""
    config = uvicorn_config(SecurityMiddleware(no_app, "127.0.0.1", 1))
    assert config.limit_concurrency == 500
    assert config.timeout_keep_alive == 10
    assert config.h11_max_incomplete_event_size == 16_384
    assert config.timeout_graceful_shutdown == 1
    assert not config.proxy_headers
    assert not config.server_header


@pytest.mark.parametrize("error", [OSError("no C library"), AttributeError("not glibc")])
def test_other_c_libraries_keep_their_memory(error: Exception, monkeypatch):
    listen.return_large_memory()

    def fail(_name: None) -> None:
        raise error

    monkeypatch.setattr(listen.ctypes, "CDLL", fail)
    listen.return_large_memory()

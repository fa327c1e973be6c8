"""The application as a whole: the page's own files, the socket, and uvicorn's limits."""

import subprocess
import sys
import threading
from importlib.resources import files
from typing import Any

import pytest
from helpers.web_client import make_client

from transformatcher.errors import InputError
from transformatcher.inference.matcher import Matcher
from transformatcher.web.server import bind, make_app, uvicorn_config
from transformatcher.web.session import Limits
from transformatcher.web.session_store import SessionStore

STATIC = sorted(path.name for path in (files("transformatcher") / "web" / "static").iterdir())


class TestPage:
    def test_index(self, client: Any):
        index = client.get("/")
        assert index.headers["content-type"].startswith("text/html")
        policy = index.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy

    @pytest.mark.parametrize("name", STATIC)
    def test_its_files_load_nothing_from_elsewhere(self, client: Any, name: str):
        response = client.get(f"/static/{name}").raise_for_status()
        assert "http" not in response.text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
        assert "innerHTML" not in response.text
        if name.endswith(".js"):
            assert response.headers["content-type"].startswith("text/javascript")

    @pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/static/../server.py", "/static/%2e%2e/server.py"])
    def test_nothing_else_is_served(self, client: Any, path: str):
        assert client.get(path).status_code == 404


class TestSocket:
    """pytest blocks sockets, so a process of its own binds them."""

    def test_a_port_that_is_taken(self):
        code = (
            "from transformatcher.web.server import bind\n"
            "a = bind('127.0.0.1', 0); a.listen()\n"
            "assert a.proto == 6, 'without TCP_NODELAY, small responses take 40 ms longer'\n"
            "bind('127.0.0.1', a.getsockname()[1])"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "InputError: port" in result.stderr
        assert "choose another by --port" in result.stderr

    def test_a_host_that_is_not_here(self):
        code = "from transformatcher.web.server import bind; bind('nowhere.invalid', 0)"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "InputError: --host nowhere.invalid: not an address of this machine" in result.stderr

    @pytest.mark.parametrize("port", [-1, 65536, 99999])
    def test_a_port_out_of_range(self, port: int):
        with pytest.raises(InputError, match=f"--port {port}: a port is a number from 1 to 65535, or 0"):
            bind("127.0.0.1", port)


def test_uvicorn_limits(matcher: Matcher):
    """Over real connections: test_load.py."""
    config = uvicorn_config(make_app(matcher))
    assert config.limit_concurrency == 500
    assert config.timeout_keep_alive == 10
    assert config.h11_max_incomplete_event_size == 16_384
    assert config.timeout_graceful_shutdown == 1
    assert not config.proxy_headers
    assert not config.server_header


def test_idle_sessions_are_dropped_in_the_background(matcher: Matcher, monkeypatch: pytest.MonkeyPatch):
    dropped = threading.Event()
    store = SessionStore(Limits())
    monkeypatch.setattr(store, "drop_idle", dropped.set)
    monkeypatch.setattr("transformatcher.web.server.DROP_IDLE_EVERY_S", 0.01)
    with make_client(matcher, session_store=store):
        assert dropped.wait(10)

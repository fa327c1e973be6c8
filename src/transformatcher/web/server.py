"""A matcher → the page and its API, served over HTTP."""

import asyncio
import contextlib
import socket
import sys
import webbrowser
from collections.abc import AsyncIterator, Callable
from importlib.resources import files

import uvicorn
from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from transformatcher.errors import InputError
from transformatcher.inference.matcher import Matcher
from transformatcher.web.dependencies import Services
from transformatcher.web.errors import add_error_handler
from transformatcher.web.job_queue import JobQueue
from transformatcher.web.routes import coco_files, photos, points, sessions
from transformatcher.web.security import SecurityMiddleware, is_local_host
from transformatcher.web.session import Limits
from transformatcher.web.session_store import SessionStore

MAX_PORT = 65535
DROP_IDLE_EVERY_S = 60.0
STATIC = files("transformatcher") / "web" / "static"

MAX_CONNECTIONS = 500  # each is an open file, of which most systems allow 1024
KEEP_ALIVE_S = 10  # that a connection may stay open between two requests
MAX_HEAD_BYTES = 16_384  # in the request line and headers
SHUTDOWN_S = 1  # that open requests have after Ctrl-C


def make_app(
    matcher: Matcher,
    limits: Limits | None = None,
    host: str = "127.0.0.1",
    *,
    session_store: SessionStore | None = None,
    jobs: JobQueue | None = None,
) -> SecurityMiddleware:
    """Build the ASGI application.

    Args:
        matcher: predicts the points.
        limits: size limits of uploads and sessions.
        host: the host that the server is bound to; requests that name another are refused.
        session_store, jobs: for tests, in place of the default ones.
    """
    limits = limits or Limits()
    store = SessionStore(limits) if session_store is None else session_store  # not "or": an empty store is false
    services = Services(matcher, limits, store, jobs or JobQueue(waiting=limits.waiting), is_local_host(host))
    app = FastAPI(title="transformatcher", docs_url=None, redoc_url=None, openapi_url=None, lifespan=_lifespan)
    app.state.services = services
    add_error_handler(app)
    for routes in (sessions, photos, points, coco_files):
        app.include_router(routes.router)
    app.add_api_route("/", _index, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=str(STATIC)), name="static")
    # Around the application, not inside by add_middleware: so responses to unexpected errors get the headers, too.
    return SecurityMiddleware(app, host, limits.upload_bytes)


async def _index() -> FileResponse:
    return FileResponse(str(STATIC / "index.html"))


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services

    async def drop_idle_sessions() -> None:
        while True:
            await asyncio.sleep(DROP_IDLE_EVERY_S)
            services.sessions.drop_idle()

    task = asyncio.create_task(drop_idle_sessions())
    yield
    task.cancel()
    services.jobs.close()


def bind(host: str, port: int) -> socket.socket:
    """Bind a TCP socket that does not listen yet; port 0 takes a free one.

    Raises:
        InputError: if the port is out of range or taken, or the host is not one of this machine.
    """
    if not 0 <= port <= MAX_PORT:
        raise InputError(f"--port {port}: a port is a number from 1 to {MAX_PORT}, or 0 for any that is free")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With the protocol named, asyncio sets TCP_NODELAY; without it, small responses take 40 ms longer.
        bound = socket.socket(family, kind, socket.IPPROTO_TCP)
    except OSError as error:
        raise InputError(f"--host {host}: not an address of this machine ({error})") from error
    try:
        if sys.platform != "win32":  # there it would let two servers share a port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise InputError(
            f"port {port} of {host} cannot be used ({error.strerror}); choose another by --port"
        ) from error
    return bound


def uvicorn_config(app: SecurityMiddleware) -> uvicorn.Config:
    """The settings and limits of the HTTP server.

    uvicorn has no limit on how slowly a client may send the head of its request or read the response. A server that
    strangers can reach needs a reverse proxy in front, which has (docs/deploy.md).
    """
    return uvicorn.Config(
        app,
        http="h11",  # which limits the head of a request
        ws="none",
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )


def _print(line: str) -> None:
    print(line, flush=True)  # at once, as a program may read the address from a pipe


class _Server(uvicorn.Server):
    """Calls a function as soon as the server accepts connections."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()


def serve(
    matcher: Matcher,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    *,
    browser: bool = True,
    log: Callable[[str], None] = _print,
) -> None:
    """Serve the page until interrupted.

    Args:
        matcher: predicts the points.
        host, port: where to listen; port 0 takes a free one.
        limits: size limits of uploads and sessions.
        browser: open the page in a browser.
        log: called with each line of output, such as the page's address.
    """
    bound = bind(host, port)
    shown = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{bound.getsockname()[1]}/"
    if not is_local_host(host):
        log(f"warning: other machines on the network can use this server, as it is bound to {host} without a password")

    def on_start() -> None:
        log(f"the page is at {address} (Ctrl-C stops the server; photos are kept in memory only)")
        if browser:
            webbrowser.open(address)

    try:
        _Server(uvicorn_config(make_app(matcher, limits, host)), on_start).run(sockets=[bound])
    except KeyboardInterrupt:  # uvicorn has shut down and raises the signal again
        log("stopped")
    finally:
        bound.close()

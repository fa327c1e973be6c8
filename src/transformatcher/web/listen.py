"""Application, host and port → an HTTP server that runs until Ctrl-C."""

import ctypes
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import uvicorn

from transformatcher.errors import InputError
from transformatcher.web.security import SecurityMiddleware

MAX_PORT = 65535
MAX_CONNECTIONS = 500  # each is an open file, of which most systems allow 1024
KEEP_ALIVE_S = 10  # that a connection may stay open between two requests
MAX_HEAD_BYTES = 16_384  # in the request line and headers
M_MMAP_THRESHOLD = -3  # of mallopt
LARGE_BLOCK = 8_000_000  # bytes
SHUTDOWN_S = 1  # that open requests have after Ctrl-C


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


def address_of(host: str, bound: socket.socket) -> str:
    """The address to open in a browser on this machine."""
    shown = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{bound.getsockname()[1]}/"


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


def print_line(line: str) -> None:
    """Print a line at once, as a program may read the address from a pipe."""
    print(line, flush=True)


class _Server(uvicorn.Server):
    """Calls a function as soon as the server accepts connections, and another when it begins to stop."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None], on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start, self._on_stop = on_start, on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        await super().shutdown(sockets)


@contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """SIGTERM and a closed terminal do what Ctrl-C does, so that what was opened is closed, and temporary files go."""
    before = {}
    if threading.current_thread() is threading.main_thread():  # Python handles signals there alone
        for number in filter(None, (signal.SIGTERM, getattr(signal, "SIGHUP", None))):
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def return_large_memory() -> None:
    """Have the C library return large blocks to the system as soon as they are free, where it is glibc.

    By itself, it raises this threshold to 32 MB after the first large photo, and keeps what is smaller.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)


def run_server(
    app: SecurityMiddleware,
    bound: socket.socket,
    page: str,
    announce: str,
    *,
    browser: bool,
    log: Callable[[str], None] = print_line,
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Serve an application on a bound socket until interrupted, terminated or hung up.

    Args:
        app: answers the requests.
        bound: see :func:`bind`; it is closed at the end.
        page: the address that a browser opens.
        announce: logged as soon as the server accepts connections.
        browser: open the page in a browser.
        log: called with each line of output.
        on_stop: called when the server begins to stop, before it waits for open requests.
    """

    def on_start() -> None:
        log(announce)
        if browser:
            webbrowser.open(page)

    return_large_memory()
    try:
        with _ended_as_by_ctrl_c():
            _Server(uvicorn_config(app), on_start, on_stop).run(sockets=[bound])
    except KeyboardInterrupt:  # uvicorn has shut down and raises the signal again
        with suppress(OSError):  # the terminal may be closed
            log("stopped")
    finally:
        bound.close()

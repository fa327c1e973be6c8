"""Who may talk to the server, how much and how slowly: a page it served itself, on a machine it was meant for."""

import asyncio
import ipaddress
import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transformatcher.web.refusal import RefusedError

OURS = "x-transformatcher"  # a header that no other site's form or image can send without the browser asking us first
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
EVERYWHERE = frozenset({"0.0.0.0", "::", ""})
COCO_BYTES = 4_000_000  # of an annotation file: read as JSON, it takes some twenty times that
SMALL_BYTES = 64_000  # of any other body but a photo
GRACE_S = 5.0  # after which a body must have come …
SLOWEST = 50_000  # … at so many bytes a second

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """The outermost layer: refuses strangers, oversized and crawling requests; puts strict headers on every answer.

    Args:
        app: what is guarded.
        host: that the server is bound to.
        max_bytes: of a photo.
    """

    def __init__(self, app: ASGIApp, host: str, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.everywhere = host in EVERYWHERE
        self.names = LOCAL | {host.lower().strip("[]")}
        if self.everywhere:
            self.names |= {socket.gethostname().lower(), socket.gethostname().lower() + ".local"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store" if scope["path"].startswith("/api/") else "no-cache")
            await send(message)

        try:
            self.check(scope["method"], scope["path"], Headers(scope=scope))
        except RefusedError as refusal:
            # The connection stays: closed on a client that is still sending, it would take the answer with it.
            response = JSONResponse({"error": str(refusal)}, refusal.status)
            await response(scope, receive, send_with_headers)
        else:
            await self.app(scope, in_time(receive), send_with_headers)

    def check(self, method: str, path: str, headers: Headers) -> None:
        """Raise where a request comes from elsewhere, or brings too much."""
        host = headers.get("host", "")
        if not self.knows(host):  # a site whose name was made to point here (DNS rebinding) sends its own name
            raise RefusedError(403, f"This server does not answer to the name “{host[:80]}”.")
        if path.startswith("/api/") and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise RefusedError(403, "Requests from other sites are not served.")
        if method in ("GET", "HEAD"):
            return
        origin = headers.get("origin")
        if origin is not None and _netloc(origin) != host.lower():
            raise RefusedError(403, "Requests from other sites are not served.")
        if OURS not in headers and not (path.endswith("/close") and origin):  # a farewell beacon has no such header
            raise RefusedError(403, f"Requests that change something need the header {OURS}.")
        if "transfer-encoding" in headers:
            raise RefusedError(411, "Say how long the request is (Content-Length).")
        length, most = headers.get("content-length", "0"), self.longest(path)
        if not length.isdecimal() or len(length) > 18 or int(length) > most:
            raise RefusedError(413, f"The file is too large: the server takes up to {most / 1e6:g} MB.")

    def longest(self, path: str) -> int:
        """Bytes that the body of a request may have."""
        if path.endswith("/photos"):
            return self.max_bytes
        return min(COCO_BYTES if path.endswith("/coco") else SMALL_BYTES, self.max_bytes)

    def knows(self, host: str) -> bool:
        """Whether a Host header names this machine."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        if name in self.names:
            return True
        return self.everywhere and _is_address(name)


def in_time(receive: Receive) -> Receive:
    """The same messages, but an error where a body does not come at the pace that is asked for."""
    began, got, more = asyncio.get_running_loop().time(), 0, True

    async def receive_in_time() -> Message:
        nonlocal got, more
        if not more:  # what comes now is that the client left, and that may take as long as it likes
            return await receive()
        try:
            async with asyncio.timeout_at(began + GRACE_S + got / SLOWEST):
                message = await receive()
        except TimeoutError as error:
            raise RefusedError(408, "The request came too slowly.") from error
        got += len(message.get("body", b""))
        more = bool(message.get("more_body", False))
        return message

    return receive_in_time


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def is_local(host: str) -> bool:
    """Whether only this machine can reach a server bound to ``host``."""
    return host.lower() in LOCAL or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

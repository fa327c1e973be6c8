"""Who may talk to the server: a page it served itself, on a machine it was meant for."""

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
    """The outermost layer: refuses strangers and oversized requests, and puts strict headers on every answer.

    Args:
        app: what is guarded.
        host: that the server is bound to.
        max_bytes: of a request's body.
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
            response = JSONResponse({"error": str(refusal)}, refusal.status, headers={"Connection": "close"})
            await response(scope, receive, send_with_headers)
        else:
            await self.app(scope, receive, send_with_headers)

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
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise RefusedError(403, "Requests from other sites are not served.")
        if OURS not in headers and not (path.endswith("/close") and origin):  # a farewell beacon has no such header
            raise RefusedError(403, f"Requests that change something need the header {OURS}.")
        if "transfer-encoding" in headers:
            raise RefusedError(411, "Say how long the request is (Content-Length).")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self.max_bytes:
            raise RefusedError(413, f"The file is too large: the server takes up to {self.max_bytes / 1e6:g} MB.")

    def knows(self, host: str) -> bool:
        """Whether a Host header names this machine."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        if name in self.names:
            return True
        return self.everywhere and _is_address(name)


def is_local(host: str) -> bool:
    """Whether only this machine can reach a server bound to ``host``."""
    return host.lower() in LOCAL or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

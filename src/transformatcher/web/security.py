"""A request → the application, unless it comes from another site, names another host, is too large or too slow.

A server that other machines can reach may ask for a token, too.
"""

import asyncio
import hashlib
import ipaddress
import secrets
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transformatcher.web.errors import RequestError, error_response

# A page of another site cannot send this header unless the browser first asks us (CORS preflight), and we never agree.
CSRF_HEADER = "x-transformatcher"
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
ALL_INTERFACES = frozenset({"0.0.0.0", "::", ""})
FORM_TYPES = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})
MAX_IMPORT_BYTES = 20_000_000  # of an annotation file of one's own; the command line takes larger ones
MAX_JSON_BYTES = 64_000  # of any other body that is not a photo
UPLOAD_GRACE_S = 5.0  # a body must arrive within this time …
MIN_UPLOAD_RATE = 50_000  # … plus its size at so many bytes a second

SECURITY_HEADERS = {
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


class SecurityMiddleware:
    """ASGI middleware: checks every request before the application sees it, and adds headers to every response.

    Args:
        app: the application inside.
        host: the host that the server is bound to; requests that name another are refused.
        max_upload_bytes: size limit of a photo.
        max_import_bytes: size limit of an annotation file.
        token: what a client must know; it is given in the page's address once, ``/?token=…``, and is a cookie then.
            None: everybody who reaches the server may use it.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        max_upload_bytes: int,
        max_import_bytes: int = MAX_IMPORT_BYTES,
        token: str | None = None,
    ) -> None:
        self.app = app
        self.max_upload_bytes, self.max_import_bytes = max_upload_bytes, max_import_bytes
        self.token = token
        # Cookies do not know ports: two servers on one machine must not overwrite each other's.
        self.cookie = f"transformatcher-{hashlib.sha256((token or '').encode()).hexdigest()[:8]}"
        self.all_interfaces = host in ALL_INTERFACES
        self.allowed_hosts = LOCAL_HOSTS | {host.lower().strip("[]")}
        if self.all_interfaces:
            self.allowed_hosts |= {socket.gethostname().lower(), socket.gethostname().lower() + ".local"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        method, path, request_headers = scope["method"], scope["path"], Headers(scope=scope)
        brings_token = self.token is not None and path == "/" and self.is_token(QueryParams(scope["query_string"]))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers.setdefault("Cache-Control", "no-store" if path.startswith("/api/") else "no-cache")
                if brings_token:
                    # No redirect to an address without the token: after a link on another site, the browser would not
                    # send the cookie along. The page removes the token from its address by itself.
                    headers.append("Set-Cookie", f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict")
            await send(message)

        try:
            self.check(method, path, request_headers)
            if not brings_token:
                self.check_token(path, request_headers)
        except RequestError as error:
            # The connection stays open: a client that is still sending would lose the response if it were closed.
            brings_token = False
            await error_response(error)(scope, receive, send_with_headers)
        else:
            has_body = method not in ("GET", "HEAD")
            await self.app(scope, with_upload_deadline(receive) if has_body else receive, send_with_headers)

    def check_token(self, path: str, headers: Headers) -> None:
        """Raise RequestError if a token is asked for and the request's cookie does not have it."""
        if self.token is None or path.startswith("/static/") or path == "/api/health":
            return
        if not self.is_token(cookie_parser(headers.get("cookie", "")), self.cookie):
            raise RequestError(401, "This server asks for a token: open the address that it has printed, with ?token=…")

    def is_token(self, given: Mapping[str, str], key: str = "token") -> bool:
        """Whether a client has given the token; the time that this takes does not tell how near it was."""
        return self.token is not None and secrets.compare_digest(given.get(key, "").encode(), self.token.encode())

    def check(self, method: str, path: str, headers: Headers) -> None:
        """Raise RequestError if a request may come from another site, or its body is too large."""
        host = headers.get("host", "")
        if not self.is_allowed_host(host):  # against DNS rebinding: the browser sends the other site's own name
            raise RequestError(403, f"This server does not answer to the name “{host[:80]}”.")
        if path.startswith("/api/") and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise RequestError(403, "Requests from other sites are refused.")
        if method in ("GET", "HEAD"):
            return
        origin = headers.get("origin")
        if origin is not None and _netloc(origin) != host.lower():
            raise RequestError(403, "Requests from other sites are refused.")
        if CSRF_HEADER not in headers:
            raise RequestError(403, f"Requests that change something need the header {CSRF_HEADER}.")
        if "transfer-encoding" in headers:
            raise RequestError(411, "The request must give its length (Content-Length).")
        length, limit = headers.get("content-length", "0"), self.max_body_bytes(path)
        if not length.isdecimal() or len(length) > 18 or int(length) > limit:
            raise RequestError(413, f"The file is too large: the limit is {limit / 1e6:g} MB.")
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if int(length) > 0 and content_type in FORM_TYPES:  # what a form of another site can send
            raise RequestError(415, f"Bodies of type {content_type} are refused; use application/octet-stream.")

    def max_body_bytes(self, path: str) -> int:
        """Size limit of the body of a request to ``path``."""
        if path.endswith("/photos"):
            return self.max_upload_bytes
        if path.endswith("/import"):
            return self.max_import_bytes
        return MAX_JSON_BYTES

    def is_allowed_host(self, host: str) -> bool:
        """Whether a Host header (name and perhaps port) names this machine."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        return name in self.allowed_hosts or (self.all_interfaces and _is_ip_address(name))


def with_upload_deadline(receive: Receive) -> Receive:
    """Wrap ``receive``: a body slower than ``MIN_UPLOAD_RATE`` raises RequestError (408), Ctrl-C raises one (503)."""
    start, received, more = asyncio.get_running_loop().time(), 0, True

    async def receive_in_time() -> Message:
        nonlocal received, more
        if not more:  # the body is complete; the next message is the disconnect, which has no deadline
            return await receive()
        try:
            async with asyncio.timeout_at(start + UPLOAD_GRACE_S + received / MIN_UPLOAD_RATE):
                message = await receive()
        except TimeoutError as error:
            raise RequestError(408, "The upload was too slow.") from error
        except asyncio.CancelledError as error:  # by uvicorn, some time after Ctrl-C
            raise RequestError(503, "The server is stopping.") from error
        received += len(message.get("body", b""))
        more = bool(message.get("more_body", False))
        return message

    return receive_in_time


def is_local_host(host: str) -> bool:
    """Whether only this machine can reach a server bound to ``host``."""
    return host.lower() in LOCAL_HOSTS or (_is_ip_address(host) and ipaddress.ip_address(host).is_loopback)


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

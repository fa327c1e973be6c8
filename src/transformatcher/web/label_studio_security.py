"""A request → the application, unless a web page sends it, it names another host, is no JSON or lacks the password."""

import base64
import secrets
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp

from transformatcher.web.errors import RequestError
from transformatcher.web.security import SecurityMiddleware

MAX_BODY_BYTES = (
    50_000_000  # of a request: Label Studio sends all tasks of a batch at once, images in data: addresses too
)
DOCKER_HOST = "host.docker.internal"  # what a container calls the machine that it runs on; nobody can register it
OPEN_PATH = "/"  # it says that the server runs, and nothing else; /health is what Label Studio tries a password with


class LabelStudioSecurity(SecurityMiddleware):
    """As the page's, but for a program as the client: it sends no header of ours and no cookie.

    A web page cannot send JSON to another site unless the browser first asks that site, and this server never agrees.

    Args:
        app: the application inside.
        host: the host that the server is bound to; requests that name another are refused.
        names: further names that requests may call the server by.
        credentials: ``user:password`` of HTTP Basic authentication, which Label Studio can send; None: not asked for.
    """

    def __init__(self, app: ASGIApp, host: str, names: Sequence[str] = (), credentials: str | None = None) -> None:
        super().__init__(app, host, MAX_BODY_BYTES)
        self.credentials = credentials
        self.allowed_hosts |= {name.lower() for name in names}
        if self.all_interfaces:
            self.allowed_hosts |= {DOCKER_HOST}

    def check(self, method: str, path: str, headers: Headers) -> None:  # noqa: ARG002 (the signature is inherited)
        """Raise RequestError if a request may come from a web page, or its body is no JSON or too large."""
        host = headers.get("host", "")
        if not self.is_allowed_host(host):
            raise RequestError(
                403,
                f"This server does not answer to the name “{host[:80]}”; start it with --allow-host to change that.",
            )
        if method in ("GET", "HEAD"):
            return
        if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
            raise RequestError(403, "Requests of web pages are refused; Label Studio's server is who may ask.")
        if "transfer-encoding" in headers:
            raise RequestError(411, "The request must give its length (Content-Length).")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > MAX_BODY_BYTES:
            raise RequestError(413, f"The request is too large: the limit is {MAX_BODY_BYTES / 1e6:g} MB.")
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise RequestError(415, "The body must be JSON (Content-Type: application/json).")

    def check_token(self, path: str, headers: Headers) -> None:
        """Raise RequestError if a password is asked for and the request does not have it."""
        if self.credentials is None or path == OPEN_PATH:
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        wanted = base64.b64encode(self.credentials.encode()).decode()
        if kind.lower() != "basic" or not secrets.compare_digest(given.strip().encode(), wanted.encode()):
            error = RequestError(401, "This server asks for a user name and a password (Basic authentication).")
            error.headers = {"WWW-Authenticate": 'Basic realm="transformatcher"'}
            raise error

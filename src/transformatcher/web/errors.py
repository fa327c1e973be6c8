"""A failed request → a status and ``{"error": sentence}``, which the page shows."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from transformatcher.errors import InputError, printable

CLIENT_LEFT = 499  # the status that proxies log for it; nobody receives the response
STATUS_HEADERS = {503: {"Retry-After": "2"}, 408: {"Connection": "close"}}


class RequestError(HTTPException):
    """A request that the server refuses, with its HTTP status and one sentence for the user."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message, STATUS_HEADERS.get(status))


def client_of(request: Request) -> str:
    """The address that a request comes from."""
    return request.client.host if request.client else ""


def add_error_handler(app: FastAPI) -> None:
    """Answer every exception of the application by :func:`error_response`."""
    for kind in (HTTPException, RequestValidationError, InputError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, _handle)


async def _handle(_: Request, error: Exception) -> JSONResponse:
    return error_response(error)


def error_response(error: Exception) -> JSONResponse:
    """The JSON response for any exception; one that nobody expected is a 500, and its traceback goes to the log."""
    headers = None
    match error:
        case HTTPException():
            status, message, headers = error.status_code, f"{error.detail.rstrip('.')}.", error.headers
        case RequestValidationError():
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"][1:]) or "body"
            status, message = 422, f"The request is malformed: {field}: {first['msg']}."
        case InputError():
            status, message = 422, str(error)
        case ClientDisconnect():
            status, message = CLIENT_LEFT, "The client closed the connection."
        case _ if isinstance(error, MemoryError) or "memory" in str(error):
            status, message = 507, "The server ran out of memory; use smaller photos."
        case _:
            status, message = 500, "The server failed; see the error in its terminal."
    return JSONResponse({"error": printable(message)}, status, headers=headers)

"""A test client for the page's API, and photos to upload. Modules that import this are skipped without FastAPI."""

import asyncio
import io
import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from transformatcher.data.synthetic import synthetic_pair
from transformatcher.inference.matcher import Matcher

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")
testclient = pytest.importorskip("fastapi.testclient", reason="FastAPI's test client needs httpx")

from transformatcher.web.server import make_app  # noqa: E402
from transformatcher.web.session import Limits  # noqa: E402

BASE_URL = "http://127.0.0.1:8000"
HEADERS = {"X-Transformatcher": "1"}


def make_client(
    matcher: Matcher, limits: Limits | None = None, *, raise_server_exceptions: bool = True, **options: Any
) -> Any:
    """A client of a new server, with the header that the page sends."""
    app = make_app(matcher, limits, **options)
    return testclient.TestClient(
        app, base_url=BASE_URL, headers=HEADERS, raise_server_exceptions=raise_server_exceptions
    )


class PageClient:
    """One session, as the page's scripts use it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.root = f"/api/sessions/{client.post('/api/sessions').json()['session']}"

    def request(self, method: str, path: str, status: int = 200, **options: Any) -> Any:
        """Send a request, check the response's status, and return its JSON, or the response if it has none."""
        response = self.client.request(method, self.root + path, **options)
        assert response.status_code == status, response.text
        is_json = response.content and response.headers.get("content-type") == "application/json"
        return response.json() if is_json else response

    def upload(self, data: bytes, role: str = "target", name: str = "photo.png", status: int = 201) -> Any:
        """Upload a photo."""
        return self.request("POST", "/photos", status, params={"role": role, "name": name}, content=data)

    def add_point(self, x: float, y: float, name: str = "") -> Any:
        """Set a point on the source."""
        return self.request("POST", "/points", 201, json={"x": x, "y": y, "name": name})

    def photo_ids(self) -> dict[str, str]:
        """File name → id of each photo."""
        return {photo["name"]: photo["id"] for photo in self.request("GET", "")["photos"]}


def post_in_part(page: PageClient, path: str, *messages: dict[str, Any]) -> tuple[int, Any]:
    """Send the beginning of a POST request, as ASGI messages, and then nothing more; return status and JSON."""
    route, _, query = path.partition("?")
    headers = {**HEADERS, "Host": "127.0.0.1", "Content-Length": "1000", "Content-Type": "application/json"}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": page.root + route,
        "query_string": query.encode(),
        "headers": [(key.lower().encode(), value.encode()) for key, value in headers.items()],
    }
    rest, sent = iter(messages), []

    async def receive() -> Any:
        if message := next(rest, None):
            return message
        await asyncio.sleep(60)
        raise TimeoutError

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(page.client.app(scope, receive, send))
    return sent[0]["status"], json.loads(b"".join(message["body"] for message in sent[1:]))


def picture(seed: int = 0, size: tuple[int, int] = (120, 200)) -> np.ndarray:
    """A synthetic photo of a size (h, w)."""
    image = synthetic_pair(seed, size=size)[0].src_image
    assert isinstance(image, np.ndarray)
    return image


def encode_image(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    """Pixels → an image file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    """The beginning of a PNG file that claims a size."""
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT" + zlib.compress(bytes(99)))
    sealed = (struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(sealed)

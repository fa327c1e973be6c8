"""Photos to upload, and requests that break off. Modules that import this are skipped without FastAPI."""

import asyncio
import io
import json
import struct
import zlib
from typing import Any

import numpy as np
from helpers.studio_client import HEADERS
from PIL import Image

from transformatcher.data.synthetic import synthetic_pair


def post_in_part(app: Any, path: str, *messages: dict[str, Any]) -> tuple[int, Any]:
    """Send the beginning of a POST request, as ASGI messages, and then nothing more; return status and JSON."""
    headers = {**HEADERS, "Host": "127.0.0.1", "Content-Length": "1000", "Content-Type": "application/json"}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": f"/api{path}",
        "query_string": b"",
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

    asyncio.run(app(scope, receive, send))
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

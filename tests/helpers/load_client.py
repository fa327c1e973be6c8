"""A crowd, slow clients, garbage, oversized photos and bombs against a real server. Run by test_load.py.

Usage: hammer.py NUMBER [hasty]; that many clients at once. Prints what came of it as JSON. A process of its own, as
pytest has no network.
"""

import asyncio
import io
import json
import os
import random
import re
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

OURS = {"X-Transformatcher": "1"}
CLOSED = 0  # in place of a status: the server hung up without an answer
HUNG = -1  # it did neither
MB = 1_000_000


@contextmanager
def serving(*words: str) -> Iterator[tuple[int, int]]:
    """A server of its own → its process id and its port."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(Path(__file__).with_name("small_server.py")), *words]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        for line in server.stdout:
            if found := re.search(r"http://[^:]+:(\d+)", line):
                yield server.pid, int(found[1])
                break
        assert server.poll() is None, "the server did not live to see the end"
    finally:
        server.terminate()
        server.wait(20)


def memory_mb(pid: int, key: str = "VmRSS") -> float:
    """Resident memory now, or at its highest (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"{key}:\s+(\d+)", status)[1]) / 1000  # type: ignore[index]


async def answered(reader: asyncio.StreamReader) -> bytes:
    """One answer, as long as it says it is; or what came before the end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        return head + (await reader.readexactly(int(length[1])) if length else await reader.read(-1))
    except asyncio.IncompleteReadError as error:
        return error.partial


class Client:
    """Requests by hand, so that they may be wrong."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def send(self, data: bytes, *, wait: float = 60) -> tuple[int, bytes]:
        """Bytes as they are → the answer's status and body; CLOSED or HUNG where there is none."""
        try:
            async with asyncio.timeout(wait):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                try:
                    writer.write(data)
                    with suppress(ConnectionError):  # hung up in the middle; there may be an answer all the same
                        await writer.drain()
                    answer = await answered(reader)
                finally:
                    writer.close()
        except TimeoutError:
            return HUNG, b""
        except ConnectionError:
            return CLOSED, b""
        found = re.match(rb"HTTP/1.1 (\d+)", answer)
        return (int(found[1]), answer.partition(b"\r\n\r\n")[2]) if found else (CLOSED, answer)

    async def ask(
        self, method: str, path: str, body: bytes = b"", *, wait: float = 60, **headers: str
    ) -> tuple[int, Any]:
        """A sound request → status and JSON (or bytes)."""
        kinds = {"Content-Type": "application/json"} if body[:1] in (b"{", b"[") else {}
        all_headers = {"Host": f"127.0.0.1:{self.port}", **OURS, **kinds, **headers}
        if method != "GET":
            all_headers["Content-Length"] = str(len(body))
        head = "".join([f"{method} {path} HTTP/1.1\r\n", *(f"{k}: {v}\r\n" for k, v in all_headers.items()), "\r\n"])
        status, content = await self.send(head.encode() + body, wait=wait)
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content

    async def session(self) -> str:
        """A new session's path."""
        status, answer = await self.ask("POST", "/api/sessions")
        assert status == 201, (status, answer)
        return f"/api/sessions/{answer['session']}"


def photo(seed: int, side: int = 64) -> bytes:
    """Noise."""
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def bomb(width: int, height: int, *, bits: int = 8, colours: int = 2) -> bytes:
    """A black PNG (colours 0: grey, 2: RGB, 6: with transparency): kilobytes that unfold to width × height pixels."""
    packer = zlib.compressobj(9)
    row = bytes(1 + {0: 1, 2: 3, 6: 4}[colours] * bits // 8 * width)
    rows = b"".join([*(packer.compress(row) for _ in range(height)), packer.flush()])
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0), b"IDAT" + rows, b"IEND")
    sealed = (struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(sealed)


async def gathered(*calls: Any) -> dict[str, int]:
    """How often each status came."""
    return {str(k): v for k, v in sorted(Counter(status for status, _ in await asyncio.gather(*calls)).items())}


# ---------------------------------------------------------------- scenes


async def crowd(client: Client, n: int) -> dict[str, Any]:
    """Light requests, all at once."""
    root = await client.session()
    await client.ask("POST", f"{root}/photos?role=source", photo(0))
    await client.ask("POST", f"{root}/photos?role=target", photo(1))
    paths = ("/", "/static/app.js", root, f"{root}/match?x=9&y=9", f"{root}/match?x=5&y=50&heat=true", "/nothing")
    start = time.monotonic()
    statuses = await gathered(*(client.ask("GET", paths[i % len(paths)]) for i in range(n)))
    return {"statuses": statuses, "seconds": round(time.monotonic() - start, 2)}


async def uploads(client: Client, n: int) -> dict[str, Any]:
    """Photos, all at once: some are taken, the others sent away."""
    root = await client.session()
    statuses = await gathered(*(client.ask("POST", f"{root}/photos?role=target", photo(i)) for i in range(n)))
    return {"statuses": statuses}


async def slow(client: Client, n: int) -> dict[str, Any]:
    """Clients that send a byte now and then, or never read, while somebody wants to work."""
    root = await client.session()
    _, state = await client.ask("POST", f"{root}/photos?role=source", photo(0, side=900))
    head = f"POST {root}/photos?role=target HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Transformatcher: 1\r\n"
    body = f"{head}Content-Length: 1000000\r\n\r\n".encode()
    start = time.monotonic()
    lasted: list[float] = []

    async def dribble(first: bytes) -> None:
        began = time.monotonic()
        with suppress(ConnectionError):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
            try:
                writer.write(first)
                end = asyncio.ensure_future(reader.read(-1))
                for _ in range(120):
                    writer.write(b"x")
                    await writer.drain()
                    if (await asyncio.wait([end], timeout=0.5))[0]:
                        break
            finally:
                end.cancel()
                writer.close()
        lasted.append(time.monotonic() - began)

    async def never_read() -> None:
        began = time.monotonic()
        _, writer = await asyncio.open_connection("127.0.0.1", client.port)
        path = f"{root}/photos/{state['source']}/image"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() * 40)  # more than fits into a pipe
        with suppress(ConnectionError):
            for _ in range(60):
                await asyncio.sleep(1)
                writer.write(b"x")
                await writer.drain()
        writer.close()
        lasted.append(time.monotonic() - began)

    kinds = (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", body, b"")
    crawling = [asyncio.create_task(dribble(kinds[i % len(kinds)])) for i in range(n)]
    crawling += [asyncio.create_task(never_read()) for _ in range(5)]
    await asyncio.sleep(1)  # all of them are there now
    served: Counter[int] = Counter()
    waits = []
    while time.monotonic() - start < 4:
        began = time.monotonic()
        status, _ = await client.ask("GET", root, wait=20)
        served[status] += 1
        waits.append(time.monotonic() - began)
        await asyncio.sleep(0.1)
    statuses = {str(status): count for status, count in served.items()}
    await asyncio.wait(crawling, timeout=60)
    upload, _ = await client.ask("POST", f"{root}/photos?role=target", photo(1))
    return {
        "statuses": statuses,
        "slowest answer": round(max(waits), 2),
        "still hanging": sum(not task.done() for task in crawling),
        "longest": round(max(lasted), 1),
        "upload afterwards": upload,
    }


async def garbage(client: Client, n: int) -> dict[str, Any]:
    """What is no HTTP, or wrong HTTP."""
    root = await client.session()
    host = f"Host: 127.0.0.1:{client.port}\r\nX-Transformatcher: 1\r\n"
    rng = random.Random(0)
    wrong = [
        b"\0" * 100,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(300),  # TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        f"GET / HTTP/1.1\r\n{host}X: {'y' * 200_000}\r\n\r\n".encode(),
        f"GET /{'a' * 100_000} HTTP/1.1\r\n{host}\r\n".encode(),
        f"FROB / HTTP/1.1\r\n{host}\r\n".encode(),
        f"POST {root}/points HTTP/1.1\r\n{host}Content-Length: -5\r\n\r\n".encode(),
        f"POST {root}/points HTTP/1.1\r\n{host}Content-Length: {'9' * 50}\r\n\r\n".encode(),
        f"POST {root}/points HTTP/1.1\r\n{host}Content-Length: ²\r\n\r\n".encode(),
        f"POST {root}/points HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\nzz\r\n".encode(),
        f"POST {root}/points HTTP/1.1\r\n{host}Origin: http://[\r\nContent-Length: 0\r\n\r\n".encode(),
        f"GET /static/%2e%2e/%2e%2e/server.py HTTP/1.1\r\n{host}\r\n".encode(),
        f"GET {root}/match?x=%00&y=%ff HTTP/1.1\r\n{host}\r\n".encode(),
        f"GET {root}/match?x=1e999&y=1 HTTP/1.1\r\n{host}\r\n".encode(),
        f"GET {root}/photos/%00%ff/image HTTP/1.1\r\n{host}\r\n".encode(),
        *(rng.randbytes(rng.randrange(1, 2000)) for _ in range(20)),
    ]
    bodies = [b"{", b"[" * 50_000, b'{"x": 1e999, "y": 1}', b'{"x": "a"}', b"\xff\xfe", b'{"x": 1, "y": {"z": []}}']
    calls = [client.send(wrong[i % len(wrong)]) for i in range(n)]
    calls += [client.ask("POST", f"{root}/points", body) for body in bodies]  # type: ignore[misc]
    calls += [client.ask("POST", f"{root}/coco", body) for body in (*bodies, b"[[]," * 400_000)]  # type: ignore[misc]
    calls += [client.ask("POST", f"{root}/photos?role=target", rng.randbytes(5000)) for _ in range(5)]  # type: ignore[misc]
    return {"statuses": await gathered(*calls)}


async def oversized(client: Client, n: int) -> dict[str, Any]:
    """Bodies that are too long, or say so."""
    root = await client.session()
    head = f"POST {root}/photos?role=target HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Transformatcher: 1\r\n"
    said = [client.send(f"{head}Content-Length: {length}\r\n\r\n".encode()) for length in (10**8, 10**10, 10**15)]
    large = bytes(25 * MB)
    sent = [client.ask("POST", f"{root}/photos?role=target", large) for _ in range(n // 20)]
    json_bodies = [client.ask("POST", f"{root}/points", b"[" + b"[]," * (5 * MB // 3)) for _ in range(n // 10)]
    coco = [client.ask("POST", f"{root}/coco", b"[" + b"[]," * (6 * MB)) for _ in range(n // 20)]
    return {"statuses": await gathered(*said, *sent, *json_bodies, *coco)}


async def bombs(client: Client, n: int) -> dict[str, Any]:
    """Small files that unfold to more than is taken, and some that unfold to just as much as is."""
    root = await client.session()
    huge, cut = bomb(9000, 7000), bomb(7000, 7000)[:9000]
    just = [bomb(7000, 7000), bomb(7000, 7000, colours=6), bomb(7000, 7000, bits=16, colours=0)]
    taken = [(await client.ask("POST", f"{root}/photos?role=source", data, wait=120))[0] for data in (*just, cut)]
    statuses = await gathered(*(client.ask("POST", f"{root}/photos?role=target", huge) for _ in range(n)))
    return {"statuses": statuses, "taken": taken, "kilobytes": len(huge) // 1000}


SCENES = (crowd, uploads, slow, garbage, oversized, bombs)


async def hammer(pid: int, port: int, n: int, rounds: int) -> dict[str, Any]:
    """Every scene, so many times; memory after each."""
    client, report = Client(port), {}
    await crowd(client, 20)  # what is loaded once is loaded now
    report["memory at first"] = memory_mb(pid)
    for number, scene in product(range(rounds), SCENES):
        name = scene.__name__ + " again" * number
        start = time.monotonic()
        report[name] = await scene(client, n)
        report[name] |= {"took": round(time.monotonic() - start, 1), "memory": memory_mb(pid)}
    report["memory at last"], report["memory at most"] = memory_mb(pid), memory_mb(pid, "VmHWM")
    report["alive"] = (await client.ask("GET", await client.session()))[0] == 200
    return report


if __name__ == "__main__":
    with serving(*sys.argv[2:]) as (pid, port):
        report = asyncio.run(hammer(pid, port, int(sys.argv[1]), 1 if "hasty" in sys.argv else 2))
        print(json.dumps(report, indent=1))

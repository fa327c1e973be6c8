"""Many, slow, malformed, oversized and malicious requests against a real studio. Run by test_load.py.

A process of its own, as pytest blocks the network. Prints a report as JSON.
"""

import argparse
import asyncio
import io
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HEADERS = {"X-Transformatcher": "1"}
CLOSED = 0  # in place of a status: the server closed the connection without a response
NO_RESPONSE = -1  # nor did it close the connection
MB = 1_000_000
UPLOAD = "/api/photos?name=photo.png"


@dataclass(frozen=True)
class Server:
    """A running server."""

    pid: int
    port: int
    stderr: Path
    connections: int  # limit of open connections
    pixels: int  # limit of a photo
    upload_grace_s: float

    def memory_mb(self, key: str = "VmRSS") -> float:
        """Resident memory in use now, or at its maximum so far (VmHWM)."""
        if key == "VmRSS":
            os.kill(self.pid, signal.SIGUSR1)  # small_studio.py then returns what is free
            time.sleep(0.3)
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(rf"{key}:\s+(\d+)", status)[1]) / 1000  # type: ignore[index]

    def wait_until_idle(self, seconds: float = 300) -> float:
        """Wait until it has little to do, at most some time → the share of one processor that it takes then."""
        end, share = time.monotonic() + seconds, 1.0
        while share > 0.2 and time.monotonic() < end:
            start, before = time.monotonic(), self._processor_s()
            time.sleep(2)
            share = (self._processor_s() - before) / (time.monotonic() - start)
        return share

    def _processor_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def tracebacks(self) -> int:
        """How many the server has printed so far."""
        return self.stderr.read_text().count("Traceback")


@contextmanager
def start_server(folder: Path, connections: int, pixels: int, upload_grace_s: float) -> Iterator[Server]:
    """Start small_studio.py on a temporary project in ``folder``; it must live until the end."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    limits = {"--connections": connections, "--pixels": pixels, "--upload-grace": upload_grace_s}
    options = [str(word) for option in limits.items() for word in option]
    (folder / "photos").mkdir()
    script, stderr = str(Path(__file__).with_name("small_studio.py")), folder / "stderr"
    command = [sys.executable, "-u", script, str(folder / "photos"), "--temporary", *options]
    with stderr.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=file, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://[^:]+:(\d+)", line):
                yield Server(process.pid, int(found[1]), stderr, connections, pixels, upload_grace_s)
                break
        assert process.poll() is None, "the server has stopped by itself"
    finally:
        process.terminate()
        process.wait(20)


async def read_response(reader: asyncio.StreamReader) -> bytes:
    """One response by its Content-Length, or what came before the connection was closed."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        return head + (await reader.readexactly(int(length[1])) if length else await reader.read(-1))
    except asyncio.IncompleteReadError as error:
        return error.partial


class Client:
    """Sends bytes, so that requests may be malformed."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.addresses = cycle(f"127.0.0.{last}" for last in range(2, 20))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection, each time from another address, as different people do."""
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(next(self.addresses), 0))

    async def send(self, data: bytes, *, wait: float = 60) -> tuple[int, bytes]:
        """Send bytes as they are → the response's status and body; CLOSED or NO_RESPONSE if there is none."""
        try:
            async with asyncio.timeout(wait):
                reader, writer = await self.connect()
                try:
                    writer.write(data)
                    with suppress(ConnectionError):  # closed while we were sending; there may be a response
                        await writer.drain()
                    response = await read_response(reader)
                finally:
                    writer.close()
        except TimeoutError:
            return NO_RESPONSE, b""
        except ConnectionError:
            return CLOSED, b""
        found = re.match(rb"HTTP/1.1 (\d+)", response)
        return (int(found[1]), response.partition(b"\r\n\r\n")[2]) if found else (CLOSED, response)

    async def request(
        self, method: str, path: str, body: bytes = b"", *, wait: float = 60, **headers: str
    ) -> tuple[int, Any]:
        """Send a well-formed request → status and JSON (or bytes)."""
        content_type = {"Content-Type": "application/json"} if body[:1] in (b"{", b"[") else {}
        all_headers = {"Host": f"127.0.0.1:{self.port}", **HEADERS, **content_type, **headers}
        if method != "GET":
            all_headers["Content-Length"] = str(len(body))
        head = "".join([f"{method} {path} HTTP/1.1\r\n", *(f"{k}: {v}\r\n" for k, v in all_headers.items()), "\r\n"])
        status, content = await self.send(head.encode() + body, wait=wait)
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content

    async def upload(self, data: bytes) -> tuple[int, Any]:
        """Upload a photo → status and JSON."""
        return await self.request("POST", UPLOAD, data, wait=300)


def photo(seed: int, side: int = 64) -> bytes:
    """A PNG of noise."""
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def bomb(width: int, height: int, *, bits: int = 8, colours: int = 2) -> bytes:
    """A black PNG (colours 0: grey, 2: RGB, 6: RGBA) of a few kilobytes that decompresses to width × height pixels."""
    packer = zlib.compressobj(9)
    row = bytes(1 + {0: 1, 2: 3, 6: 4}[colours] * bits // 8 * width)
    rows = b"".join([*(packer.compress(row) for _ in range(height)), packer.flush()])
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0), b"IDAT" + rows, b"IEND")
    sealed = (struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(sealed)


async def count_statuses(*requests: Any) -> dict[str, int]:
    """How often each status came, of requests sent at once."""
    return {str(k): v for k, v in sorted(Counter(status for status, _ in await asyncio.gather(*requests)).items())}


def upload_head(length: int) -> bytes:
    """The head of an upload, without its body."""
    return (
        f"POST {UPLOAD} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Transformatcher: 1\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


# ---------------------------------------------------------------- scenes: (client, server, number) → report


async def light(client: Client, _: Server, n: int) -> dict[str, Any]:
    """Light requests, all at once."""
    _, answer = await client.upload(photo(0))
    root = f"/api/photos/{answer['photo']['id']}"
    await client.request("GET", f"{root}/thumbnail")
    paths = ("/", "/static/app.js", "/api/project", root, f"{root}/thumbnail", "/nothing")
    return {"statuses": await count_statuses(*(client.request("GET", paths[i % len(paths)]) for i in range(n)))}


async def uploads(client: Client, _: Server, n: int) -> dict[str, Any]:
    """Photos, all at once: more than the queue holds."""
    return {"statuses": await count_statuses(*(client.upload(photo(i)) for i in range(n)))}


async def leaving(client: Client, _: Server, n: int) -> dict[str, Any]:
    """Clients that close the connection in the middle of an upload, or while they wait for a change."""

    async def leave(request: bytes) -> None:
        _, writer = await client.connect()
        writer.write(request)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()

    waiting = b"GET /api/changes?since=1000000 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    await asyncio.gather(*(leave((upload_head(100_000) + b"x" * 1000, waiting)[i % 2]) for i in range(n)))
    await asyncio.sleep(0.2)
    return {"upload afterwards": (await client.upload(photo(1)))[0]}


async def slow(client: Client, server: Server, n: int) -> dict[str, Any]:
    """Clients that send a byte now and then, or never read, while others want to work."""
    _, answer = await client.upload(photo(0, side=900))
    end = time.monotonic() + server.upload_grace_s + 1.5

    async def send_slowly(first: bytes) -> bytes:
        """Returns what the server sent."""
        received = b""
        with suppress(ConnectionError):
            reader, writer = await client.connect()
            try:
                writer.write(first)
                reading = asyncio.ensure_future(reader.read(100))
                while time.monotonic() < end and not reading.done():
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.wait([reading], timeout=0.5)
                received = reading.result() if reading.done() else b""
            finally:
                reading.cancel()
                writer.close()
        return received

    async def never_read() -> None:
        _, writer = await client.connect()
        path = f"/api/photos/{answer['photo']['id']}/image"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() * 40)  # more than the buffers hold
        await asyncio.sleep(end - time.monotonic())
        writer.close()

    heads = [send_slowly(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ") for _ in range(n // 3)]
    bodies = [send_slowly(upload_head(MB)) for _ in range(n // 3)]
    idle = [never_read() for _ in range(5)]
    working = asyncio.gather(*(asyncio.create_task(task) for task in (*bodies, *heads, *idle)))  # type: ignore[arg-type]
    await asyncio.sleep(0.5)  # all are connected now
    served, waits = Counter[str](), []
    while time.monotonic() < end:
        start = time.monotonic()
        status, _ = await client.request("GET", "/api/project", wait=20)
        served[str(status)] += 1
        waits.append(time.monotonic() - start)
        await asyncio.sleep(0.1)
    responses = (await working)[: len(bodies)]
    timed_out = Counter(response[9:12].decode() for response in responses)
    upload, _ = await client.upload(photo(1))
    return {
        "statuses": dict(served),
        "slowest response": round(max(waits), 2),
        "slow uploads": dict(timed_out),
        "upload afterwards": upload,
    }


async def connections(client: Client, server: Server, _: int) -> dict[str, Any]:
    """More connections than the limit."""
    opened = await asyncio.gather(*(client.connect() for _ in range(server.connections)))
    full, _ = await client.request("GET", "/")
    for _, writer in opened:
        writer.close()
    await asyncio.sleep(0.2)
    return {"full": full, "afterwards": (await client.request("GET", "/"))[0]}


async def malformed(client: Client, _: Server, n: int) -> dict[str, Any]:
    """What is not HTTP, not valid HTTP, or not what a route expects."""
    root = "/api/categories"
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
        f"POST {root} HTTP/1.1\r\n{host}Content-Length: -5\r\n\r\n".encode(),
        f"POST {root} HTTP/1.1\r\n{host}Content-Length: {'9' * 50}\r\n\r\n".encode(),
        f"POST {root} HTTP/1.1\r\n{host}Content-Length: ²\r\n\r\n".encode(),
        f"POST {root} HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\nzz\r\n".encode(),
        f"POST {root} HTTP/1.1\r\n{host}Origin: http://[\r\nContent-Length: 0\r\n\r\n".encode(),
        f"GET /static/%2e%2e/%2e%2e/server.py HTTP/1.1\r\n{host}\r\n".encode(),
        f"GET /api/photos?since=%00%ff HTTP/1.1\r\n{host}\r\n".encode(),
        f"GET /api/changes?since=1e999 HTTP/1.1\r\n{host}\r\n".encode(),
        f"GET /api/export?format=%00&predictions=%ff HTTP/1.1\r\n{host}\r\n".encode(),
        f"GET /api/photos/%00%ff/image HTTP/1.1\r\n{host}\r\n".encode(),
        f"GET /api/photos/{10**30}/image HTTP/1.1\r\n{host}\r\n".encode(),
    ]
    noise = [rng.randbytes(rng.randrange(1, 2000)) for _ in range(20)]
    bodies = [b"{", b"[" * 50_000, b'{"name": 1e999, "keypoints": []}', b'{"name": "a"}', b"\xff\xfe",
              b'{"name": "a", "keypoints": {"z": []}}']  # fmt: skip
    requests = [client.send(wrong[i % len(wrong)]) for i in range(n)]
    requests += [client.request("POST", root, body) for body in bodies]
    requests += [client.request("POST", "/api/import", body) for body in (*bodies, b"[[]," * 400_000)]
    requests += [client.upload(rng.randbytes(5000)) for _ in range(5)]
    # the server takes some noise for the beginning of a request, and waits for the rest
    waiting = await count_statuses(*(client.send(data, wait=1) for data in noise))
    return {"statuses": await count_statuses(*requests), "noise": waiting}


async def oversized(client: Client, _: Server, n: int) -> dict[str, Any]:
    """Bodies that are too long, or claim to be."""
    claims = [client.send(upload_head(length)) for length in (10**8, 10**10, 10**15)]
    large = bytes(25 * MB)
    photos = [client.upload(large) for _ in range(n // 20)]
    categories = [client.request("POST", "/api/categories", b"[" + b"[]," * (5 * MB // 3)) for _ in range(n // 10)]
    coco = [client.request("POST", "/api/import", b"[" + b"[]," * (7 * MB)) for _ in range(n // 20)]
    return {"statuses": await count_statuses(*claims, *photos, *categories, *coco)}


async def imports(client: Client, _: Server, n: int) -> dict[str, Any]:
    """COCO files as large as they may be, that hold nothing of use."""
    body = b'{"images": [' + b",".join([b'{"id": 1}'] * (390 * MB // 1000)) + b"]}"
    return {"statuses": await count_statuses(*(client.request("POST", "/api/import", body) for _ in range(n // 10)))}


async def bombs(client: Client, server: Server, n: int) -> dict[str, Any]:
    """Small files that decompress to more pixels than the limit; and many that reach it, beside marked photos."""
    side = int(server.pixels**0.5)
    too_large, truncated = bomb(side * 9 // 7, side), bomb(side, side)[: side // 2]
    allowed = [bomb(side, side), bomb(side, side, colours=6), bomb(side, side, bits=16, colours=0)]
    await client.request("POST", "/api/examples")  # now the others are predicted
    accepted = [(await client.upload(data))[0] for data in (*allowed, truncated)]
    refused = await count_statuses(*(client.upload(too_large) for _ in range(n)))
    at_once = await count_statuses(*(client.upload(allowed[i % len(allowed)]) for i in range(n)))
    return {"statuses": refused, "accepted": accepted, "at once": at_once, "kilobytes": len(too_large) // 1000}


async def pictures(client: Client, server: Server, n: int) -> dict[str, Any]:
    """The pictures of large photos, all at once, while others want to work."""
    _, answer = await client.request("GET", "/api/photos")
    limit = int(server.pixels**0.5) ** 2
    large = [photo["id"] for photo in answer["photos"] if (photo["width"] or 0) * (photo["height"] or 0) == limit]
    kinds = ("image", "thumbnail")
    making = asyncio.gather(
        *(client.request("GET", f"/api/photos/{large[i % len(large)]}/{kinds[i % 2]}", wait=300) for i in range(n))
    )
    waits = []
    while not making.done():
        start = time.monotonic()
        status, _ = await client.request("GET", "/api/project", wait=60)
        assert status == 200
        waits.append(time.monotonic() - start)
        await asyncio.sleep(0.1)
    statuses = Counter(str(status) for status, _ in await making)
    return {"statuses": dict(statuses), "slowest response": round(max(waits), 2)}


SCENES = (light, uploads, leaving, slow, connections, malformed, oversized, imports, bombs, pictures)


async def run_scenes(server: Server, n: int, rounds: int) -> dict[str, Any]:
    """Every scene, ``rounds`` times, with the server's memory after each."""
    client, report = Client(server.port), {}
    await light(client, server, 20)  # what the server loads on demand is loaded now
    server.wait_until_idle()
    report["memory before"] = server.memory_mb()
    for number, scene in product(range(rounds), SCENES):
        name = scene.__name__ + " again" * number
        start = time.monotonic()
        outcome = await scene(client, server, n)
        took = round(time.monotonic() - start, 1)
        if scene is pictures or (scene is bombs and number == rounds - 1):
            report["processor when idle"] = server.wait_until_idle()
        memory = {"memory": server.memory_mb(), "peak": server.memory_mb("VmHWM")}
        report[name] = {**outcome, "took": took, **memory, "tracebacks": server.tracebacks()}
    report["memory of a round more"] = report[name]["memory"] - report[scene.__name__]["memory"]
    report["memory after"], report["memory peak"] = server.memory_mb(), server.memory_mb("VmHWM")
    report["alive"] = (await client.request("GET", "/api/project"))[0] == 200
    return report


def main() -> None:
    """Start a server, run all scenes, and stop it while a client is uploading."""
    parser = argparse.ArgumentParser()
    parser.add_argument("number", type=int, help="of clients at once")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--pixels", type=int, default=50_000_000)
    parser.add_argument("--upload-grace", type=float, default=5.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, socket.socket() as uploading:
        with start_server(Path(folder), args.connections, args.pixels, args.upload_grace) as server:
            report = asyncio.run(run_scenes(server, args.number, args.rounds))
            uploading.connect(("127.0.0.1", server.port))
            uploading.sendall(upload_head(10 * MB) + bytes(8 * MB))
            start = time.monotonic()
        report["seconds to stop"] = round(time.monotonic() - start, 1)
        report["tracebacks"] = server.tracebacks()
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

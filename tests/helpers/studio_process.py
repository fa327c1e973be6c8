"""A command → a studio that runs in a process of its own, and what it says of its project. Not for pytest's process."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0  # for what happens in the background, on a slow machine

Point = tuple[str, str | None, int, float | None, float | None]  # name, source, visibility, x, y


class Server:
    """A command that serves the studio, and a client of it beside the browser."""

    def __init__(self, command: list[str]) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen([sys.executable, *command], env=environment, stdout=subprocess.PIPE, text=True)
        self.output = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if found := re.search(r"http://\S+:(\d+)/", line):
                self.address, self.port = found[0], int(found[1])
                return
        raise AssertionError(f"the server did not start: {self.output}")

    def get(self, path: str) -> Any:
        """The JSON of a request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", f"/api{path}", headers={"X-Transformatcher": "1"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def state_of_prediction(self) -> str:
        """What the background work is doing."""
        return str(self.get("/project")["prediction"]["state"])

    def points(self) -> dict[str, tuple[str, list[Point]]]:
        """Each photo by name: its state, and the points of its objects."""
        names = {k["id"]: k["name"] for category in self.get("/project")["categories"] for k in category["keypoints"]}
        found: dict[str, tuple[str, list[Point]]] = {}
        for photo in self.get("/photos")["photos"]:
            objects = self.get(f"/photos/{photo['id']}")["instances"]
            points: list[Point] = [
                (names[p["keypoint_id"]], p["source"], p["visibility"], p["x"], p["y"])
                for item in objects
                for p in item["points"]
            ]
            found[photo["path"]] = photo["state"], points
        return found

    def marks(self) -> dict[str, tuple[str, list[Point]]]:
        """The same without predictions, which change with each new reference."""
        marked = ("person", "accepted", "import")
        return {
            path: (state if state != "unmarked" else "predicted", [point for point in points if point[1] in marked])
            for path, (state, points) in self.points().items()
        }

    def kill(self) -> None:
        """``kill -9``."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.close()

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        self.close()

    def close(self) -> None:
        """Stop the server if it runs."""
        self.process.terminate()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


def start_small(folder: Path, port: int = 0) -> Server:
    """The studio on a folder, with a small model."""
    return Server([str(Path(__file__).with_name("small_studio.py")), str(folder), "--port", str(port)])


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something outside the browser."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"in vain: {what}")
        time.sleep(0.05)

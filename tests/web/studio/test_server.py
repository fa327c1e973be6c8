"""The application as a whole: token, errors, and a server that is interrupted, killed, and started again."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import studio_client
from helpers.studio_client import BASE_URL, HEADERS, FakeWorker, StudioClient, open_project, testclient

from transformatcher.annotation.project import Project
from transformatcher.inference.matcher import Matcher
from transformatcher.web.studio import server
from transformatcher.web.studio.server import make_studio

SCRIPT = Path(studio_client.__file__).with_name("small_studio.py")


def test_a_token(folder: Path):
    with open_project(folder) as project:
        app = make_studio(project, FakeWorker(), host="0.0.0.0", token="secret")
        with testclient.TestClient(app, base_url=BASE_URL, headers=HEADERS) as client:
            assert client.get("/api/health").status_code == 200
            refused = client.get("/api/project")
            assert refused.status_code == 401
            assert "token" in refused.json()["error"]
            assert client.get("/?token=wrong").status_code == 401
            client.get("/?token=secret")
            assert client.get("/api/project").status_code == 200


def test_a_full_disk(studio: StudioClient):
    cat, photo = studio.add_category(), studio.photo_ids()["0.jpg"]
    instance = studio.add_object(photo, cat)
    keypoints = [keypoint["id"] for keypoint in cat["keypoints"]]
    studio.mark(instance, keypoints[0], 1, 2)
    (pages,) = studio.project.database.row("PRAGMA page_count") or ()
    studio.project.database.row(f"PRAGMA max_page_count = {pages}")  # as if no more fitted on the disk
    name = {"name": "dog", "keypoints": ["x" * 70 + str(n) for n in range(150)]}
    message = studio.error("POST", "/categories", 507, name)
    assert message.startswith(f"{studio.project.file}: the project cannot be written (database or disk is full)")
    assert "the last state is kept" in message
    detail = studio.get(f"/photos/{photo}")  # all that was there still is
    assert [point["source"] for point in detail["instances"][0]["points"]] == ["person", None, None]
    studio.project.database.row(f"PRAGMA max_page_count = {pages + 1000}")
    assert len(studio.post("/categories", name, 201)["categories"]) == 2


def test_a_moved_point_is_stored_at_once(studio: StudioClient, folder: Path):
    cat, photo = studio.add_category(), studio.photo_ids()["0.jpg"]
    instance, keypoint = studio.add_object(photo, cat), cat["keypoints"][0]["id"]
    times = []
    for n in range(20):
        start = time.perf_counter()
        studio.mark(instance, keypoint, n, 2)
        times.append(time.perf_counter() - start)
        with Project(folder, read_only=True) as beside:
            assert beside.instance(instance).marks[keypoint].xy == (n, 2)
    assert sorted(times)[10] < 0.1


# ---------------------------------------------------------------- a process of its own, as pytest blocks the network


class Process:
    """A running studio."""

    def __init__(self, process: subprocess.Popen[str], address: str, output: list[str]) -> None:
        self.process, self.address, self.output = process, address, output
        self.port = int(re.search(r":(\d+)/", address)[1])  # type: ignore[index]

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Status and JSON of a request, by another process."""
        code = (
            "import http.client, json, sys\n"
            "port, method, path, body, headers = json.loads(sys.argv[1])\n"
            "c = http.client.HTTPConnection('127.0.0.1', port, timeout=30)\n"
            "c.request(method, path, None if body is None else json.dumps(body), headers)\n"
            "r = c.getresponse(); print(json.dumps([r.status, r.read().decode('utf-8', 'replace'), "
            "r.getheader('Set-Cookie')]))"
        )
        headers = {**HEADERS, "Content-Type": "application/json"} | (headers or {})
        given = json.dumps([self.port, method, path, body, headers])
        result = subprocess.run([sys.executable, "-c", code, given], capture_output=True, text=True, check=True)
        status, text, self.cookie = json.loads(result.stdout)
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text


@contextmanager
def running(folder: Path, *options: str) -> Iterator[Process]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-u", str(SCRIPT), str(folder), *options]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            if found := re.search(r"http://\S+", line):
                yield Process(process, found[0], output)
                break
        else:
            pytest.fail("".join(output))
    finally:
        process.kill()
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
class TestProcess:
    def test_a_mark_survives_kill_9(self, folder: Path):
        with running(folder) as studio:
            _, state = studio.ask("POST", "/api/categories", {"name": "cat", "keypoints": ["nose", "tail"]})
            nose = state["categories"][0]["keypoints"][0]["id"]
            _, photos = studio.ask("GET", "/api/photos")
            photo = photos["photos"][0]["id"]
            body = {"category_id": state["categories"][0]["id"]}
            _, detail = studio.ask("POST", f"/api/photos/{photo}/instances", body)
            path = f"/api/instances/{detail['instance']}/points/{nose}"
            status, _ = studio.ask("PUT", path, {"visibility": 2, "x": 33.5, "y": 44})
            assert status == 200
            second = subprocess.run(
                [sys.executable, str(SCRIPT), str(folder)], capture_output=True, text=True, check=False
            )
            assert "another process has this project open; close that first" in second.stderr
            os.kill(studio.process.pid, signal.SIGKILL)
            studio.process.wait(20)
        with running(folder) as studio:
            _, detail = studio.ask("GET", f"/api/photos/{photo}")
            point = detail["instances"][0]["points"][0]
            assert (point["source"], point["x"], point["y"]) == ("person", 33.5, 44)
            _, undone = studio.ask("POST", "/api/undo")
            assert (undone["name"], undone["photos"]) == ("nose: move", [photo])

    def test_ctrl_c_while_a_window_waits(self, folder: Path):
        with running(folder) as studio:
            time.sleep(1)  # until all photos are described
            answers: list[Any] = []

            def poll() -> None:
                _, state = studio.ask("GET", "/api/project")
                answers.append(studio.ask("GET", f"/api/changes?since={state['revision']}"))

            window = threading.Thread(target=poll)
            window.start()
            time.sleep(1.5)
            start = time.monotonic()
            os.kill(studio.process.pid, signal.SIGINT)
            window.join(10)
            studio.process.wait(20)
            assert time.monotonic() - start < 8
            assert studio.process.returncode == 0
            assert answers[0][0] == 200
            assert studio.process.stdout is not None
            assert "stopped" in studio.process.stdout.read()

    def test_other_machines_need_the_token_that_is_printed(self, folder: Path):
        with running(folder, "--host", "0.0.0.0") as studio:
            token = re.search(r"\?token=([\w-]{30,})", studio.address)
            assert token is not None
            assert "other machines on the network can use this server if they know the token" in "".join(studio.output)
            assert studio.ask("GET", "/api/project")[0] == 401
            studio.ask("GET", f"/?token={token[1]}")
            cookie = studio.cookie.partition(";")[0]
            assert studio.ask("GET", "/api/project", headers={"Cookie": cookie})[0] == 200


def test_a_port_that_cannot_be_used_is_told_before_anything_else(
    folder: Path, matcher: Matcher, monkeypatch: pytest.MonkeyPatch
):
    from transformatcher.errors import InputError

    monkeypatch.setattr(server, "PredictionWorker", None)
    with open_project(folder) as project, pytest.raises(InputError, match="--port -1"):
        server.serve_studio(project, matcher, port=-1)

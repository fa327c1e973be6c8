"""The studio under load, over real connections: it stays up, answers as it should, and its memory stays bounded."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="no /proc to read the memory from")

BYTES_PER_PIXEL = 80  # of the largest photo: some are decoded at once for the page, some for the predictions
IMPORT_MB = 200  # while an annotation file is parsed
PREDICT_MB = 300  # while photos are predicted, however small
GROWTH_MB = 150  # by everything else


def run_load(number: int, *options: str) -> dict[str, Any]:
    client = Path(__file__).parents[1] / "helpers" / "load_client.py"
    command = [sys.executable, str(client), str(number), *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    report = json.loads(result.stdout)
    print(json.dumps(report))  # pytest -rP shows it
    return dict(report)


def check_scenes(report: dict[str, Any], n: int, again: str = "") -> None:
    scenes = (
        "light",
        "uploads",
        "leaving",
        "slow",
        "connections",
        "malformed",
        "oversized",
        "imports",
        "bombs",
        "pictures",
    )
    light, uploads, leaving, slow, connections, malformed, oversized, imports, bombs, pictures = (
        report[name + again] for name in scenes
    )
    assert light["statuses"] == {"200": n - n // 6, "404": n // 6}
    assert set(uploads["statuses"]) <= {"201", "503"}  # accepted, queue full
    assert uploads["statuses"]["201"] >= 5
    assert leaving["upload afterwards"] == 201

    assert set(slow["statuses"]) == {"200"}  # others can work
    assert slow["slowest response"] < 3
    assert slow["slow uploads"] == {"408": 9, "503": n // 3 - 9}  # nine have a slot in the queue, until the deadline
    assert slow["upload afterwards"] == 201
    assert connections == connections | {"full": 503, "afterwards": 200}

    assert not [s for s in malformed["statuses"] if s not in ("0", "503") and not s.startswith("4")]
    assert set(malformed["noise"]) <= {"-1", "0", "400"}
    assert set(oversized["statuses"]) == {"413"}
    assert set(imports["statuses"]) <= {"422", "503"}
    assert bombs["accepted"] == [201, 201, 201, 422]
    assert set(bombs["statuses"]) <= {"413", "503"}
    assert bombs["statuses"]["413"] >= 5
    assert set(bombs["at once"]) <= {"201", "503"}
    assert set(pictures["statuses"]) <= {"200", "503"}
    assert pictures["statuses"]["200"] >= 5
    assert pictures["slowest response"] < 10


def check_server(report: dict[str, Any], million_pixels: int) -> None:
    assert report["alive"]
    assert report["oversized"]["peak"] - report["memory before"] < GROWTH_MB
    assert report["imports"]["peak"] - report["memory before"] < GROWTH_MB + IMPORT_MB
    assert report["memory after"] - report["memory before"] < GROWTH_MB
    assert report["memory peak"] - report["memory before"] < max(
        GROWTH_MB + PREDICT_MB, BYTES_PER_PIXEL * million_pixels
    )
    assert report["processor when idle"] < 0.2
    assert report["seconds to stop"] < 10  # although a client is uploading
    assert report["connections"]["tracebacks"] == 0  # up to this scene, so none for clients that left
    assert report["tracebacks"] == report["malformed"]["tracebacks"]  # uvicorn prints some for malformed HTTP


def test_all_scenes():
    """Thirty clients, against a server with lower limits, which are reached sooner."""
    report = run_load(30, "--upload-grace", "0.7", "--connections", "100", "--pixels", "5000000")
    check_scenes(report, 30)
    check_server(report, 5)


@pytest.mark.slow
def test_several_hundred_clients_twice():
    """Three hundred, against the limits that users have; the second round shows what the first has left in memory."""
    report = run_load(300, "--rounds", "2")
    check_scenes(report, 300)
    check_scenes(report, 300, " again")
    assert report["memory of a round more"] < 60  # no leak
    report["tracebacks"] += report["malformed"]["tracebacks"] - report["malformed again"]["tracebacks"]
    check_server(report, 50)

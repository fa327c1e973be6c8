"""The server under load, over real connections: it stays up, answers as it should, and its memory stays bounded."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="no /proc, which tells memory")

GROWTH_MB = 150  # that the server may have more at the end than after its first requests
PEAK_MB = 800  # more than at first, at any time: a photo of fifty million pixels takes 16 bytes for each, for a moment


def hammered(*words: str) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).parents[1] / "helpers" / "load_client.py"), *words]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    report = json.loads(result.stdout)
    print(json.dumps(report))  # for -rP
    return dict(report)


def check(report: dict[str, Any], n: int, again: str = "") -> None:
    crowd, uploads, slow, garbage, oversized, bombs = (
        report[name + again] for name in ("crowd", "uploads", "slow", "garbage", "oversized", "bombs")
    )
    assert crowd["statuses"] == {"200": n - n // 6, "404": n // 6}
    assert set(uploads["statuses"]) <= {"201", "422", "503"}  # taken, no room, busy
    assert uploads["statuses"]["201"] >= 5

    assert set(slow["statuses"]) == {"200"}  # whoever wants to work can
    assert slow["slowest answer"] < 3
    assert slow["still hanging"] == 0
    assert slow["upload afterwards"] == 201

    assert not [status for status in garbage["statuses"] if status not in ("0", "503") and not status.startswith("4")]
    assert set(oversized["statuses"]) == {"413"}
    assert bombs["taken"] == [201, 201, 201, 422]
    assert set(bombs["statuses"]) <= {"413", "503"}
    assert bombs["statuses"]["413"] >= 5


def check_memory(report: dict[str, Any]) -> None:
    assert report["alive"]
    assert report["memory at last"] - report["memory at first"] < GROWTH_MB
    assert report["memory at most"] - report["memory at first"] < PEAK_MB


def test_a_crowd_slow_clients_garbage_and_bombs():
    """Sixty of each, against a server that loses patience sooner."""
    report = hammered("60", "hasty")
    check(report, 60)
    check_memory(report)


@pytest.mark.slow
def test_several_hundred_of_each_twice():
    """Three hundred, against the server as it is; the second round finds the memory that the first left."""
    report = hammered("300")
    check(report, 300)
    check(report, 300, " again")
    check_memory(report)
    assert report["memory at last"] - report["bombs"]["memory"] < 50

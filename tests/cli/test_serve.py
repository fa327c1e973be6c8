"""The command that opens the studio on a temporary project."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.command import run

from transformatcher.annotation.project import Project
from transformatcher.inference.matcher import Matcher

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")

from transformatcher.web.uploads import Limits


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.delitem(sys.modules, "transformatcher.web.studio.server", raising=False)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert run("serve", "--no-browser") == 2
    assert "pip install fastapi (part of the extra 'serve')" in capsys.readouterr().err


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, OSError("port 9 cannot be used")])
def test_an_empty_project_that_is_gone_at_the_end(
    error: Any,
    monkeypatch: pytest.MonkeyPatch,
    matcher: Matcher,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    calls: list[Any] = []

    def serve(project: Project, *args: Any, **more: Any) -> None:
        assert project.photos() == []
        assert project.folder.parent.parent == tmp_path
        (project.folder / "photo.jpg").write_bytes(b"uploaded")
        calls.append((args, more))
        if error is not None:
            raise error

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("transformatcher.cli.serve.load_matcher", lambda _: (matcher, "a test"))
    monkeypatch.setattr("transformatcher.web.studio.server.serve_studio", serve)
    options = ["--port", 9, "--host", "::1", "--max-upload-mb", 3, "--max-pixels", 4, "--no-browser"]
    assert run("serve", *options) == {None: 0, KeyboardInterrupt: 130}.get(error, 2)
    limits = Limits(upload_bytes=3_000_000, pixels=4)
    more = {"browser": False, "temporary": True, "limits": limits, "cache_bytes": 500_000_000}
    assert calls == [((matcher, "::1", 9), more)]
    assert list(tmp_path.iterdir()) == []
    assert "matching with a test" in capsys.readouterr().out


def test_a_port_out_of_range(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        run("serve", "--port", "99999", "--no-browser")
    assert caught.value.code == 2
    assert "'99999' is not a whole number from 0 to 65535" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_terminated_in_the_middle(tmp_path: Path):
    """With the real command, as pytest blocks the network: what it says, and that nothing is left behind."""
    command = [sys.executable, "-m", "transformatcher", "serve", "--port", "0", "--no-browser", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "http" in line)
        assert "photos and marks are gone" in line
        assert "transformatcher annotate FOLDER keeps them" in line
        code = (
            "import json, sys, urllib.request as r\n"
            "request = r.Request(sys.argv[1] + 'api/examples', b'', {'X-Transformatcher': '1'})\n"
            "print(json.dumps(json.load(r.urlopen(request))['counts']))"
        )
        address = re.search(r"http://\S+", line)[0]  # type: ignore[index]
        asked = subprocess.run([sys.executable, "-c", code, address], capture_output=True, text=True, check=True)
        assert json.loads(asked.stdout)["marked"] == 1
        assert len(list(tmp_path.glob("transformatcher-*/photos/cat_*.jpg"))) == 3
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "stopped\n"
        assert process.wait(20) == 0
        assert list(tmp_path.glob("transformatcher-*")) == []
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()

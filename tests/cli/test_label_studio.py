"""The command that Label Studio connects to, up to a real server."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import write_image
from helpers.command import run

from transformatcher.inference.calibration import Calibration, Calibrations
from transformatcher.inference.matcher import Matcher

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")

CLIENT = """
import json, sys, urllib.request
body = json.dumps({"project": "1.17", "schema": sys.argv[2]}).encode()
request = urllib.request.Request(sys.argv[1] + "setup", body, {"Content-Type": "application/json"})
print(urllib.request.urlopen(request).read().decode())
"""
XML = """<View><Image name="i" value="$image"/>
<KeyPointLabels name="k" toName="i"><Label value="a"/></KeyPointLabels></View>"""


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, matcher: Matcher) -> list[tuple[Any, ...]]:
    """What the command would serve, with a small matcher."""
    calls: list[tuple[Any, ...]] = []
    calibrated = Matcher(matcher.model, matcher.config, "cpu", Calibrations(Calibration(1.0, 0.5, -0.5)))
    monkeypatch.setattr("transformatcher.cli.label_studio.load_matcher", lambda _: (calibrated, "a test"))
    monkeypatch.setattr("transformatcher.web.label_studio.serve_label_studio", lambda *args: calls.append(args))
    return calls


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.delitem(sys.modules, "transformatcher.web.label_studio", raising=False)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert run("label-studio", "--images-root", tmp_path) == 2
    assert "pip install fastapi (part of the extra 'serve')" in capsys.readouterr().err


def test_a_file_of_references(coco_root: Path, tmp_path: Path, served: list[Any], capsys: pytest.CaptureFixture[str]):
    (tmp_path / "password.txt").write_text("anna:a:b\n")
    options = ["--category", "cat", "--threshold", 0.25, "--references", "all", "--port", 0, "--host", "0.0.0.0"]
    more = ["--allow-host", "backend", "--basic-auth", tmp_path / "password.txt", "--uploads", tmp_path]
    images = ["--images-root", coco_root / "images"]
    assert run("label-studio", coco_root / "annotations.json", *images, *options, *more) == 0
    assert capsys.readouterr().out == "matching with a test, references: 3\n"
    ((backend, host, port, names, credentials),) = served
    assert {name: len(group) for name, group in backend.references.items()} == {"cat": 3}
    assert (backend.threshold, backend.most_references) == (0.25, None)
    assert (backend.folders.root, backend.folders.uploads) == (coco_root / "images", tmp_path)
    assert (host, port, names, credentials) == ("0.0.0.0", 0, ["backend"], "anna:a:b")


def test_photos_of_references_beside_their_file(coco_root: Path, tmp_path: Path, served: list[Any]):
    write_image(tmp_path / "tasks" / "other.jpg")
    assert run("label-studio", coco_root / "annotations.json", "--images-root", tmp_path / "tasks") == 0
    photos = {item.image for group in served[0][0].references.values() for item in group}
    assert {path.parent for path in photos} == {coco_root / "images"}
    assert served[0][0].threshold == 0.5


def test_no_file(tmp_path: Path, served: list[Any], capsys: pytest.CaptureFixture[str]):
    assert run("label-studio", "--uploads", tmp_path) == 0
    assert served[0][0].references == {}
    assert capsys.readouterr().out == "matching with a test\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name the folder of the images by --images-root or --uploads"),
        (["--images-root", "nowhere"], "--images-root nowhere: no such folder"),
        (["--uploads", "nowhere"], "--uploads nowhere: no such folder"),
        (["--images-root", ".", "--category", "cat"], "--category goes with REFERENCES.json"),
        (["gone.json", "--images-root", "."], "gone.json: no such file"),
        (["--images-root", ".", "--basic-auth", "gone.txt"], "--basic-auth gone.txt: no such file"),
        (["--images-root", ".", "--basic-auth", "empty.txt"], "empty.txt: expected one line, USER:PASSWORD"),
        (["--images-root", ".", "--basic-auth", "two.txt"], "two.txt: expected one line, USER:PASSWORD"),
        (["--images-root", ".", "--basic-auth", "binary.txt"], "binary.txt: not text in UTF-8"),
    ],
)
@pytest.mark.usefixtures("served")
def test_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("anna:")
    Path("two.txt").write_text("anna:x\nbert:y")
    Path("binary.txt").write_bytes(b"\xff\xfe")
    assert run("label-studio", *options) == 2
    assert message in capsys.readouterr().err


def test_a_server_that_answers(coco_root: Path, raw: list[str]):
    """Sockets are blocked here, so the client is a process of its own, too."""
    command = [sys.executable, "-m", "transformatcher", "label-studio", str(coco_root / "annotations.json"),
               "--images-root", str(coco_root / "images"), "--port", "0", *raw]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as server:
        try:
            assert server.stdout is not None
            lines = [server.stdout.readline() for _ in range(2)]
            address = lines[1].partition("connect to ")[2].split()[0]
            asked = subprocess.run(
                [sys.executable, "-c", CLIENT, address, XML], capture_output=True, text=True, check=True
            )
            assert "4 references" in json.loads(asked.stdout)["model_version"]
        finally:
            server.terminate()
            for _ in range(100):
                if server.poll() is not None:
                    break
                time.sleep(0.1)
            else:
                server.kill()

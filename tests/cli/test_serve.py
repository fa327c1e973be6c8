"""The command that serves the page."""

import sys

import pytest

from transformatcher.cli import main as cli
from transformatcher.inference.matcher import Matcher

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")

from transformatcher.web.session import Limits


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.delitem(sys.modules, "transformatcher.web.server", raising=False)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert cli.main(["serve", "--no-browser"]) == 2
    assert "pip install fastapi (part of the extra 'serve')" in capsys.readouterr().err


def test_options(monkeypatch: pytest.MonkeyPatch, matcher: Matcher):
    calls = []
    monkeypatch.setattr("transformatcher.cli.serve.load_matcher", lambda _: (matcher, "a test"))
    monkeypatch.setattr("transformatcher.web.server.serve", lambda *args, **more: calls.append((args, more)))
    options = ["--port", "9", "--max-upload-mb", "3", "--max-pixels", "4", "--max-sessions", "5", "--no-browser"]
    assert cli.main(["serve", *options]) == 0
    limits = Limits(upload_bytes=3_000_000, pixels=4, sessions=5)
    assert calls == [((matcher, "127.0.0.1", 9, limits), {"browser": False})]


def test_a_port_out_of_range(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        cli.main(["serve", "--port", "99999", "--no-browser"])
    assert caught.value.code == 2
    assert "'99999' is not a whole number from 0 to 65535" in capsys.readouterr().err

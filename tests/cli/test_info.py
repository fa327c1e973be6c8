"""``info``: what computes here."""

import json
import platform

import pytest
from helpers.command import run

from transformatcher import __version__
from transformatcher.models.fused import native


def test_what_is_printed_is_what_is_in_the_json(capsys):
    assert run("info", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["transformatcher"] == __version__
    assert found["python"] == platform.python_version()
    assert found["attention on the cpu"] == native.describe()
    assert run("info") == 0
    printed = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert {name.strip(): value.strip() for name, value in printed.items()} == {
        name: "–" if value is None else str(value) for name, value in found.items()
    }


def test_the_library_turned_off(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setenv(native.SWITCH, "0")
    assert run("info", "--json") == 0
    assert json.loads(capsys.readouterr().out)["attention on the cpu"] == "torch, because TRANSFORMATCHER_NATIVE=0"

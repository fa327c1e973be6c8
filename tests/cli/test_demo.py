"""``demo``: pictures of the example photos, and a next command that works."""

import shlex
import stat
import sys
from pathlib import Path

import pytest
from helpers.command import run

from transformatcher.cli.demo import next_steps, program_name
from transformatcher.cli.main import build_parser


def test_demo(tmp_path: Path, capsys):
    assert run("demo", "--out", tmp_path) == 0
    printed = capsys.readouterr().out
    assert "6 points of cat_a.jpg on cat_b.jpg" in printed
    assert printed.endswith(next_steps(tmp_path) + "\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cat_a-cat_b.png", "cat_a-cat_c.png", "cat_a.jpg", "cat_a.json", "cat_b.jpg", "cat_c.jpg",
    ]  # fmt: skip


def test_the_next_command_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("transformatcher.cli.demo.program_name", lambda: "transformatcher")
    out = tmp_path / "with a space"
    line = next(line for line in next_steps(out).splitlines() if line.startswith("  transformatcher match"))
    program, *words = shlex.split(line)
    args = build_parser().parse_args(words)
    assert program == "transformatcher"
    assert (args.src, args.trg, args.out) == (str(out / "cat_a.jpg"), [str(out / "cat_b.jpg")], str(out / "my.png"))


class TestProgramName:
    """What a shell finds, from an activated environment and from outside."""

    @pytest.fixture
    def bin_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / ".venv" / "bin"
        folder.mkdir(parents=True)
        monkeypatch.setattr(sys, "executable", str(folder / "python"))
        monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
        monkeypatch.chdir(tmp_path)
        return folder

    def install(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "transformatcher").write_text("#!/bin/sh\n")
        (folder / "transformatcher").chmod(stat.S_IRWXU)

    def test_environment_that_is_not_activated(self, bin_folder: Path):
        self.install(bin_folder)
        assert program_name() == ".venv/bin/transformatcher"

    def test_activated_environment(self, bin_folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.install(bin_folder)
        monkeypatch.setenv("PATH", str(bin_folder))
        assert program_name() == "transformatcher"

    def test_another_installation_comes_first(self, bin_folder: Path, tmp_path: Path):
        self.install(bin_folder)
        self.install(tmp_path / "elsewhere")
        assert program_name() == ".venv/bin/transformatcher"

    def test_installed_elsewhere_alone(self, bin_folder: Path, tmp_path: Path):
        self.install(tmp_path / "elsewhere")
        assert program_name() == "transformatcher"
        assert bin_folder.exists()

    def test_without_a_script(self, bin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        assert program_name() == ".venv/bin/python -m transformatcher"
        monkeypatch.chdir(bin_folder)
        assert program_name() == "python -m transformatcher" or program_name().startswith(str(tmp_path))

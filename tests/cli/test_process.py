"""Standard streams that are closed, full or ASCII; signals that end a command."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.command import run

from transformatcher.cli import process

needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and /dev are those of POSIX")
MAIN = [sys.executable, "-m", "transformatcher"]


def typed(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a shell makes of a command line, in which $T is our program."""
    names = {**os.environ, "PYTHONUNBUFFERED": "", "T": " ".join(MAIN), **environment}
    return subprocess.run(["bash", "-c", command], env=names, capture_output=True, text=True, check=False, timeout=60)


@needs_posix
class TestStreams:
    def test_closed_output(self):
        result = typed("$T info >&-")
        assert result.returncode == 2
        assert result.stderr == "transformatcher: standard output is closed; send it to a file or to /dev/null\n"

    def test_closed_errors(self):
        result = typed("$T match a b 2>&-")
        assert (result.returncode, result.stdout, result.stderr) == (2, "", "")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
    def test_full_disk(self):
        result = typed("$T --help >/dev/full")
        assert result.returncode == 2
        assert result.stderr == "transformatcher: standard output: cannot be used (No space left on device)\n"

    def test_nobody_reads(self):
        result = typed("(sleep 0.3; $T --help) | true; echo ${PIPESTATUS[0]}")
        assert (result.stdout, result.stderr) == ("141\n", "")

    def test_a_terminal_with_ascii_alone(self):
        result = typed("$T match café.jpg b", PYTHONIOENCODING="ascii")
        assert result.returncode == 2
        assert result.stderr == "transformatcher match: caf\\xe9.jpg: no such image file\n"


@needs_posix
class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_termination_leaves_as_ctrl_c_does(self, number, monkeypatch, capsys):
        tidied = []

        def work(_args: object) -> int:
            try:
                os.kill(os.getpid(), number)
                time.sleep(30)
            finally:
                tidied.append(True)
            return 0

        before = signal.getsignal(signal.SIGINT), signal.getsignal(number)
        monkeypatch.setattr("transformatcher.cli.eval.run", work)
        try:
            assert run("eval", "--benchmark", "spair", "--root", "x", "--out", "y") == 130
        finally:
            signal.signal(signal.SIGINT, before[0])
        assert capsys.readouterr().err == "\ninterrupted; the same command continues where it stopped\n"
        assert tidied == [True]
        assert signal.getsignal(number) == before[1]

    def test_an_ignored_signal_stays_ignored(self):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
        try:
            with process.termination_interrupts():
                os.kill(os.getpid(), signal.SIGHUP)
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_the_second_interrupt_ends_at_once(self):
        code = (
            "import os, signal, atexit; from transformatcher.cli import process\n"
            "atexit.register(signal.alarm, 20); atexit.register(signal.pause)\n"
            "process.end_at_next_interrupt(); os.kill(os.getpid(), signal.SIGINT)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 130

    def test_a_forked_process_is_not_the_command(self):
        ready, at_child = os.pipe()
        with process.termination_interrupts():
            child = os.fork()
            if child == 0:
                os.write(at_child, b"1")
                time.sleep(30)
                os._exit(0)
            os.read(ready, 1)
            os.kill(child, signal.SIGTERM)
            _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM

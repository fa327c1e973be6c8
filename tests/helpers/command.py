"""The command as a person types it."""

from transformatcher.cli.main import main


def run(*args: object) -> int:
    """The exit code of ``transformatcher`` with these arguments."""
    return main([str(arg) for arg in args])

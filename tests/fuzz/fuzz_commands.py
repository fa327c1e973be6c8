"""Whole command lines under atheris. Usage: fuzz_commands.py CORPUS [options of libFuzzer]."""

import sys

import atheris

with atheris.instrument_imports(include=["argparse", "transformatcher"]):
    from command_lines import check_command

if __name__ == "__main__":
    atheris.Setup(sys.argv, check_command)
    atheris.Fuzz()

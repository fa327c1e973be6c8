"""Annotation and config loading under atheris. Usage: fuzz_annotations.py CORPUS [options of libFuzzer]."""

import sys

import atheris

with atheris.instrument_imports(include=["csv", "json", "scipy.io", "tomllib", "transformatcher"]):
    from targets import check_annotation

if __name__ == "__main__":
    atheris.Setup(sys.argv, check_annotation)
    atheris.Fuzz()

"""Image loading under atheris. Usage: fuzz_images.py CORPUS [options of libFuzzer]."""

import sys

import atheris

with atheris.instrument_imports(include=["PIL", "transformatcher"]):
    from targets import check_image

if __name__ == "__main__":
    atheris.Setup(sys.argv, check_image)
    atheris.Fuzz()

"""The shapes in the annotations of all of ``models/`` are checked while the tests run."""

import pkgutil
import tomllib
from pathlib import Path

import transformatcher.models


def test_every_module_is_listed_for_jaxtyping():
    root = Path(__file__).parents[2]
    options = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    listed = next(option for option in options if option.startswith("--jaxtyping-packages=")).split("=")[1].split(",")
    modules = [
        info.name
        for info in pkgutil.walk_packages(transformatcher.models.__path__, "transformatcher.models.")
        # the bodies of kernels are not Python, nor is the library in C
        if not info.ispkg and ".triton_" not in info.name and not info.name.endswith(".libpasses")
    ]
    assert len(modules) > 25
    missing = [name for name in modules if not any(name == item or name.startswith(f"{item}.") for item in listed)]
    assert missing == []

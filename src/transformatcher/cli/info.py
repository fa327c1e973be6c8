"""``transformatcher info``: what computes here, and with which versions."""

import argparse
import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("torch", "torchvision", "triton", "timm", "onnxruntime", "pyarrow", "fastapi")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Print versions, devices and which implementation of the attention runs here. Good for bug reports."
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(args: argparse.Namespace) -> int:
    """Print what is known of this installation and this machine."""
    import torch

    from transformatcher import __version__
    from transformatcher.models.fused import native
    from transformatcher.models.fused.precision import check_bfloat16

    found = {
        "transformatcher": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        **{name: _version(name) for name in PACKAGES},
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "waiting threads": os.environ.get("OMP_WAIT_POLICY", "as OpenMP does by default").lower(),
        "attention on the cpu": native.describe(),
        "backbone on the cpu": f"float32: {reason}" if (reason := check_bfloat16()) else "bfloat16",
    }
    if args.json:
        json.dump(found, sys.stdout, indent=2)
        print()
        return 0
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name:{width}}  {'–' if value is None else value}")
    return 0


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

"""The studio with a small random model, on a free port; prints its address. Tests start it as a process of its own."""

import argparse
import contextlib
import ctypes
import signal
from pathlib import Path

import torch

from transformatcher.annotation.project import Project
from transformatcher.annotation.scan import scan_photos
from transformatcher.config import model_config
from transformatcher.inference.matcher import Matcher
from transformatcher.models.build import build_matcher
from transformatcher.web import listen, security
from transformatcher.web.studio import server
from transformatcher.web.uploads import Limits


def give_memory_back(*_: object) -> None:
    """Have the C library return what is free, so that what is left is in use."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


if __name__ == "__main__":
    if hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, give_memory_back)
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--temporary", action="store_true")
    parser.add_argument("--upload-grace", type=float, default=security.UPLOAD_GRACE_S)
    parser.add_argument("--connections", type=int, default=listen.MAX_CONNECTIONS)
    parser.add_argument("--pixels", type=int, default=Limits().pixels)
    args = parser.parse_args()
    security.UPLOAD_GRACE_S, listen.MAX_CONNECTIONS = args.upload_grace, args.connections
    if args.host != "127.0.0.1":  # tests listen on this machine alone, and believe that it is another
        security.LOCAL_HOSTS = frozenset({"localhost"})
        server.is_local_host = lambda host: host in security.LOCAL_HOSTS
    torch.manual_seed(0)  # the same model each time, whose votes stay valid
    config = model_config({"variant": "raw", "backbone": "resnet50", "stages": [2], "image_size": [96, 96]})
    with Project(args.folder) as project:
        scan_photos(project)
        matcher = Matcher(build_matcher(config), config, "cpu")
        options = {"temporary": args.temporary, "limits": Limits(pixels=args.pixels)}
        server.serve_studio(project, matcher, args.host, args.port, browser=False, **options)

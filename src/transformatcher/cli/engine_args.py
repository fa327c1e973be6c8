"""Options that say where the work is done: in this process, or by workers on a Ray cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from transformatcher.cli.parser import number
from transformatcher.errors import InputError, require_packages

if TYPE_CHECKING:
    from transformatcher.inference.engine import Engine

RAY_OPTIONS = ("address", "workers", "cpus_per_worker", "gpus_per_worker")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """The group "engine"."""
    group = parser.add_argument_group(
        "engine", "Without --engine ray, the work is done by this process. Ray comes with the extra 'cluster'."
    )
    group.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="ray: by workers on a Ray cluster, each with a model of its own (%(default)s)",
    )
    group.add_argument(
        "--address",
        metavar="ADDRESS",
        help="of the cluster: auto, or ray://HOST:10001 (RAY_ADDRESS; without it, Ray is started on this machine)",
    )
    group.add_argument(
        "--workers",
        type=number(int, 1, 100_000),
        metavar="N",
        help="so many workers; a cluster that grows by itself adds nodes for them (as many as there is room for)",
    )
    group.add_argument(
        "--cpus-per-worker", type=number(float, 0.01, 1024), metavar="N", help="CPUs and threads of each worker (1)"
    )
    group.add_argument(
        "--gpus-per-worker",
        type=number(float, 0, 64),
        metavar="N",
        help="GPUs of each worker, such as 1, 0.5 or 0 (1 where the cluster has any, else 0)",
    )


def make_engine(args: argparse.Namespace) -> Engine | None:
    """What runs the workers; None: this process."""
    given = [name for name in RAY_OPTIONS if getattr(args, name) is not None]
    if args.engine == "local":
        if given:
            raise InputError(f"--{given[0].replace('_', '-')} goes with --engine ray")
        return None
    require_packages("--engine ray", "ray", extra="cluster")
    from transformatcher.inference.ray_engine import RayEngine

    return RayEngine(args.address, args.workers, args.cpus_per_worker or 1.0, args.gpus_per_worker)


def worker_device(args: argparse.Namespace) -> str:
    """The device of the workers. Their model is loaded on the CPU here and sent to them."""
    device = str(args.device)
    if args.engine == "ray":
        args.device = "cpu"
    return device

"""A cluster of two nodes on this machine, one of which goes while it works, and a third that comes. Run by tests."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])),
}  # also of the workers
sys.path.insert(0, str(Path(__file__).parents[1]))

import ray
from helpers.ray_workers import Squares
from ray.cluster_utils import Cluster

from transformatcher.inference.ray_engine import RayEngine


class SquaresOfNode(Squares):
    """As Squares; the node instead of the process."""

    def __call__(self, numbers: Iterable[int]) -> Iterator[tuple[int, int, str]]:  # type: ignore[override]
        for number, square, _ in super().__call__(numbers):
            yield number, square, ray.get_runtime_context().get_node_id()


def make_worker(track) -> SquaresOfNode:
    return SquaresOfNode(track, seconds=0.1)


def main() -> None:
    cluster = Cluster(initialize_head=True, connect=False, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    nodes: set[str] = set()
    deadline = time.monotonic() + 200

    def numbers() -> Iterator[int]:
        """Until all three nodes have worked, and a few more."""
        count = 0
        while len(nodes) < 3 and time.monotonic() < deadline:
            yield count
            count += 1
        yield from range(count, count + 5)

    results: list[tuple[int, int]] = []
    removed = False
    for number, square, node in RayEngine(address=cluster.address).run(make_worker, numbers(), name="squares"):
        results.append((number, square))
        nodes.add(node)
        if len(nodes) == 2 and not removed:
            cluster.remove_node(second, allow_graceful=False)
            cluster.add_node(num_cpus=1)
            removed = True
    cluster.shutdown()
    assert sorted(results) == [(number, number**2) for number in range(len(results))], sorted(results)
    print(f"all results once, from {len(nodes)} nodes")


if __name__ == "__main__":
    main()

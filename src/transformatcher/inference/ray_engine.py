"""Items → results by workers on a Ray cluster: handed out as workers become free, and again where a worker dies."""

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from secrets import token_hex
from typing import Any

from transformatcher.data.prefetch import batched
from transformatcher.errors import InputError, require_packages
from transformatcher.inference.engine import Item, Result, Track, Worker, ignore

MAX_ATTEMPTS = 3  # so many workers may die of a chunk before it is given up
MAX_FAILED_STARTS = 3  # so many workers may die in a row before one of them is ready
MAX_NAMED = 5  # chunks that a message names
POLL_S = 1.0  # seconds to wait for a result before something else is done
LOOK_S = 3.0  # seconds between looks at the cluster

logger = logging.getLogger("transformatcher")


class RayWorker:
    """What Ray starts as an actor: a worker, and how far it is with its chunk."""

    def __init__(self, make_worker: Callable[[Track], Worker[Any, Any]]) -> None:
        self._make = make_worker
        self._worker: Worker[Any, Any] | None = None
        self._done = 0

    def make_ready(self) -> None:
        """Make the worker; in a call, as an error of ``__init__`` would be the death of the actor."""
        self._worker = self._make(self._track)

    def work(self, chunk: Sequence[Any]) -> list[Any]:
        """The results of some items."""
        assert self._worker is not None
        self._done = 0
        return list(self._worker(chunk))

    def _track(self, done: int) -> None:
        self._done = done

    def progress(self) -> int:
        """What the worker has reported of its chunk; a second thread answers while it works."""
        return self._done


@dataclass(eq=False)
class _Chunk:
    items: list[Any]
    number: int
    deaths: list[str] = field(default_factory=list)  # what each worker that died of it died of

    def __str__(self) -> str:
        return str(self.items[0]) if len(self.items) == 1 else f"chunk {self.number}, from {self.items[0]}"


@dataclass(eq=False)
class _Actor:
    handle: Any
    is_ready: bool = False
    chunk: _Chunk | None = None
    done: int = 0
    question: Any = None  # pending call of ``progress``


@dataclass(frozen=True)
class RayEngine:
    """Workers on a Ray cluster, each an actor with a model of its own.

    A worker that dies is replaced, and its chunk is given to another. Nodes may come and go: new ones get workers, up
    to the number that was asked for.

    Args:
        address: of the cluster: "auto", "ray://HOST:10001"; None: that of RAY_ADDRESS in the environment, or else Ray
            is started on this machine, and stopped at the end.
        workers: how many; None: as many as the cluster has room for. A cluster that grows by itself adds nodes for
            workers that wait for room.
        cpus: of each worker, which computes with so many threads.
        gpus: of each worker, which may be a part of one; None: one if the cluster has any.

    Example:
        >>> list(RayEngine(workers=2).run(lambda _track: lambda items: map(len, items), ["a", "bb"], name="lengths"))
        [1, 2]
    """

    address: str | None = None
    workers: int | None = None
    cpus: float = 1.0
    gpus: float | None = None

    def run(
        self,
        make_worker: Callable[[Track], Worker[Item, Result]],
        items: Iterable[Item],
        *,
        name: str,
        chunk: int = 1,
        track: Track = ignore,
    ) -> Iterator[Result]:
        """See :meth:`Engine.run`; ``make_worker`` and the items are pickled.

        Raises:
            InputError: after all else is done, for chunks that ``MAX_ATTEMPTS`` workers died of.
        """
        require_packages("--engine ray", "ray", extra="cluster")
        import ray

        started = self._connect(ray)
        try:
            yield from _Run(self, ray, make_worker, name, track).results(batched(items, chunk))
        except (ConnectionError, ray.exceptions.RaySystemError) as error:
            raise InputError(f"the Ray cluster does not answer any more ({_reason(error)})") from error
        finally:
            if started:
                ray.shutdown()

    def _connect(self, ray: Any) -> bool:
        """Connect to a cluster, or start one here; whether this process has to end it."""
        if ray.is_initialized():
            return False
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
        address = self.address or os.environ.get("RAY_ADDRESS")
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            if address:
                ray.init(address=address, **quiet)
            else:
                ray.init(address="local", include_dashboard=False, **quiet)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            where = f"at {address!r}" if address else "on this machine"
            raise InputError(f"no Ray cluster can be reached {where} ({_reason(error)})") from error
        return True


class _Run:
    """One call of :meth:`RayEngine.run`."""

    def __init__(
        self, engine: RayEngine, ray: Any, make_worker: Callable[[Track], Worker[Any, Any]], name: str, track: Track
    ) -> None:
        self.ray, self.name, self.track, self.workers, self.cpus = ray, name, track, engine.workers, engine.cpus
        self.gpus = engine.gpus
        if self.gpus is None:
            self.gpus = 1.0 if ray.cluster_resources().get("GPU", 0) >= 1 else 0.0
        self.actor_class = ray.remote(RayWorker)
        self.token = token_hex(3)  # two runs on one cluster have workers of different names
        self.shared = ray.put(make_worker)  # is sent to every node once
        self.actors: dict[Any, _Actor] = {}  # by the call that is pending
        self.idle: deque[_Actor] = deque()
        self.queue: deque[_Chunk] = deque()  # chunks to be handed out
        self.lost: list[_Chunk] = []
        self.made = self.failed_starts = 0
        self.wanted = 1
        self.looked = -math.inf  # when the cluster was looked at

    def results(self, chunks: Iterable[list[Any]]) -> Iterator[Any]:
        """Yield results as workers finish their chunks."""
        upcoming = (_Chunk(items, number) for number, items in enumerate(chunks, 1))
        try:
            while True:
                self._look()
                self.queue.extend(islice(upcoming, max(0, self.wanted - len(self.queue))))
                self._read_progress()
                if not self.queue and not self._busy():
                    break
                while self.idle and self.queue:
                    self._hand_out(self.idle.popleft(), self.queue.popleft())
                self._start_workers()
                finished, _ = self.ray.wait(list(self.actors), num_returns=1, timeout=POLL_S)
                for call in finished:
                    yield from self._finish(call)
        finally:
            for actor in [*self.actors.values(), *self.idle]:
                self._kill(actor)
        if self.lost:
            parts = "; ".join(f"{chunk} ({chunk.deaths[-1]})" for chunk in self.lost[:MAX_NAMED])
            more = f" and {len(self.lost) - MAX_NAMED} more" if len(self.lost) > MAX_NAMED else ""
            raise InputError(f"given up, as {MAX_ATTEMPTS} workers died of it: {parts}{more}")

    def _look(self) -> None:
        """Now and then, see how many workers are wanted, and ask those that are there how far they are."""
        if time.monotonic() - self.looked < LOOK_S:
            return
        self.looked = time.monotonic()
        room = sum(self._room(node["Resources"]) for node in self.ray.nodes() if node["Alive"])
        if not room and not self.actors:
            logger.warning(
                "no node of the Ray cluster has room for a worker with %g CPUs and %g GPUs; waiting for one",
                self.cpus,
                self.gpus,
            )
        self.wanted = self.workers or max(1, room)
        for actor in self._busy():
            if actor.question is None:
                actor.question = actor.handle.progress.remote()

    def _read_progress(self) -> None:
        """Pass on what workers have answered by now."""
        asked = {actor.question: actor for actor in self._busy() if actor.question is not None}
        if not asked:
            return
        answered, _ = self.ray.wait(list(asked), num_returns=len(asked), timeout=0)
        for question in answered:
            with suppress(self.ray.exceptions.RayError):  # it has died, which its other call tells
                asked[question].done = self.ray.get(question)
            asked[question].question = None
        if answered:
            self.track(sum(actor.done for actor in self._busy()))

    def _busy(self) -> list[_Actor]:
        return [actor for actor in self.actors.values() if actor.chunk is not None]

    def _room(self, resources: Mapping[str, float]) -> int:
        """How many workers a node has room for."""
        needs = {"CPU": self.cpus, "GPU": self.gpus or 0.0}
        return math.floor(min(resources.get(kind, 0.0) / need for kind, need in needs.items() if need) + 1e-6)

    def _start_workers(self) -> None:
        """Start workers for chunks that wait, up to the number that is wanted."""
        starting = sum(not actor.is_ready for actor in self.actors.values())
        for _ in range(min(len(self.queue) - starting, self.wanted - len(self.actors) - len(self.idle))):
            self.made += 1
            options = {
                "num_cpus": self.cpus,  # Ray has torch compute with so many threads
                "num_gpus": self.gpus,
                "max_concurrency": 2,  # ``progress`` answers while ``work`` works
                "name": f"{self.name} worker {self.made} ({self.token})",
            }
            handle = self.actor_class.options(**options).remote(self.shared)
            self.actors[handle.make_ready.remote()] = _Actor(handle)

    def _hand_out(self, actor: _Actor, chunk: _Chunk) -> None:
        actor.chunk, actor.done, actor.question = chunk, 0, None
        call = actor.handle.work.options(name=f"{self.name}: {chunk}").remote(chunk.items)
        self.actors[call] = actor

    def _finish(self, call: Any) -> Iterator[Any]:
        """Take the results of a call that is done, or of a worker that is dead."""
        actor = self.actors.pop(call)
        try:
            results = self.ray.get(call)
        except self.ray.exceptions.RayTaskError as error:  # raised by the work itself, not by the cluster
            self._kill(actor)
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except self.ray.exceptions.RayError as error:
            self._kill(actor)
            self._take_back(actor.chunk, error)
            return
        actor.is_ready, actor.chunk, self.failed_starts = True, None, 0
        self.idle.append(actor)
        yield from results or ()

    def _take_back(self, chunk: _Chunk | None, error: Exception) -> None:
        """The chunk of a worker that died is for another."""
        reason = _reason(error)
        if chunk is not None:
            chunk.deaths.append(reason)
            if len(chunk.deaths) < MAX_ATTEMPTS:
                self.queue.appendleft(chunk)
            else:
                self.lost.append(chunk)
        else:
            self.failed_starts += 1
            if self.failed_starts == MAX_FAILED_STARTS:
                raise InputError(f"{MAX_FAILED_STARTS} workers in a row died before they were ready ({reason})")

    def _kill(self, actor: _Actor) -> None:
        with suppress(Exception):  # it is dead already, or the whole cluster is gone
            self.ray.kill(actor.handle)


def _reason(error: Exception) -> str:
    """An error of Ray in one line: the last one of a traceback that it quotes, else its first."""
    lines = str(error).strip().splitlines() or [""]
    line = lines[-1] if any("Traceback" in line for line in lines) else lines[0]
    return f"{type(error).__name__}: {line.strip()[:300]}"

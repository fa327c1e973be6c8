"""A connection → one that gets on, or none: slow or silent clients are cut off, so that others find a place."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 500  # connections at a time; each is a file to the system, which has room for a thousand
QUIET_S = 10.0  # that a connection may be without a whole request
STUCK_S = 30.0  # that a client may refuse to read its answer
CROWDED_S = 1.0  # as QUIET_S, when there are MOST of them


class PatientProtocol(H11Protocol):
    """uvicorn's, with an eye on the clock: it has no limit of its own on how long a request's head may take."""

    _quiet = 0.0  # seconds without a request in work
    _stuck = 0.0  # seconds that the client has not been reading
    _last: Any = None  # the request that was in work when last looked at
    _reads = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there; if there are too many, the one that has been silent for longest goes."""
        super().connection_made(transport)
        others = (other for other in self.connections if isinstance(other, PatientProtocol) and other is not self)
        silent = [other for other in others if other._quiet >= CROWDED_S]
        if len(self.connections) > MOST and silent:
            max(silent, key=lambda other: other._quiet).cut_off()
        self._look(0.0)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone; nothing is to be looked after."""
        self._timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read as fast as we write."""
        self._reads = False
        super().pause_writing()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._reads, self._stuck = True, 0.0
        super().resume_writing()

    def cut_off(self) -> None:
        """At once: a polite end would wait for the client."""
        self.connections.discard(self)
        self.transport.abort()

    def _look(self, every: float = 1.0) -> None:
        in_work = self.cycle is not None and not self.cycle.response_complete
        self._quiet = 0.0 if in_work or self.cycle is not self._last else self._quiet + every
        self._stuck = 0.0 if self._reads else self._stuck + every
        self._last = self.cycle
        self._timer = self.loop.call_later(1.0, self._look)
        if self._quiet > QUIET_S or self._stuck > STUCK_S:
            self.cut_off()

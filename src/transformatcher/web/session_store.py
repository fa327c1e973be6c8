"""A session's id → the session. The least recently used are dropped when there are too many, idle ones after a time."""

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from transformatcher.web.errors import RequestError
from transformatcher.web.session import Limits, Session


class SessionStore:
    """All sessions of a server.

    Args:
        limits: how many sessions there may be, and how long one may be idle.
        clock: returns seconds; tests use their own.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._lock = Lock()
        self._sessions: OrderedDict[str, tuple[Session, float]] = OrderedDict()  # with time of last use, oldest first

    def create(self) -> Session:
        """Add a new, empty session."""
        self.drop_idle()
        session = Session(self.limits)
        with self._lock:
            while len(self._sessions) >= self.limits.sessions:
                self._sessions.popitem(last=False)
            self._sessions[session.id] = session, self._clock()
        return session

    def get(self, session_id: str) -> Session:
        """The session with this id, which now counts as used.

        Raises:
            RequestError: 404 if it was closed or dropped.
        """
        self.drop_idle()
        with self._lock:
            if session_id not in self._sessions:
                raise RequestError(404, "This session has ended and its photos are deleted; reload the page.")
            session, _ = self._sessions.pop(session_id)
            self._sessions[session_id] = session, self._clock()
            return session

    def close(self, session_id: str) -> None:
        """Drop a session; it need not exist."""
        with self._lock:
            self._sessions.pop(session_id, None)

    def drop_idle(self) -> None:
        """Drop the sessions that were not used for ``limits.idle_s`` seconds."""
        oldest = self._clock() - self.limits.idle_s
        with self._lock:
            while self._sessions and next(iter(self._sessions.values()))[1] < oldest:
                self._sessions.popitem(last=False)

    def __len__(self) -> int:
        return len(self._sessions)

"""Changes of a project in any thread → the requests that wait for them, none of which holds a thread."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from transformatcher.annotation.project import Project
from transformatcher.errors import InputError

LOOK_EVERY_S = 0.5  # at the state that is not in the project: what the prediction is doing
RECENT_S = 1.0  # a window may have missed a change of that state which is not older


class ChangeFeed:
    """Wakes requests when a project changes, or when something else does that the page shows.

    Args:
        project: what is watched.
        state: returns what else is watched, comparable; it is called twice a second.
    """

    def __init__(self, project: Project, state: Callable[[], object]) -> None:
        self._project, self._state = project, state
        self._thread = threading.Thread(target=self._watch, name="changes", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: asyncio.Event | None = None  # of the next change; each has its own
        self._stopped = False
        self._revision = -1
        self._state_changed_at = -RECENT_S

    def start(self) -> None:
        """Begin to watch; call it in the event loop whose requests wait."""
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        self._revision = self._project.revision
        self._thread.start()

    def stop(self) -> None:
        """Let all requests go, now and from now on. Any thread may call it, also when the project is closed."""
        self._stopped = True
        self._wake_soon()

    async def wait(self, revision: int, timeout_s: float) -> None:
        """Wait until the project is at a later revision, or the other state has changed, or time is up."""
        if self._stopped or self._changed is None or self._revision > revision:
            return
        may_have_missed = time.monotonic() - self._state_changed_at < RECENT_S or revision > self._revision
        try:
            async with asyncio.timeout(min(timeout_s, RECENT_S) if may_have_missed else timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _watch(self) -> None:
        revision, state = self._revision, self._state()
        while not self._stopped:
            try:
                new = self._project.wait_for_change(revision, LOOK_EVERY_S), self._state()
            except InputError:  # the file cannot be read; whoever asks for something is told
                time.sleep(LOOK_EVERY_S)
                continue
            if new != (revision, state):
                self._wake_soon(new[0], new[1] != state)
                revision, state = new

    def _wake_soon(self, revision: int | None = None, state_changed: bool = False) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._wake, revision, state_changed)

    def _wake(self, revision: int | None = None, state_changed: bool = False) -> None:
        if revision is not None:
            self._revision = revision
        if state_changed:
            self._state_changed_at = time.monotonic()
        if self._changed is not None:
            self._changed.set()
            self._changed = asyncio.Event()

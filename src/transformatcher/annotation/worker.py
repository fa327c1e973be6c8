"""A project that is open in the studio → predictions made in the background, which wait while the person works."""

import logging
import time
from collections.abc import Iterable
from threading import Event, Thread
from typing import Literal

from transformatcher.annotation.predictor import Predictor
from transformatcher.errors import InputError

IDLE_S = 1.0  # after the last edit, before the next part of the work begins
RETRY_S = 10.0  # after an error, such as a full disk
CHECK_S = 0.5  # between two looks at whether there is something to do

WorkerState = Literal["predicting", "waiting", "paused", "idle", "no_references", "problem"]


class _StoppedError(Exception):
    """The worker is to stop in the middle of a batch."""


class PredictionWorker:
    """Two threads: one predicts, the other answers a moved point at once for the photos on the screen.

    Args:
        predictor: of an open project; nobody else may call its ``step``.

    Example:
        >>> worker = PredictionWorker(predictor)
        >>> worker.start()
        >>> worker.look_at([1, 2, 3])
        >>> worker.stop()
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor, self.project = predictor, predictor.project
        self.paused = False
        self.problem: str | None = None  # why nothing can be predicted at the moment
        self._active_until = 0.0
        self._stopping = Event()
        self._threads = [
            Thread(target=self._predict, name="predicting", daemon=True),
            Thread(target=self._revote, name="voting again", daemon=True),
        ]
        predictor.interrupted = self._wait_for_person

    def start(self) -> None:
        """Begin to predict."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop, after the part of the work that is under way."""
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self.predictor.close()

    def person_is_active(self) -> None:
        """Leave the processor to the person for a moment."""
        self._active_until = time.monotonic() + IDLE_S

    def look_at(self, photo_ids: Iterable[int]) -> None:
        """These photos are on the screen: they are predicted first, and follow moved points at once."""
        self.predictor.look_at(photo_ids)

    @property
    def state(self) -> WorkerState:
        """What the worker is doing."""
        progress = self.predictor.progress()
        if self.problem is not None:
            return "problem"
        if self.paused:
            return "paused"
        if progress.state == "predicting" and time.monotonic() < self._active_until:
            return "waiting"
        return progress.state

    # ------------------------------------------------------------ the threads

    def _predict(self) -> None:
        while not self._stopping.is_set():
            revision = self.project.revision
            try:
                self._wait_for_person()
                more = self.predictor.step()
                self.problem = None
            except _StoppedError:
                return
            except Exception as error:
                self._fail(error)
                more = False
                self._stopping.wait(RETRY_S)
            if not more and not self._stopping.is_set():
                self.project.wait_for_change(revision, CHECK_S)

    def _revote(self) -> None:
        seen = -1
        while not self._stopping.is_set():
            try:
                revision = self.project.revision
                if self.project.edits == seen:  # else there was a change since the last look
                    self.project.wait_for_change(revision, CHECK_S)
                if self.project.edits != seen:
                    seen = self.project.edits
                    self.predictor.revote()
            except Exception as error:
                self._fail(error)
                self._stopping.wait(RETRY_S)

    def _fail(self, error: Exception) -> None:
        """Remember why it failed, for the person to read. The next attempt may succeed."""
        if self._stopping.is_set():
            return
        if not isinstance(error, InputError):
            logging.getLogger(__name__).exception("a prediction in the background failed")
        self.problem = str(error) or type(error).__name__

    def _wait_for_person(self) -> None:
        """Wait while the person works or has paused the predictions."""
        while self.paused or time.monotonic() < self._active_until:
            if self._stopping.wait(0.05):
                break
        if self._stopping.is_set():
            raise _StoppedError

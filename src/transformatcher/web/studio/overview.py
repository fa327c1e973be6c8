"""Project → what the page shows of all photos; only what has changed is read again."""

import threading
from collections import Counter
from dataclasses import dataclass
from typing import get_args

from transformatcher.annotation.project import Project
from transformatcher.annotation.records import PhotoState, PhotoSummary
from transformatcher.errors import InputError


@dataclass(frozen=True)
class Totals:
    """How far a project is."""

    revision: int
    counts: dict[PhotoState, int]  # of photos, in each state
    unsure: int  # predicted photos with a point below the threshold

    @property
    def left(self) -> int:
        """How many photos wait for a review."""
        return sum(n for state, n in self.counts.items() if state not in ("reviewed", "failed"))


class Overview:
    """The summaries of all photos, in memory. Threads may share it.

    Args:
        project: whose photos.
        threshold: below this confidence, a predicted point is unsure.
    """

    def __init__(self, project: Project, threshold: float) -> None:
        self._project, self._threshold = project, threshold
        self._lock = threading.Lock()
        self._summaries: dict[int, PhotoSummary] = {}
        self._revision = -1
        self._counts: Counter[PhotoState] = Counter()
        self._unsure = 0

    def since(self, revision: int) -> tuple[int, list[PhotoSummary]]:
        """The project's revision, and the photos that have changed after another one, by path.

        All of them, if that one lies ahead: it is another project's.
        """
        with self._lock:
            self._refresh()
            after = revision if revision <= self._revision else -1
            changed = [summary for summary in self._summaries.values() if summary.revision > after]
            return self._revision, sorted(changed, key=lambda summary: summary.path)

    def photo(self, photo_id: int) -> PhotoSummary:
        """What the page shows of one photo."""
        with self._lock:
            self._refresh()
            if photo_id not in self._summaries:
                raise InputError(f"no photo has the id {photo_id}")
            return self._summaries[photo_id]

    def totals(self) -> Totals:
        """How far the project is."""
        with self._lock:
            self._refresh()
            counts = {state: self._counts[state] for state in get_args(PhotoState)}
            return Totals(self._revision, counts, self._unsure)

    def _refresh(self) -> None:
        project = self._project
        with project.database.lock:  # so that nothing is written between both readings
            revision = project.revision
            changed = project.summaries(self._revision) if revision != self._revision else []
        self._revision = revision
        for summary in changed:
            if (before := self._summaries.get(summary.id)) is not None:
                self._count(before, -1)
            self._count(summary, 1)
            self._summaries[summary.id] = summary

    def _count(self, summary: PhotoSummary, n: int) -> None:
        self._counts[summary.state] += n
        if summary.state == "predicted" and summary.sureness is not None and summary.sureness < self._threshold:
            self._unsure += n

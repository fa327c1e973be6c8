"""Features of photos → which photo to mark next: the one whose marks would teach most about all others."""

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from transformatcher.annotation.project import Project
from transformatcher.inference.cues import pooled_features

Strategy = Literal["gain", "least_like"]

MAX_CANDIDATES = 2000  # photos that are compared with each other; of more, an even selection


class Descriptors:
    """The mean features of a project's photos, kept in its file. Similar photos have similar ones.

    The product of two descriptors is the sum of the cosine similarities of both layers, at most 2.

    Args:
        project: open for writing.
        model: names the model; descriptors of another one are not used.
    """

    def __init__(self, project: Project, model: str) -> None:
        self.project, self.model = project, model
        rows = project.database.rows("SELECT photo_id, vector FROM descriptor WHERE model = ?", model)
        self._vectors: dict[int, np.ndarray] = {
            row["photo_id"]: np.frombuffer(row["vector"], dtype=np.float16) for row in rows
        }
        self.suggestion: int | None = None
        self._suggested_for: tuple[frozenset[int], frozenset[int]] | None = None

    def known(self) -> Collection[int]:
        """The photos that have a descriptor."""
        return self._vectors.keys()

    def describe(self, features: list[Tensor]) -> Float[np.ndarray, " c"]:
        """The descriptor of one encoded photo."""
        pooled = [layer[0].double().cpu().numpy() for layer in pooled_features(features)]
        return np.concatenate([layer / max(np.linalg.norm(layer), 1e-12) for layer in pooled])

    def of(self, photo_id: int) -> Float[np.ndarray, " c"] | None:
        """The descriptor of a photo, if it is known."""
        vector = self._vectors.get(photo_id)
        return None if vector is None else vector.astype(np.float64)

    def add(self, features: Mapping[int, list[Tensor]]) -> None:
        """Describe photos by their features, and keep that; those that are described already are left out."""
        new = {i: self.describe(f).astype(np.float16) for i, f in features.items() if i not in self._vectors}
        if not new:
            return
        with self.project.database.transaction():
            self.project.database.run_many(
                "INSERT OR REPLACE INTO descriptor (photo_id, model, vector) VALUES (?, ?, ?)",
                [(photo_id, self.model, vector.tobytes()) for photo_id, vector in new.items()],
            )
        self._vectors |= new

    def forget(self, photo_ids: Iterable[int]) -> None:
        """Photos whose pixels have changed are described anew."""
        for photo_id in photo_ids:
            self._vectors.pop(photo_id, None)

    def suggest(self, references: Collection[int], candidates: Collection[int], strategy: Strategy = "gain") -> None:
        """Choose :attr:`suggestion` among the candidates that are described; nothing happens if nothing has changed.

        Args:
            references: photos whose objects have marks.
            candidates: photos to choose from.
            strategy: see :func:`choose_next`.
        """
        known = [sorted(photo for photo in group if photo in self._vectors) for group in (references, candidates)]
        question = frozenset(known[0]), frozenset(known[1])
        if question == self._suggested_for:
            return
        self._suggested_for = question
        if not known[1]:
            self.suggestion = None
            return
        marked, unmarked = (
            np.stack([self._vectors[photo] for photo in group]).astype(np.float32) if group else None for group in known
        )
        assert unmarked is not None
        self.suggestion = known[1][choose_next(unmarked, marked, strategy)]


def choose_next(
    candidates: Float[np.ndarray, "n c"], references: Float[np.ndarray, "r c"] | None, strategy: Strategy = "gain"
) -> int:
    """The candidate to be marked next.

    Args:
        candidates: descriptors of the photos to choose from.
        references: descriptors of those that are marked; None if there is none yet.
        strategy: "gain" takes the photo that brings a similar reference to most others: the sum, over all candidates,
            of how much more similar it is to them than the best reference so far. "least_like" takes the one that is
            least like any reference; it likes photos that are unlike all others, too.
    """
    nearest = np.zeros(len(candidates)) if references is None else (candidates @ references.T).max(axis=1)
    if strategy == "least_like" and references is not None:
        return int(nearest.argmin())
    rows = np.unique(np.linspace(0, len(candidates) - 1, min(len(candidates), MAX_CANDIDATES)).astype(int))
    chosen = candidates[rows]
    gain = np.maximum(chosen @ chosen.T - nearest[rows][None], 0).sum(axis=1)
    return int(rows[gain.argmax()])

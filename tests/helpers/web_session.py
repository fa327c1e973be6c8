"""Sessions with predictions that a test can foresee. Modules that import this are skipped without FastAPI."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from transformatcher.inference.matched_pair import EncodedPhoto, MatchedPair

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from transformatcher.web.session import XY, Session, SessionPhoto


class FakePair(MatchedPair):
    """Shifts every point by ``shift`` pixels of the stored copy, with one confidence for all."""

    def __init__(self, shift: float, confidence: float, *, is_match: bool = True) -> None:
        self.shift, self.confidence, self.all_match = shift, confidence, is_match

    def points(self, points: np.ndarray) -> Any:
        """Matches with the fields that a session reads."""
        n = len(points)
        return SimpleNamespace(
            keypoints1=points + self.shift, confidence=np.full(n, self.confidence), is_match=np.full(n, self.all_match)
        )

    def heatmap(self, point: np.ndarray) -> np.ndarray:
        """One cell of 5 × 5 is above 0; which one depends on the point."""
        heatmap = np.zeros((5, 5))
        heatmap[int(point[1]) % 5, int(point[0]) % 5] = 0.5
        return heatmap


def fake_photo(name: str, size: tuple[int, int] = (100, 200), stored: tuple[int, int] = (50, 100)) -> SessionPhoto:
    """A black photo whose id is its name without the suffix."""
    return SessionPhoto(name.split(".")[0], name, size, EncodedPhoto(np.zeros((*stored, 3), np.uint8), []), b"")


def fake_session() -> Session:
    """A source of 200 × 100 pixels, stored at half size, two targets, and a point “nose”."""
    session = Session()
    for name in ("src.jpg", "one.jpg", "two.jpg"):
        session.add_photo(fake_photo(name), as_source=name == "src.jpg")
    session.pairs["src", "one"] = FakePair(1, 0.6)
    session.pairs["src", "two"] = FakePair(2, 0.4)
    session.add_point(XY(20, 30), "nose")
    return session

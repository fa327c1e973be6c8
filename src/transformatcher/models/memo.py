"""Key and computation → the value, computed again only when the key changes."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Memo(Generic[T]):
    """A cache of one entry: the last value that was computed."""

    def __init__(self) -> None:
        self._entry: tuple[Hashable, T] | None = None

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The value for ``key``, from the cache if the last call had the same key."""
        if self._entry is None or self._entry[0] != key:
            with torch.inference_mode(mode=False):  # tensors made in inference mode could not be used in training later
                self._entry = (key, compute())
        return self._entry[1]

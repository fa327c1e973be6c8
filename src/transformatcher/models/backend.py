"""Backend name → which implementation of a stage runs: the readable one, or the fused one."""

from typing import Literal

Backend = Literal["auto", "fused", "eager"]


class HasBackend:
    """A stage of the model with two implementations of the same mathematics.

    ``eager``: the stage's own file, operation by operation in PyTorch. ``fused``: the passes and kernels of ``fused/``;
    an error where they cannot replace the stage. ``auto``: fused where it is possible and faster, else eager.
    """

    backend: Backend = "auto"

    def set_backend(self, backend: Backend) -> None:
        """Choose the implementation that runs from now on."""
        self.backend = backend

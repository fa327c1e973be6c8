"""Backend name → which implementation of a stage runs: the readable one, or the fused one."""

from typing import Literal

Backend = Literal["auto", "fused", "eager"]


class HasBackend:
    """A stage of the model with two implementations of the same mathematics.

    ``eager``: the readable code of the stage's own file. ``fused``: the passes and kernels of ``fused/``, wherever they
    run; an attention that they cannot compute is an error. ``auto``: fused where it is possible and faster, else eager.
    """

    backend: Backend = "auto"

    def set_backend(self, backend: Backend) -> None:
        """Choose the implementation that runs from now on."""
        self.backend = backend

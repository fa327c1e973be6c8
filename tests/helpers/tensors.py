"""Random tensors and grids for the tests of ``models/``."""

import itertools

import numpy as np
import torch
from torch import Tensor, nn

GRID = (2, 3, 3, 2)  # nothing square, axes of even and odd length
POSITIONS = list(itertools.product(*(range(n) for n in GRID)))


def random64(*shape: int, grad: bool = False) -> Tensor:
    """A normally distributed tensor in float64."""
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def weights_of(module: nn.Module) -> dict[str, np.ndarray]:
    """The state dict of a module, as arrays."""
    return {key: value.detach().numpy() for key, value in module.state_dict().items()}


def randomise(module: nn.Module, std: float = 0.4) -> nn.Module:
    """Draw all parameters at random: the initial ones and zeros of norms and biases would hide mistakes."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    return module

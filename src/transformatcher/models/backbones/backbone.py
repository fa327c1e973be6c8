"""Image → features of the chosen layers: the interface of all backbones."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.errors import InputError
from transformatcher.schema import Size

Layers = Sequence[int] | Literal["all", "every-other"]


class Backbone(nn.Module):
    """A network that returns the features of some of its layers, one feature map for each.

    Attributes:
        layers: numbers of the chosen layers, from 0.
        grid: (h, w) of the finest chosen feature map, for images of the size that the backbone was built for.
    """

    layers: tuple[int, ...]
    grid: Size

    def __init__(self) -> None:
        super().__init__()
        self.norms_frozen = False

    @property
    def n_layers(self) -> int:
        """How many feature maps an image gives, and so how many channels the correlation has."""
        return len(self.layers)

    @abstractmethod
    def forward(self, images: Float[Tensor, "b 3 h w"]) -> list[Float[Tensor, "b _ _ _"]]:
        """RGB images, normalised with ImageNet's mean and deviation → the features of the chosen layers, in order."""

    def freeze_norms(self) -> None:
        """From now on batch norms use their stored statistics and leave them unchanged, in training, too."""
        self.norms_frozen = True
        self.train(self.training)

    def train(self, mode: bool = True) -> "Backbone":
        """As :meth:`torch.nn.Module.train`, except that frozen batch norms stay in evaluation mode."""
        super().train(mode)
        if self.norms_frozen:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self


def choose_layers(layers: Layers, usual: Sequence[int], n: int, name: str) -> tuple[int, ...]:
    """A choice of layers → their numbers.

    Args:
        layers: "all" of the usual ones; "every-other" of them, counted from the deepest; or the numbers themselves.
        usual: numbers of the layers that the paper's rule would choose.
        n: how many layers the network has.
        name: of the network, for the error message.
    """
    if layers == "all":
        return tuple(usual)
    if layers == "every-other":
        return tuple(usual[(len(usual) - 1) % 2 :: 2])
    if max(layers) >= n:
        raise InputError(f"layers = {list(layers)}: {name} has {n} layers, numbered from 0 to {n - 1}")
    return tuple(int(layer) for layer in layers)

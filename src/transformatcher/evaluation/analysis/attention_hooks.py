"""Matcher and correlation → which matches each layer's global query and global key listen to."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.errors import InputError
from transformatcher.models.attention import AdditiveAttention
from transformatcher.models.match2match import MatchToMatch
from transformatcher.models.rotary import Grid4

Seen = TypeVar("Seen")


@dataclass(frozen=True)
class Layer:
    """What one attention layer computed on its way; the matches of ``grid`` flattened in the order hs, ws, ht, wt."""

    index: int
    grid: Grid4
    alpha: Float[Tensor, "b heads t"]  # weights of the global query (Eq. 5), a distribution over the matches
    beta: Float[Tensor, "b heads t"]  # weights of the global key (Eq. 6)
    queries: Float[Tensor, "b heads t d"]  # rotated, as the global query sums them
    keys: Float[Tensor, "b heads t d"]  # rotated


def observe(
    refiner: nn.Module, corr: Float[Tensor, "b l hs ws ht wt"], look: Callable[[Layer], Seen]
) -> tuple[Float[Tensor, "b hs ws ht wt"], list[Seen]]:
    """Run a matcher on its plain path, block by block, and look at each attention layer as soon as it is done.

    It is the matcher's own forward pass, so the refined map is what it returns by itself. Nothing of a layer is kept
    but what ``look`` returns: at 17⁴ matches one layer's weights, queries and keys take 27 MB.
    """
    attentions = additive_layers(refiner)
    assert isinstance(refiner, MatchToMatch)
    hs, ws, ht, wt = corr.shape[2:]
    seen: list[Seen] = []
    before, refiner.path = refiner.path, "plain"
    with ExitStack() as stack:
        stack.callback(setattr, refiner, "path", before)
        for index, attention in enumerate(attentions):
            stack.enter_context(_listening(attention, index, (hs, ws, ht, wt), lambda layer: seen.append(look(layer))))
        refined = refiner(corr)
    return refined, seen


def additive_layers(refiner: nn.Module) -> list[AdditiveAttention]:
    """The attention layers of a matcher, or an error where it has none that sum the matches into one query and key."""
    blocks = list(refiner.blocks) if isinstance(refiner, MatchToMatch) else []
    attentions = [block.attention for block in blocks if isinstance(block.attention, AdditiveAttention)]
    if not attentions or len(attentions) != len(blocks):
        raise InputError("this model has no additive attention to look at; give --weights of one that has")
    return attentions


@dataclass
class _Record:
    """What the hooks of one layer catch during one call."""

    alpha: list[Tensor] = field(default_factory=list)
    beta: list[Tensor] = field(default_factory=list)
    rotated: list[Tensor] = field(default_factory=list)  # queries, then keys: both variants turn them in this order


@contextmanager
def _listening(attention: AdditiveAttention, index: int, grid: Grid4, done: Callable[[Layer], None]) -> Iterator[None]:
    """While this is open, every call of ``attention`` ends with a call of ``done``."""
    record = _Record()

    def weights_into(kept: list[Tensor]) -> Callable[..., None]:
        def keep(_module: nn.Module, _inputs: object, scores: Tensor) -> None:
            kept.append(rearrange((attention.scale * scores).softmax(dim=2), "b n t 1 -> b n t"))

        return keep

    def finish(_module: nn.Module, _inputs: object, _output: Tensor) -> None:
        queries, keys = record.rotated
        done(Layer(index, grid, record.alpha.pop(), record.beta.pop(), queries, keys))
        record.rotated.clear()

    hooks = [
        attention.to_q_score.register_forward_hook(weights_into(record.alpha)),
        attention.to_k_score.register_forward_hook(weights_into(record.beta)),
        attention.position.register_forward_hook(lambda _module, _inputs, turned: record.rotated.append(turned)),
        attention.register_forward_hook(finish),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()

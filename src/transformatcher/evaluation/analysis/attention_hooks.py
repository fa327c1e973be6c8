"""Refiner and correlation map → attention weights, queries and keys of every layer."""

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

Result = TypeVar("Result")


@dataclass(frozen=True)
class AttentionRecord:
    """What one attention layer computed; the t matches of ``grid`` are flattened in the order hs, ws, ht, wt."""

    index: int  # of the layer, from 0
    grid: Grid4
    alpha: Float[Tensor, "b heads t"]  # weights of the global query (Eq. 5), a distribution over the matches
    beta: Float[Tensor, "b heads t"]  # weights of the global key (Eq. 6)
    queries: Float[Tensor, "b heads t d"]  # rotated, as the global query sums them
    keys: Float[Tensor, "b heads t d"]  # rotated


def record_attention(
    refiner: nn.Module, corr: Float[Tensor, "b l hs ws ht wt"], reduce: Callable[[AttentionRecord], Result]
) -> tuple[Float[Tensor, "b hs ws ht wt"], list[Result]]:
    """Run a refiner with hooks on its attention layers.

    Args:
        refiner: match-to-match attention with additive layers. It runs its own forward pass, block by block, so the
            refined map is the one that it returns without hooks.
        corr: the correlation maps that go into it.
        reduce: called with the record of each layer as soon as the layer is done. Only what it returns is kept: the
            weights, queries and keys of one layer take 27 MB at 17⁴ matches.

    Returns:
        The refined map, and what ``reduce`` returned for each layer.
    """
    attentions = additive_layers(refiner)
    assert isinstance(refiner, MatchToMatch)
    hs, ws, ht, wt = corr.shape[2:]
    results: list[Result] = []
    backend = refiner.backend
    refiner.set_backend("eager")
    with ExitStack() as stack:
        stack.callback(refiner.set_backend, backend)
        for index, attention in enumerate(attentions):
            hooks = _hooks(attention, index, (hs, ws, ht, wt), lambda record: results.append(reduce(record)))
            stack.enter_context(hooks)
        refined = refiner(corr)
    return refined, results


def additive_layers(refiner: nn.Module) -> list[AdditiveAttention]:
    """The additive attention layers of a refiner (one global query and key each); an error where there are none."""
    blocks = list(refiner.blocks) if isinstance(refiner, MatchToMatch) else []
    attentions = [block.attention for block in blocks if isinstance(block.attention, AdditiveAttention)]
    if not attentions or len(attentions) != len(blocks):
        raise InputError("this model has no additive attention; give --weights of a model that has")
    return attentions


@dataclass
class _HookOutputs:
    """What the hooks of one layer collect during one call."""

    alpha: list[Tensor] = field(default_factory=list)
    beta: list[Tensor] = field(default_factory=list)
    rotated: list[Tensor] = field(default_factory=list)  # queries, then keys: both variants rotate them in this order


@contextmanager
def _hooks(
    attention: AdditiveAttention, index: int, grid: Grid4, on_record: Callable[[AttentionRecord], None]
) -> Iterator[None]:
    """In this context, every call of ``attention`` ends with a call of ``on_record``."""
    outputs = _HookOutputs()

    def append_weights(weights: list[Tensor]) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: object, scores: Tensor) -> None:
            weights.append(rearrange((attention.scale * scores).softmax(dim=2), "b n t 1 -> b n t"))

        return hook

    def finish(_module: nn.Module, _inputs: object, _output: Tensor) -> None:
        queries, keys = outputs.rotated
        on_record(AttentionRecord(index, grid, outputs.alpha.pop(), outputs.beta.pop(), queries, keys))
        outputs.rotated.clear()

    hooks = [
        attention.to_q_score.register_forward_hook(append_weights(outputs.alpha)),
        attention.to_k_score.register_forward_hook(append_weights(outputs.beta)),
        attention.position.register_forward_hook(lambda _module, _inputs, rotated: outputs.rotated.append(rotated)),
        attention.register_forward_hook(finish),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()

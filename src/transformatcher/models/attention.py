"""Matches → matches that have listened to all others, in time linear in their number (section 4.2, "Attention layer").

Additive attention sums all queries into one global query, meets every key with it, sums the results into one global
key, and meets every value with that. :class:`PaperAttention` is Eq. 5-6; :class:`ReleasedAttention` is what the
authors' code computes. They share their projections, their pooling and their output.
"""

from abc import abstractmethod

from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.errors import InputError
from transformatcher.models.rotary import Grid4, NoPosition, Position

Heads = Float[Tensor, "b heads t d"]
Mixed = Float[Tensor, "b heads t m"]


def pool(scores: Float[Tensor, "b heads t 1"], x: Heads) -> Float[Tensor, "b heads 1 d"]:
    """Σ_j softmax(scores)_j x_j: all matches summed into one global vector."""
    return (scores.softmax(dim=2) * x).sum(dim=2, keepdim=True)


def sum_neighbours(x: Heads) -> Float[Tensor, "b heads t half"]:
    """Channels 0 + 1, 2 + 3, …"""
    return reduce(x, "b n t (d two) -> b n t d", "sum", two=2)


class AdditiveAttention(nn.Module):
    """The frame of both variants: project, let the variant mix, project back.

    Args:
        dim: channels of a match.
        heads, head_dim: the paper's 8 × 4.
        mixed_dim: channels a head has after mixing.
        position: rotation of queries and keys.
    """

    def __init__(self, dim: int, heads: int, head_dim: int, mixed_dim: int, position: Position | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.scale = head_dim**-0.5  # τ
        self.position = position or NoPosition()
        self.to_qkv = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        # w_q, w_k and the output map of a head carry no head index in the paper: the heads of a layer share them.
        self.to_q_score = nn.Linear(head_dim, 1, bias=False)
        self.to_k_score = nn.Linear(mixed_dim, 1, bias=False)
        # DEVIATION: "an MLP" in the paper is one linear layer here, as in Fastformer and in the released code.
        self.to_update = nn.Linear(mixed_dim, head_dim)
        self.to_out = nn.Linear(heads * head_dim, dim)

    def forward(self, x: Float[Tensor, "b t dim"], grid: Grid4) -> Float[Tensor, "b t dim"]:
        """Matches of ``grid``, flattened in the order hs, ws, ht, wt → the attention's output, residual not added."""
        q, k, v = rearrange(self.to_qkv(x), "b t (three n d) -> three b n t d", three=3, n=self.heads)
        update, residual = self.mix(q, k, v, grid)
        heads = self.to_update(update) + residual  # (b, n, t, d)
        return self.to_out(rearrange(heads, "b n t d -> b t (n d)"))

    @abstractmethod
    def mix(self, q: Heads, k: Heads, v: Heads, grid: Grid4) -> tuple[Mixed, Heads]:
        """Queries, keys and values → what each value has learnt from the rest, and the query that stays beside it."""


class PaperAttention(AdditiveAttention):
    """Eq. 5-6 of the paper, with queries and keys rotated from the start."""

    def __init__(self, dim: int = 16, heads: int = 8, head_dim: int = 4, position: Position | None = None) -> None:
        super().__init__(dim, heads, head_dim, mixed_dim=head_dim, position=position)

    def mix(self, q: Heads, k: Heads, v: Heads, grid: Grid4) -> tuple[Mixed, Heads]:
        """H = K ⊙ global query; U = V ⊙ global key."""
        q, k = self.position(q, grid), self.position(k, grid)
        global_q = pool(self.scale * self.to_q_score(q), q)
        h = k * global_q
        global_k = pool(self.scale * self.to_k_score(h), h)
        return v * global_k, q


class ReleasedAttention(AdditiveAttention):
    """The authors' code: rotation only inside the sums, products folded to half their channels, raw keys summed."""

    def __init__(self, dim: int = 16, heads: int = 8, head_dim: int = 4, position: Position | None = None) -> None:
        if head_dim % 2:
            raise InputError(f"released attention folds couples of channels: head_dim {head_dim} must be even")
        super().__init__(dim, heads, head_dim, mixed_dim=head_dim // 2, position=position)

    def mix(self, q: Heads, k: Heads, v: Heads, grid: Grid4) -> tuple[Mixed, Heads]:
        """As Eq. 5-6, but scores come from unrotated vectors, and the global key sums keys that never met the query."""
        global_q = pool(self.scale * self.to_q_score(q), self.position(q, grid))
        h = sum_neighbours(k * global_q)
        global_k = pool(self.scale * self.to_k_score(h), self.position(k, grid))
        return sum_neighbours(v * global_k), q

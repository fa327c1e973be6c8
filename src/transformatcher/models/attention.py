"""Matches → matches by additive attention, in time linear in their number (section 4.2, "Attention layer").

Additive attention pools all queries into one global query, multiplies every key with it, pools the products into one
global key, and multiplies every value with that. :class:`PaperAttention` is Eq. 5-6; :class:`ReleasedAttention` is what
the authors' code computes. Both share projections, pooling and output.

By default the same function is computed by ``fused/`` and not by this code. To try a change here, subclass, or call
``model.set_backend("eager")``.
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
    """Σ_j softmax(scores)_j x_j: the weighted mean of all matches, a global vector."""
    return (scores.softmax(dim=2) * x).sum(dim=2, keepdim=True)


def sum_neighbours(x: Heads) -> Float[Tensor, "b heads t half"]:
    """Sums of neighbouring channels: 0 + 1, 2 + 3, …"""
    return reduce(x, "b n t (d two) -> b n t d", "sum", two=2)


class AdditiveAttention(nn.Module):
    """The base class of both variants: project, combine as the variant does, project back.

    Args:
        dim: channels of a match.
        heads, head_dim: number of heads and channels of each; the paper's are 8 × 4.
        mixed_dim: channels of a head after :meth:`mix`.
        position: rotation of queries and keys; None: there is none.
    """

    def __init__(self, dim: int, heads: int, head_dim: int, mixed_dim: int, position: Position | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.scale = head_dim**-0.5  # τ
        self.position = position or NoPosition()
        self.to_qkv = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        # w_q, w_k and the update have no head index in the paper: the heads of a layer share them.
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
        """Queries, keys and values → values times the global key, and the query that is added as a residual."""


class PaperAttention(AdditiveAttention):
    """Eq. 5-6 of the paper, with queries and keys rotated first."""

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
    """The authors' code. It rotates only what is pooled, sums neighbouring channels of products, and pools K itself."""

    def __init__(self, dim: int = 16, heads: int = 8, head_dim: int = 4, position: Position | None = None) -> None:
        if head_dim % 2:
            raise InputError(f"released attention sums neighbouring channels: head_dim {head_dim} must be even")
        super().__init__(dim, heads, head_dim, mixed_dim=head_dim // 2, position=position)

    def mix(self, q: Heads, k: Heads, v: Heads, grid: Grid4) -> tuple[Mixed, Heads]:
        """As Eq. 5-6, but scores are of vectors before rotation, and the global key pools K, not K ⊙ global query."""
        global_q = pool(self.scale * self.to_q_score(q), self.position(q, grid))
        h = sum_neighbours(k * global_q)
        global_k = pool(self.scale * self.to_k_score(h), self.position(k, grid))
        return sum_neighbours(v * global_k), q

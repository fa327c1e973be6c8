"""Matches → matches that have listened to each other by softmax attention: exactly, or by two estimates (Table 3).

The paper compares its additive attention with these three. They share projections, positions and output.
"""

import math
from abc import abstractmethod

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from transformatcher.errors import InputError
from transformatcher.models.rotary import Grid4, NoPosition, Position

Heads = Float[Tensor, "b heads t d"]
Shorter = Float[Tensor, "b heads s d"]

EPS = 1e-6  # of Performer's features: a sum of them must not vanish


def softmax_attention(q: Heads, k: Shorter, v: Shorter) -> Heads:
    """softmax(τ q kᵀ) v. The fused kernels never hold the t × s weights: a block at a time, again in the backward pass.

    On a GPU they take rows of a multiple of 16 bytes; zeros behind a row change nothing.
    """
    d = q.shape[-1]
    pad = -d % max(1, 16 // q.element_size())
    q, k, v = (F.pad(x, (0, pad)) if pad else x for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, scale=d**-0.5)[..., :d]


class SoftmaxAttention(nn.Module):
    """The frame of the three: project, rotate, let the kind mix, project back.

    Args:
        dim: channels of a match.
        heads, head_dim: as in the paper's own attention.
        position: rotation of queries and keys.
    """

    def __init__(self, dim: int, heads: int = 8, head_dim: int = 4, position: Position | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.position = position or NoPosition()
        self.to_qkv = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        self.to_out = nn.Linear(heads * head_dim, dim)

    def forward(self, x: Float[Tensor, "b t dim"], grid: Grid4) -> Float[Tensor, "b t dim"]:
        """Matches of ``grid``, flattened in the order hs, ws, ht, wt → the attention's output, residual not added."""
        self.check(grid)
        q, k, v = rearrange(self.to_qkv(x), "b t (three n d) -> three b n t d", three=3, n=self.heads)
        mixed = self.mix(self.position(q, grid), self.position(k, grid), v)
        return self.to_out(rearrange(mixed, "b n t d -> b t (n d)"))

    def check(self, grid: Grid4) -> None:
        """Refuse a grid that this kind cannot take."""

    @abstractmethod
    def mix(self, q: Heads, k: Heads, v: Heads) -> Heads:
        """Queries, keys and values → what each query has heard."""


class VanillaAttention(SoftmaxAttention):
    """Eq. 1: every match listens to every other. Memory grows with T, but time with T².

    Args:
        dim, heads, head_dim, position: see :class:`SoftmaxAttention`.
        max_matches: more are refused; at twelve cells an axis a layer already weighs 3.4 billion couples.
    """

    def __init__(
        self,
        dim: int,
        heads: int = 8,
        head_dim: int = 4,
        position: Position | None = None,
        max_matches: int = 12**4,
    ) -> None:
        super().__init__(dim, heads, head_dim, position)
        self.max_matches = max_matches

    def check(self, grid: Grid4) -> None:
        """Refuse more than ``max_matches``."""
        t = math.prod(grid)
        if t > self.max_matches:
            couples = self.heads * t**2
            raise InputError(
                f"vanilla attention over {_by(grid)} = {t:,} matches weighs {self.heads} heads × T² = {couples:.1e} "
                f"couples in every layer, which would fill {4 * couples / 2**30:,.1f} GiB a pair, and takes as long in "
                f"blocks; at most T = {self.max_matches:,} is taken: choose grid = {int(self.max_matches**0.25)} or a "
                "smaller image_size, or raise max_matches"
            )

    def mix(self, q: Heads, k: Heads, v: Heads) -> Heads:
        """softmax(τ Q Kᵀ) V."""
        return softmax_attention(q, k, v)


class LinformerAttention(SoftmaxAttention):
    """Keys and values of all matches are summed into a few by learned weights (Wang et al. 2020, "Linformer").

    One projection serves keys, values and all heads of a layer: their "key-value sharing". Theirs have a weight for
    each position of a sequence, so the grid is fixed.

    Args:
        dim, heads, head_dim, position: see :class:`SoftmaxAttention`.
        grid: the only one that it takes.
        rank: how many keys and values remain.
    """

    def __init__(
        self,
        dim: int,
        grid: Grid4,
        heads: int = 8,
        head_dim: int = 4,
        position: Position | None = None,
        rank: int = 64,
    ) -> None:
        super().__init__(dim, heads, head_dim, position)
        self.grid = grid
        self.shorten = nn.Linear(math.prod(grid), rank, bias=False)

    def check(self, grid: Grid4) -> None:
        """Refuse any grid but its own."""
        if grid != self.grid:
            raise InputError(
                f"linformer attention has a weight for each match of a grid of {_by(self.grid)}, got {_by(grid)}; "
                "build and train it with the image_size or grid that is needed"
            )

    def mix(self, q: Heads, k: Heads, v: Heads) -> Heads:
        """softmax(τ Q (E K)ᵀ) E V."""
        k, v = (einsum(self.shorten.weight, x, "s t, b n t d -> b n s d") for x in (k, v))
        return softmax_attention(q, k, v)


class PerformerAttention(SoftmaxAttention):
    """exp(q·k) as the mean of products of positive random features (FAVOR+; Choromanski et al. 2021, "Performers").

    The features are drawn when the module is made, each head its own, and never again; checkpoints hold them.

    Args:
        dim, heads, head_dim, position: see :class:`SoftmaxAttention`.
        features: of each query and key; more are more exact.
    """

    directions: Tensor  # (heads, features, head_dim)

    def __init__(
        self,
        dim: int,
        heads: int = 8,
        head_dim: int = 4,
        position: Position | None = None,
        features: int = 16,
    ) -> None:
        super().__init__(dim, heads, head_dim, position)
        self.register_buffer("directions", torch.stack([random_directions(features, head_dim) for _ in range(heads)]))

    def mix(self, q: Heads, k: Heads, v: Heads) -> Heads:
        """Φ(Q) (Φ(K)ᵀ V), normalised. Features take more memory than matches, so the backward pass makes them again."""
        return checkpoint(favor, q, k, v, self.directions, use_reentrant=False, preserve_rng_state=False)


def random_directions(m: int, d: int) -> Float[Tensor, "m d"]:
    """Gaussian vectors, except that each d of them are orthogonal, which makes the estimate surer."""
    blocks = [nn.init.orthogonal_(torch.empty(d, d)) for _ in range(-(-m // d))]
    return torch.cat(blocks)[:m] * torch.randn(m, d).norm(dim=1, keepdim=True)


def favor(q: Heads, k: Heads, v: Heads, directions: Float[Tensor, "heads m d"]) -> Heads:
    """Attention by features: a feature's factor that is common to all keys, or to one query, cancels out."""
    log_q, log_k = log_features(q, directions), log_features(k, directions)
    phi_q = (log_q - log_q.detach().amax(dim=-1, keepdim=True)).exp() + EPS
    phi_k = (log_k - log_k.detach().amax(dim=(-2, -1), keepdim=True)).exp() + EPS
    heard = phi_k.transpose(-1, -2) @ v  # (b, n, m, d)
    total = phi_k.sum(dim=2)[..., None]  # (b, n, m, 1)
    return (phi_q @ heard) / (phi_q @ total)


def log_features(x: Heads, directions: Float[Tensor, "heads m d"]) -> Float[Tensor, "b heads t m"]:
    """ω·x - ‖x‖²/2 of every direction ω, where x carries the root of τ."""
    x = x * x.shape[-1] ** -0.25
    return x @ directions.transpose(-1, -2) - x.square().sum(dim=-1, keepdim=True) / 2


def _by(grid: Grid4) -> str:
    return " × ".join(map(str, grid))

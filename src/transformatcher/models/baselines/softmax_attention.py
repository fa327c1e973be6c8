"""Matches → matches by softmax attention: exact, or by two approximations (Table 3).

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

EPS = 1e-6  # added to Performer's features, so that their sum is never zero


def softmax_attention(q: Heads, k: Shorter, v: Shorter) -> Heads:
    """softmax(τ q kᵀ) v by PyTorch's fused kernels, which never store the t × s weights.

    On a GPU they need rows of a multiple of 16 bytes; padding with zeros does not change the result.
    """
    d = q.shape[-1]
    pad = -d % max(1, 16 // q.element_size())
    q, k, v = (F.pad(x, (0, pad)) if pad else x for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, scale=d**-0.5)[..., :d]


class SoftmaxAttention(nn.Module):
    """The base class of the three: project, rotate, attend, project back.

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
        """Raise for a grid that this attention cannot process."""

    @abstractmethod
    def mix(self, q: Heads, k: Heads, v: Heads) -> Heads:
        """Queries, keys and values → the attention's output for each query."""


class VanillaAttention(SoftmaxAttention):
    """Eq. 1: every match attends to every other. Memory grows with T, but time with T².

    Args:
        dim, heads, head_dim, position: see :class:`SoftmaxAttention`.
        max_matches: more are an error; with twelve cells per axis, a layer already computes 3.4 billion weights.
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
        """Raise for more than ``max_matches``."""
        t = math.prod(grid)
        if t > self.max_matches:
            weights = self.heads * t**2
            raise InputError(
                f"vanilla attention over {_by(grid)} = {t:,} matches has {self.heads} heads × T² = {weights:.1e} "
                f"weights in every layer, {4 * weights / 2**30:,.1f} GiB for each pair if they were stored; "
                f"the limit is T = {self.max_matches:,}: choose grid = {int(self.max_matches**0.25)} or a "
                "smaller image_size, or raise max_matches"
            )

    def mix(self, q: Heads, k: Heads, v: Heads) -> Heads:
        """softmax(τ Q Kᵀ) V."""
        return softmax_attention(q, k, v)


class LinformerAttention(SoftmaxAttention):
    """A learned projection reduces the keys and values of all matches to a few (Wang et al. 2020, "Linformer").

    Keys, values and all heads of a layer share one projection (their "key-value sharing"). It has a weight for each
    position of a sequence, so the grid is fixed.

    Args:
        dim, heads, head_dim, position: see :class:`SoftmaxAttention`.
        grid: of the matches; the weights fit no other.
        rank: number of keys and values after the projection.
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
        """Raise for any other grid."""
        if grid != self.grid:
            raise InputError(
                f"linformer attention has a weight for each match of a grid of {_by(self.grid)}, got {_by(grid)}; "
                "build and train it with the image_size or grid that you need"
            )

    def mix(self, q: Heads, k: Heads, v: Heads) -> Heads:
        """softmax(τ Q (E K)ᵀ) E V."""
        k, v = (einsum(self.shorten.weight, x, "s t, b n t d -> b n s d") for x in (k, v))
        return softmax_attention(q, k, v)


class PerformerAttention(SoftmaxAttention):
    """exp(q·k) as the mean of products of positive random features (FAVOR+; Choromanski et al. 2021, "Performers").

    Each head has its own random directions. They are drawn once, at construction, and are part of checkpoints.

    Args:
        dim, heads, head_dim, position: see :class:`SoftmaxAttention`.
        features: number of random features of each query and key; more give a better approximation.
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
        """Φ(Q) (Φ(K)ᵀ V), normalised. Features need more memory than matches, so the backward pass recomputes them."""
        return checkpoint(favor, q, k, v, self.directions, use_reentrant=False, preserve_rng_state=False)


def random_directions(m: int, d: int) -> Float[Tensor, "m d"]:
    """Gaussian vectors in blocks of d that are orthogonal to each other, which reduces the variance of the estimate."""
    blocks = [nn.init.orthogonal_(torch.empty(d, d)) for _ in range(-(-m // d))]
    return torch.cat(blocks)[:m] * torch.randn(m, d).norm(dim=1, keepdim=True)


def favor(q: Heads, k: Heads, v: Heads, directions: Float[Tensor, "heads m d"]) -> Heads:
    """Attention by random features. Factors common to all keys, or to one query, cancel out, hence the subtractions."""
    log_q, log_k = log_features(q, directions), log_features(k, directions)
    phi_q = (log_q - log_q.detach().amax(dim=-1, keepdim=True)).exp() + EPS
    phi_k = (log_k - log_k.detach().amax(dim=(-2, -1), keepdim=True)).exp() + EPS
    summed = phi_k.transpose(-1, -2) @ v  # (b, n, m, d)
    total = phi_k.sum(dim=2)[..., None]  # (b, n, m, 1)
    return (phi_q @ summed) / (phi_q @ total)


def log_features(x: Heads, directions: Float[Tensor, "heads m d"]) -> Float[Tensor, "b heads t m"]:
    """ω·x - ‖x‖²/2 for each direction ω, where x is multiplied by the root of τ first."""
    x = x * x.shape[-1] ** -0.25
    return x @ directions.transpose(-1, -2) - x.square().sum(dim=-1, keepdim=True) / 2


def _by(grid: Grid4) -> str:
    return " × ".join(map(str, grid))

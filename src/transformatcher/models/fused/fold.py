"""Weights of a block → the small matrices that the passes of ``passes.py`` need.

Notation: ``x̂`` is a match after LayerNorm without its gain and shift, ``[x̂, 1]`` the same with a one appended, and
``Q, K, V`` are matrices that act on ``[x̂, 1]``: LayerNorm's gain and shift and the projection together are one affine
map. τ, w_q, w_k and W_O are the paper's (Eq. 5-6). Everything here is small and differentiable by autograd.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import cast

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.models.attention import AdditiveAttention, ReleasedAttention
from transformatcher.models.block import Block
from transformatcher.models.fused.passes import Ffn, PositionFeatures, RotatedTerm, perpendicular
from transformatcher.models.rotary import AxialRotary, Checkerboard, Grid4, Position

Affine = Float[Tensor, "heads e d1"]  # one matrix for each head, acting on [x̂, 1]


def position_features(position: Position, grid: Grid4) -> PositionFeatures:
    """What a position module does on ``grid``, as data. The result for the last grid is cached in the module."""
    if torch.compiler.is_compiling():  # while a graph is recorded, tensors have no values that could be cached
        return _position_features(position, grid)
    device = position.angle_of_plane.device if isinstance(position, AxialRotary) else None
    return position.feature_cache.get((grid, device), lambda: _position_features(position, grid))


def _position_features(position: Position, grid: Grid4) -> PositionFeatures:
    if not isinstance(position, AxialRotary):
        return PositionFeatures("sign" if isinstance(position, Checkerboard) else "none", grid)
    angles = position.angle_of_plane.flatten(1)  # (4, planes); one of the four axes is not zero
    axes = (angles != 0).int().argmax(dim=0)
    return PositionFeatures("rotary", grid, rates=angles.sum(dim=0), axes=axes, planes=position.planes)


def position_key(position: Position) -> Hashable:
    """Equal for position modules that do the same."""
    return (type(position), getattr(position, "settings", ()))


@dataclass(frozen=True)
class FoldedAttention:
    """A LayerNorm and the additive attention after it, as matrices on ``[x̂, 1]``."""

    q: Affine
    k: Affine
    v: Affine
    w_q: Float[Tensor, " e"]  # τ w_q
    w_k: Float[Tensor, " e"]  # τ w_k; in the released variant each weight is repeated for two channels
    update_weight: Float[Tensor, "e e"]
    update_bias: Float[Tensor, " e"]
    out_weight: Float[Tensor, "d heads e"]
    out_bias: Float[Tensor, " d"]
    released: bool
    rotary: bool

    @property
    def rotate_scores(self) -> bool:
        """The paper computes scores from rotated vectors, the released code from vectors before rotation."""
        return not self.released

    def score_rows(self, matrix: Affine, weights: Float[Tensor, "*b heads e"]) -> Float[Tensor, "*b j d1"]:
        """Rows for :func:`pool`, such that a head's score is ``Σ_c weights_c (matrix x)_c``, rotated if needed.

        After rotation by θ, two channels (0, 1) score ``cos θ (w0 m0 + w1 m1) + sin θ (w1 m0 - w0 m1)``.
        """
        if not self.rotary:
            return einsum(weights, matrix, "... n e, n e d -> ... n d")
        if not self.rotate_scores:  # the first row of a head holds its score; the others are for pooling only
            first = einsum(weights, matrix, "... n e, n e d -> ... n d")
            rows = torch.zeros(
                *first.shape[:-1], matrix.shape[1], first.shape[-1], dtype=first.dtype, device=first.device
            )
            rows[..., 0, :] = first
            return rows.flatten(-3, -2)
        w0, w1 = weights[..., 0::2, None], weights[..., 1::2, None]
        m0, m1 = matrix[:, 0::2], matrix[:, 1::2]
        return torch.stack([w0 * m0 + w1 * m1, w1 * m0 - w0 * m1], dim=-2).flatten(-4, -2)

    def pooled(self, sums: Float[Tensor, "b j d1"], matrix: Affine) -> Float[Tensor, "b heads e"]:
        """Weighted sums of matches, from :func:`pool` → the same sums of their rotated vectors ``matrix x``."""
        heads = len(matrix)
        if not self.rotary:
            return einsum(sums, matrix, "b n d, n e d -> b n e")
        cos, sin = rearrange(sums, "b (n p two) d -> two b n p 1 d", n=heads, two=2)
        planes = rearrange(matrix, "n (p two) d -> n p two d", two=2)
        quarter_turned = rearrange(perpendicular(matrix), "n (p two) d -> n p two d", two=2)
        return (cos * planes + sin * quarter_turned).sum(dim=-1).flatten(-2)

    def linear(self, global_k: Float[Tensor, "b heads e"]) -> Float[Tensor, "b d d1"]:
        """The part of the attention's output that is linear in ``[x̂, 1]`` once the global key is known."""
        update = einsum(self.out_weight, self.update_weight, global_k, self.v, "d n f, f e, b n e, n e c -> b d c")
        bias = einsum(self.out_weight, self.update_bias, "d n e, e -> d") + self.out_bias
        if self.released:  # its residual query is not rotated, so it is linear, too
            update = update + einsum(self.out_weight, self.q, "d n e, n e c -> d c")
        return torch.cat([update[..., :-1], update[..., -1:] + bias[:, None]], dim=-1)

    def rotated_term(self, positions: PositionFeatures) -> RotatedTerm | None:
        """The rotated query that the paper's variant adds to the update; None in the released variant."""
        if self.released:
            return None
        if positions.kind == "rotary":
            return RotatedTerm(inner=self.q.flatten(0, 1), out=self.out_weight.flatten(1))
        inner = einsum(self.out_weight, self.q, "d n e, n e c -> d c")
        return RotatedTerm(inner=inner, out=torch.eye(len(inner), dtype=inner.dtype, device=inner.device))


def fold_attention(norm: nn.LayerNorm, attention: AdditiveAttention) -> FoldedAttention:
    """LayerNorm and the attention after it → matrices."""
    weight = attention.to_qkv.weight  # (3·heads·e, d)
    affine = torch.cat([weight * norm.weight, (weight @ norm.bias)[:, None]], dim=1)
    q, k, v = rearrange(affine, "(three n e) d -> three n e d", three=3, n=attention.heads)
    released = isinstance(attention, ReleasedAttention)
    w_k, update_weight = attention.to_k_score.weight[0], attention.to_update.weight
    if released:  # a weight on the sum of two channels is the same weight on each of the two
        w_k, update_weight = w_k.repeat_interleave(2, dim=0), update_weight.repeat_interleave(2, dim=1)
    return FoldedAttention(
        q=q,
        k=k,
        v=v,
        w_q=attention.scale * attention.to_q_score.weight[0],
        w_k=attention.scale * w_k,
        update_weight=update_weight,
        update_bias=attention.to_update.bias,
        out_weight=rearrange(attention.to_out.weight, "d (n e) -> d n e", n=attention.heads),
        out_bias=attention.to_out.bias,
        released=released,
        rotary=isinstance(attention.position, AxialRotary),
    )


def fold_ffn(norm: nn.LayerNorm, ffn: nn.Sequential) -> Ffn:
    """LayerNorm and the MLP after it → matrices."""
    first, second = cast(nn.Linear, ffn[0]), cast(nn.Linear, ffn[2])
    return Ffn(first.weight * norm.weight, first.bias + first.weight @ norm.bias, second.weight, second.bias)


def fold_block(block: Block) -> tuple[FoldedAttention, Ffn]:
    """Attention and MLP of a block → matrices, cached only if the block's weights are frozen.

    Nothing else shows reliably whether weights have changed: torch counts changes in ``_version``, but not all of them
    (on CUDA not those of ``torch._foreach_lerp_``, which averages weights).
    """

    def fold() -> tuple[FoldedAttention, Ffn]:
        attention = fold_attention(block.norm_attention, additive_attention(block))
        return attention, fold_ffn(block.norm_ffn, block.ffn)

    if not block.weights_frozen:
        return fold()
    weight = block.norm_ffn.weight
    folded: tuple[FoldedAttention, Ffn] = block.fused_cache.get((weight.device, weight.dtype), fold)
    return folded


def additive_attention(block: Block) -> AdditiveAttention:
    """The attention of a block that :func:`~transformatcher.models.fused.dispatch.can_fuse` has accepted."""
    assert isinstance(block.attention, AdditiveAttention)
    return block.attention

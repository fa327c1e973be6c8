"""A block's weights → the three passes of ``kernels/`` (see there). Small matrices only; gradients flow by autograd.

Notation: ``x̂`` a normalised match, ``[x̂, 1]`` with a one behind it, and ``Q, K, V`` matrices that act on it, so that
LayerNorm's gain and shift and the projections are one affine map. τ, w_q, w_k, W_O as in the paper.
"""

import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Literal, cast

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.coords import grid_norm
from transformatcher.models.attention import AdditiveAttention, PaperAttention, ReleasedAttention
from transformatcher.models.block import Block
from transformatcher.models.fused import passes
from transformatcher.models.fused.passes import Ffn, Placement, Turned, perpendicular
from transformatcher.models.rotary import AxialRotary, Checkerboard, Grid4, NoPosition, Position
from transformatcher.schema import Flow, Size

PathName = Literal["auto", "fast", "plain"]
GaussianOn = Literal["logits", "probabilities", "none"]
Affine = Float[Tensor, "heads e d1"]  # rows of one head together


def placement(position: Position, grid: Grid4) -> Placement:
    """What a position module does on a grid, as data; the last one is kept, with all that was made of it."""
    angles = position.angle_of_plane.flatten(1) if isinstance(position, AxialRotary) else None  # (4, planes)
    if torch.compiler.is_compiling():  # while a graph is recorded, tensors are no values to keep
        return _place(position, grid, angles)
    key = (grid, None if angles is None else angles.device)
    if position.last is None or position.last[0] != key:
        with torch.inference_mode(mode=False):  # what is kept may serve training later
            position.last = (key, _place(position, grid, angles))
    kept: Placement = position.last[1]
    return kept


def _place(position: Position, grid: Grid4, angles: Float[Tensor, "4 planes"] | None) -> Placement:
    if angles is None:
        return Placement("sign" if isinstance(position, Checkerboard) else "none", grid)
    assert isinstance(position, AxialRotary)
    axes = (angles != 0).int().argmax(dim=0)
    return Placement("rotary", grid, rates=angles.sum(dim=0), axes=axes, planes=position.planes)


def position_key(position: Position) -> Hashable:
    """Equal for modules that place matches alike."""
    return (type(position), getattr(position, "settings", ()))


def supported(attention: nn.Module) -> bool:
    """Whether the passes can stand for this attention."""
    return type(attention) in (PaperAttention, ReleasedAttention) and type(attention.position) in (
        AxialRotary,
        Checkerboard,
        NoPosition,
    )


@dataclass(frozen=True)
class FoldedAttention:
    """An attention layer behind its LayerNorm, as matrices on ``[x̂, 1]``."""

    q: Affine
    k: Affine
    v: Affine
    w_q: Float[Tensor, " e"]  # τ w_q
    w_k: Float[Tensor, " e"]  # τ w_k; in the released variant each weight stands for two channels
    update_weight: Float[Tensor, "e e"]
    update_bias: Float[Tensor, " e"]
    out_weight: Float[Tensor, "d heads e"]
    out_bias: Float[Tensor, " d"]
    released: bool
    rotary: bool

    @property
    def turn_scores(self) -> bool:
        """The paper scores rotated vectors, the released code raw ones."""
        return not self.released

    def score_rows(self, matrix: Affine, weights: Float[Tensor, "*b heads e"]) -> Float[Tensor, "*b j d1"]:
        """Rows for :func:`pool`, so that a head's score is ``Σ_c weights_c (matrix x)_c``, rotated if that is to be.

        Rotated, a couple of channels (0, 1) at angle θ scores ``cos θ (w0 m0 + w1 m1) + sin θ (w1 m0 - w0 m1)``.
        """
        if not self.rotary:
            return einsum(weights, matrix, "... n e, n e d -> ... n d")
        if not self.turn_scores:  # one row a head scores, the others only pool
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
        """Sums of matches → the sum of their rotated vectors ``matrix x``."""
        heads = len(matrix)
        if not self.rotary:
            return einsum(sums, matrix, "b n d, n e d -> b n e")
        cos, sin = rearrange(sums, "b (n p two) d -> two b n p 1 d", n=heads, two=2)
        couples = rearrange(matrix, "n (p two) d -> n p two d", two=2)
        turned = rearrange(perpendicular(matrix), "n (p two) d -> n p two d", two=2)
        return (cos * couples + sin * turned).sum(dim=-1).flatten(-2)

    def linear(self, global_k: Float[Tensor, "b heads e"]) -> Float[Tensor, "b d d1"]:
        """Everything of the output that is linear in the matches once the global key is known."""
        met = einsum(self.out_weight, self.update_weight, global_k, self.v, "d n f, f e, b n e, n e c -> b d c")
        bias = einsum(self.out_weight, self.update_bias, "d n e, e -> d") + self.out_bias
        if self.released:  # the query beside it is not rotated: it is linear too
            met = met + einsum(self.out_weight, self.q, "d n e, n e c -> d c")
        return torch.cat([met[..., :-1], met[..., -1:] + bias[:, None]], dim=-1)

    def turned(self, place: Placement) -> Turned | None:
        """The rotated query beside the update, in the paper's variant."""
        if self.released:
            return None
        if place.kind == "rotary":
            return Turned(inner=self.q.flatten(0, 1), out=self.out_weight.flatten(1))
        inner = einsum(self.out_weight, self.q, "d n e, n e c -> d c")
        return Turned(inner=inner, out=torch.eye(len(inner), dtype=inner.dtype, device=inner.device))


def fold_attention(norm: nn.LayerNorm, attention: AdditiveAttention) -> FoldedAttention:
    """LayerNorm and attention → matrices."""
    weight = attention.to_qkv.weight  # (3·heads·e, d)
    affine = torch.cat([weight * norm.weight, (weight @ norm.bias)[:, None]], dim=1)
    q, k, v = rearrange(affine, "(three n e) d -> three n e d", three=3, n=attention.heads)
    released = isinstance(attention, ReleasedAttention)
    w_k, update_weight = attention.to_k_score.weight[0], attention.to_update.weight
    if released:  # what acts on sums of couples acts alike on both channels
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


def fold_block(block: Block) -> tuple[FoldedAttention, Ffn]:
    """Both halves of a block; kept for the next call only where the weights are declared final.

    Nothing else tells that weights have changed: torch counts changes in ``_version``, but not all of them (on CUDA,
    ``torch._foreach_lerp_``, which averages weights, is not counted).
    """
    if not block.final:
        return fold_attention(block.norm_attention, _additive(block)), fold_ffn(block.norm_ffn, block.ffn)
    where = (block.norm_ffn.weight.device, block.norm_ffn.weight.dtype)
    if block.folded is None or block.folded[0] != where:
        with torch.inference_mode(mode=False):  # what is kept may be part of a gradient's way later
            folded = fold_attention(block.norm_attention, _additive(block)), fold_ffn(block.norm_ffn, block.ffn)
        block.folded = (where, folded)
    return block.folded[1]


def fold_ffn(norm: nn.LayerNorm, ffn: nn.Sequential) -> Ffn:
    """LayerNorm and MLP → matrices."""
    first, second = cast(nn.Linear, ffn[0]), cast(nn.Linear, ffn[2])
    return Ffn(first.weight * norm.weight, first.bias + first.weight @ norm.bias, second.weight, second.bias)


# ---------------------------------------------------------------- choosing and running the passes


@dataclass(frozen=True)
class Passes:
    """The three passes on one device."""

    embed: Callable[..., Tensor]
    pool: Callable[..., Tensor]
    update: Callable[..., Tensor]


def triton_runs_on(tensor: Tensor) -> bool:
    """Whether Triton kernels can take this tensor: on CUDA where Triton is installed, or under its interpreter."""
    if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16) or find_spec("triton") is None:
        return False
    return tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"


def kernel_wanted(path: PathName, tensor: Tensor) -> bool:
    """Whether a stage takes its Triton kernel: on CUDA unless told not to; under the interpreter only if told to."""
    return path != "plain" and triton_runs_on(tensor) and (tensor.is_cuda or path == "fast")


def _widths(block: Block) -> tuple[int, int, int]:
    """Channels of a match, of all heads together, and of the MLP's hidden layer."""
    first = cast(nn.Linear, block.ffn[0])
    return first.in_features, _additive(block).to_out.in_features, first.out_features


def choose_passes(corr: Float[Tensor, "b l t"], blocks: Sequence[Block]) -> Passes:
    """Triton where it runs and the widths suit it, with bfloat16 products for a bfloat16 correlation; else torch."""
    widths = [_widths(block) for block in blocks]
    if triton_runs_on(corr):
        from transformatcher.models.fused import triton_common, triton_ends, triton_pool, triton_update

        if all(triton_common.fits(*width) for width in widths):
            low = corr.dtype != torch.float32
            return Passes(
                partial(triton_ends.embed, low=low),
                partial(triton_pool.pool, low=low),
                partial(triton_update.update, low=low),
            )
    return Passes(passes.embed, passes.pool, passes.update)


def correlate(
    src: Sequence[Tensor], trg: Sequence[Tensor], src_grid: Size, trg_grid: Size, *, relu_first: bool
) -> Float[Tensor, "b l hs ws ht wt"]:
    """:class:`transformatcher.models.correlation.MultiLevelCorrelation`, a kernel a layer.

    Coarser layers are correlated on their own grid and resized by two matrix products. Resizing features instead gives
    the same map by linearity, except that the ReLU then comes last: ``relu_first`` says which.
    """
    from transformatcher.models.fused.triton_correlate import cosine_map

    maps = []
    for a, b in zip(src, trg, strict=True):
        if tuple(a.shape[2:]) == src_grid and tuple(b.shape[2:]) == trg_grid:
            maps.append(cosine_map(a, b, relu=True, dtype=a.dtype))
            continue
        up_src, up_trg = (
            torch.kron(*(interpolation_matrix(n, m, like=a.float()) for n, m in zip(f.shape[2:], grid, strict=True)))
            for f, grid in ((a, src_grid), (b, trg_grid))
        )
        coarse = cosine_map(a, b, relu=relu_first, dtype=torch.float32)
        maps.append((up_src @ coarse @ up_trg.T).relu().to(a.dtype))
    return torch.stack(maps, dim=1).reshape(len(src[0]), len(src), *src_grid, *trg_grid)


def _additive(block: Block) -> AdditiveAttention:
    assert isinstance(block.attention, AdditiveAttention)  # supported() said so
    return block.attention


def refine(
    embed: nn.Linear,
    blocks: Sequence[Block],
    score: nn.Linear,
    corr: Float[Tensor, "b l hs ws ht wt"],
    vectors: Float[Tensor, "d t"] | None = None,
) -> Float[Tensor, "b hs ws ht wt"]:
    """The whole matcher, from correlation to refined map; ``vectors`` are added to the matches."""
    b, _, hs, ws, ht, wt = corr.shape
    flat = corr.flatten(2)  # (b, l, t)
    run = choose_passes(flat, blocks)
    x = run.embed(flat, embed.weight, embed.bias)
    if vectors is not None:
        x = x + vectors
    places: dict[Hashable, Placement] = {}  # blocks usually share theirs
    for block in blocks:
        position = _additive(block).position
        key = position_key(position)
        place = places[key] = places.get(key) or placement(position, (hs, ws, ht, wt))
        folded, ffn = fold_block(block)
        x = _refine_once(x, folded, ffn, place, run)
    return (score.weight @ x + score.bias).reshape(b, hs, ws, ht, wt)


def _refine_once(x: Float[Tensor, "b d t"], folded: FoldedAttention, ffn: Ffn, place: Placement, run: Passes) -> Tensor:
    heads = len(folded.q)
    pool = partial(run.pool, x, place=place, heads=heads, turn_scores=folded.turn_scores)
    w_q = folded.w_q.expand(x.shape[0], heads, -1)
    global_q = folded.pooled(pool(folded.score_rows(folded.q, w_q)), folded.q)
    global_k = folded.pooled(pool(folded.score_rows(folded.k, folded.w_k * global_q)), folded.k)
    if not folded.released:  # the paper sums keys that met the query
        global_k = global_k * global_q
    return run.update(x, folded.linear(global_k), place, folded.turned(place), ffn)


def read_out(
    refined: Float[Tensor, "b hs ws ht wt"], upsample: int, *, sigma: float, temperature: float, gaussian: GaussianOn
) -> Flow:
    """:class:`transformatcher.models.flow.KernelSoftArgmax` in one kernel; only source axes are upsampled in memory."""
    from transformatcher.models.fused import triton_ends

    refined = refined.float()
    b, *sizes = refined.shape
    up = [interpolation_matrix(n, upsample * n, like=refined) for n in sizes]
    hs, ws, ht, wt = (upsample * n for n in sizes)
    rows = torch.einsum("ih,bhwkl->biwkl", up[0], refined)
    rows = torch.einsum("jw,biwkl->bijkl", up[1], rows).reshape(b, hs * ws, *sizes[2:])
    cells = grid_norm((ht, wt), like=refined)
    flow, peak = triton_ends.read_out(
        rows, up[2], up[3], (cells[:, 0, 1].contiguous(), cells[0, :, 0].contiguous()),
        sigma=sigma, temperature=temperature, gaussian=gaussian,
    )  # fmt: skip
    return Flow(trg_norm=flow.reshape(b, hs, ws, 2), peak=peak.reshape(b, hs, ws))


def interpolation_matrix(n: int, m: int, like: Tensor) -> Float[Tensor, "m n"]:
    """The linear map that interpolates n values to m, end points kept."""
    eye = torch.eye(n, dtype=like.dtype, device=like.device)
    return F.interpolate(eye[None], size=m, mode="linear", align_corners=True)[0].T

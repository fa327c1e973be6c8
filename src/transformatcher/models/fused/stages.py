"""The three stages of the model in their fused form: correlation, match-to-match attention, read-out."""

from collections.abc import Hashable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.coords import grid_norm
from transformatcher.models.block import Block
from transformatcher.models.fused.dispatch import Passes, choose_passes
from transformatcher.models.fused.fold import (
    FoldedAttention,
    additive_attention,
    fold_block,
    position_features,
    position_key,
)
from transformatcher.models.fused.passes import Ffn, PositionFeatures, Tokens
from transformatcher.schema import Flow, KernelOn, Size


def correlate(
    src: Sequence[Tensor], trg: Sequence[Tensor], src_grid: Size, trg_grid: Size, *, relu_first: bool
) -> Float[Tensor, "b l hs ws ht wt"]:
    """:class:`~transformatcher.models.correlation.MultiLevelCorrelation` with one Triton kernel for each layer.

    Coarser layers are correlated on their own grid, then resized by two matrix products. To resize the features
    instead is the same linear map, except that the ReLU then comes last: ``relu_first`` tells which of the two to do.
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


def refine(
    embed: nn.Linear,
    blocks: Sequence[Block],
    score: nn.Linear,
    corr: Float[Tensor, "b l hs ws ht wt"],
    position_vectors: Float[Tensor, "d t"] | None = None,
) -> Float[Tensor, "b hs ws ht wt"]:
    """:class:`~transformatcher.models.match2match.MatchToMatch` by three passes for each block.

    ``position_vectors`` are added to the embedded matches.
    """
    b, _, hs, ws, ht, wt = corr.shape
    flat = corr.flatten(2)  # (b, l, t)
    run = choose_passes(flat, blocks)
    x = run.embed(flat, embed.weight, embed.bias)  # (b, d, t)
    if position_vectors is not None:
        x = x + position_vectors
    known: dict[Hashable, PositionFeatures] = {}  # all blocks usually have the same positions
    for block in blocks:
        position = additive_attention(block).position
        key = position_key(position)
        positions = known[key] = known.get(key) or position_features(position, (hs, ws, ht, wt))
        folded, ffn = fold_block(block)
        x = _run_block(x, folded, ffn, positions, run)
    return (score.weight @ x + score.bias).reshape(b, hs, ws, ht, wt)


def _run_block(x: Tokens, folded: FoldedAttention, ffn: Ffn, positions: PositionFeatures, run: Passes) -> Tokens:
    heads = len(folded.q)
    pool = partial(run.pool, x, positions=positions, heads=heads, rotate_scores=folded.rotate_scores)
    w_q = folded.w_q.expand(x.shape[0], heads, -1)
    global_q = folded.pooled(pool(folded.score_rows(folded.q, w_q)), folded.q)
    global_k = folded.pooled(pool(folded.score_rows(folded.k, folded.w_k * global_q)), folded.k)
    if not folded.released:  # the paper sums K ⊙ global query (Eq. 6), the released code K alone
        global_k = global_k * global_q
    return run.update(x, folded.linear(global_k), positions, folded.rotated_term(positions), ffn)


def read_out(
    refined: Float[Tensor, "b hs ws ht wt"],
    upsample: int,
    *,
    kernel_sigma: float,
    temperature: float,
    kernel_on: KernelOn,
) -> Flow:
    """:class:`~transformatcher.models.flow.KernelSoftArgmax` in one Triton kernel.

    Only the source axes are upsampled in memory; the upsampled target grid exists in registers alone.
    """
    from transformatcher.models.fused import triton_readout

    refined = refined.float()
    b, *sizes = refined.shape
    up = [interpolation_matrix(n, upsample * n, like=refined) for n in sizes]
    hs, ws, ht, wt = (upsample * n for n in sizes)
    rows = torch.einsum("ih,bhwkl->biwkl", up[0], refined)
    rows = torch.einsum("jw,biwkl->bijkl", up[1], rows).reshape(b, hs * ws, *sizes[2:])
    cells = grid_norm((ht, wt), like=refined)
    flow, peak = triton_readout.read_out(
        rows, up[2], up[3], (cells[:, 0, 1].contiguous(), cells[0, :, 0].contiguous()),
        kernel_sigma=kernel_sigma, temperature=temperature, kernel_on=kernel_on,
    )  # fmt: skip
    return Flow(trg_norm=flow.reshape(b, hs, ws, 2), peak=peak.reshape(b, hs, ws))


def interpolation_matrix(n: int, m: int, like: Tensor) -> Float[Tensor, "m n"]:
    """The matrix that interpolates n values linearly to m, keeping the end points (``align_corners``)."""
    eye = torch.eye(n, dtype=like.dtype, device=like.device)
    return F.interpolate(eye[None], size=m, mode="linear", align_corners=True)[0].T

"""Matches → matches: the passes of a block in PyTorch, for any device. The Triton kernels are tested against them."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

EPS = 1e-5  # of LayerNorm
BLOCK = 16384  # matches at a time on a CPU: the hidden layer of their MLP then takes 4 MB

Grid4 = tuple[int, int, int, int]
Tokens = Float[Tensor, "b d t"]


@dataclass(frozen=True)
class PositionFeatures:
    """How positions rotate the queries and keys of the matches of ``grid``.

    ``none``: not at all. ``sign``: by the checkerboard (-1)^(ys+xs+yt+xt). ``rotary``: feature j of a match is the
    cosine (j even) or sine (j odd) of an angle that is proportional to the match's coordinate on one axis. For each
    plane, ``axes`` gives that axis and ``rates`` the radians per cell.
    """

    kind: Literal["none", "sign", "rotary"]
    grid: Grid4
    rates: Float[Tensor, " planes"] | None = None
    axes: Int[Tensor, " planes"] | None = None
    planes: tuple[tuple[int, float], ...] = ()  # (axis, rate) as Python numbers, for export

    cache: dict[Any, Any] = field(default_factory=dict, compare=False)  # feature tables by device

    def table(self, dtype: torch.dtype) -> Float[Tensor, "j n"]:
        """Rotary features by coordinate: row j holds feature j at the cells 0, 1, … of its own axis."""
        assert self.rates is not None
        steps = torch.arange(max(self.grid), dtype=torch.float64, device=self.rates.device)
        angles = self.rates.double()[:, None] * steps
        return torch.stack([angles.cos(), angles.sin()], dim=1).flatten(0, 1).to(dtype)

    def features(self, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "j t"]:
        """The features of all matches, in the order hs, ws, ht, wt; one row of ones or signs if not rotary."""
        if (dtype, device) not in self.cache:
            with torch.inference_mode(mode=False):  # cached tensors may be used in training later
                self.cache[dtype, device] = self._features(dtype, device)
        features: Tensor = self.cache[dtype, device]
        return features

    def _features(self, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "j t"]:
        if self.planes and torch.compiler.is_compiling():
            return self._features_for_export(dtype, device)
        coordinates = torch.cartesian_prod(*(torch.arange(n, device=device) for n in self.grid)).T  # (4, t)
        if self.kind == "rotary":
            assert self.axes is not None
            table = self.table(dtype)
            return table.gather(1, coordinates[self.axes.repeat_interleave(2, dim=0)])
        if self.kind == "sign":
            return (1 - 2 * (coordinates.sum(dim=0) % 2)).to(dtype)[None]
        return torch.ones(1, coordinates.shape[1], dtype=dtype, device=device)

    def _features_for_export(self, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "j t"]:
        """Rotary features from small constants and basic operations, which every exporter supports."""
        parts, order = [], []
        for axis, n in enumerate(self.grid):
            own = [(plane, rate) for plane, (where, rate) in enumerate(self.planes) if where == axis]
            rows = [[f(rate * step) for step in range(n)] for _, rate in own for f in (math.cos, math.sin)]
            shape = [len(rows), *(n if other == axis else 1 for other in range(4))]
            values = torch.tensor(rows, dtype=dtype, device=device).reshape(shape)
            parts.append(values.expand(-1, *self.grid).flatten(1))
            order += [2 * plane + row for plane, _ in own for row in (0, 1)]
        by_plane = sorted(range(len(order)), key=order.__getitem__)
        return torch.cat(parts).index_select(0, torch.tensor(by_plane, device=device))


@dataclass(frozen=True)
class RotatedTerm:
    """The position-dependent part of an update: ``out @ (cos · inner x + sin · inner⊥ x)``, or ``sign · inner x``."""

    inner: Float[Tensor, "e d1"]  # acts on [x̂, 1]
    out: Float[Tensor, "d e"]


@dataclass(frozen=True)
class Ffn:
    """The MLP of a block, with LayerNorm's gain and shift folded into its first layer."""

    weight1: Float[Tensor, "hidden d"]
    bias1: Float[Tensor, " hidden"]
    weight2: Float[Tensor, "d hidden"]
    bias2: Float[Tensor, " d"]


def normalise(x: Tokens) -> Tokens:
    """LayerNorm without gain and shift."""
    centred = x - x.mean(dim=1, keepdim=True)
    return centred * (centred.square().mean(dim=1, keepdim=True) + EPS).rsqrt()


def apply_affine(matrix: Float[Tensor, "*b j d1"], x_hat: Tokens) -> Float[Tensor, "b j t"]:
    """``matrix @ [x̂, 1]``."""
    matrix = matrix.expand(x_hat.shape[0], -1, -1)
    return torch.baddbmm(matrix[..., -1:], matrix[..., :-1], x_hat)


def perpendicular(matrix: Float[Tensor, "*b e d1"]) -> Float[Tensor, "*b e d1"]:
    """Rows (r0, r1, r2, r3, …) → (-r1, r0, -r3, r2, …): each pair of rows rotated by 90°."""
    planes = matrix.reshape(*matrix.shape[:-2], -1, 2, matrix.shape[-1])
    return torch.stack([-planes[..., 1, :], planes[..., 0, :]], dim=-2).flatten(-3, -2)


def embed(corr: Float[Tensor, "b l t"], weight: Float[Tensor, "d l"], bias: Float[Tensor, " d"]) -> Tokens:
    """Similarities of a match at all layers → the match's ``d`` channels."""
    return weight @ corr.to(weight.dtype) + bias[:, None]


def pool(
    x: Tokens, scores: Float[Tensor, "b j d1"], positions: PositionFeatures, *, heads: int, rotate_scores: bool
) -> Float[Tensor, "b j d1"]:
    """Softmax over all matches, then sums of the matches with these weights.

    Row j belongs to head ``j // (J / heads)``. The score of a match in a head is the sum over the head's rows of
    ``scores_j · [x̂, 1]``, each times the row's position feature if ``rotate_scores``. Row j of the result is the sum
    of ``[x̂, 1]`` over all matches, weighted by its head's softmax times the row's position feature.
    """
    features = positions.features(x.dtype, x.device)
    tops, totals, sums = zip(
        *(_pool_block(x[..., part], scores, features[:, part], heads, rotate_scores) for part in _blocks(x)),
        strict=True,
    )
    scales = (torch.stack(tops) - torch.stack(tops).amax(dim=0)).exp()  # (blocks, b, heads, 1)
    total = (torch.stack(totals) * scales).sum(dim=0)
    weighted = (torch.stack(sums) * scales[..., None]).sum(dim=0) / total[..., None]  # (b, heads, j / heads, d1)
    return weighted.reshape(scores.shape)


def _pool_block(
    x: Tokens, scores: Float[Tensor, "b j d1"], features: Float[Tensor, "j2 t"], heads: int, rotate_scores: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """One block of matches → (highest score, sum of exponentials, sums weighted by them), for each head."""
    b, _, t = x.shape
    if len(features) > 1:
        features = features.reshape(heads, -1, t)
    x_hat = normalise(x)
    rows = apply_affine(scores, x_hat).reshape(b, heads, -1, t)
    if rotate_scores:
        rows = rows * features
    logits = rows.sum(dim=2, keepdim=True)  # (b, heads, 1, t)
    top = logits.detach().amax(dim=-1)  # (b, heads, 1)
    weights = (logits - top[..., None]).exp()
    rotated = (weights * features).reshape(b, -1, t)  # (b, j, t)
    sums = torch.cat([rotated @ x_hat.transpose(1, 2), rotated.sum(dim=-1, keepdim=True)], dim=-1)
    return top, weights.sum(dim=-1), sums.reshape(b, heads, -1, sums.shape[-1])


def update(
    x: Tokens, linear: Float[Tensor, "b d d1"], positions: PositionFeatures, rotated: RotatedTerm | None, ffn: Ffn
) -> Tokens:
    """``x += linear [x̂, 1]`` plus the rotated term, then ``x += MLP(LayerNorm(x))``."""
    features = positions.features(x.dtype, x.device)
    blocks = [_update_block(x[..., part], linear, features[:, part], rotated, ffn) for part in _blocks(x)]
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=-1)


def _update_block(
    x: Tokens, linear: Float[Tensor, "b d d1"], features: Float[Tensor, "j t"], rotated: RotatedTerm | None, ffn: Ffn
) -> Tokens:
    x_hat = normalise(x)
    x = x + apply_affine(linear, x_hat)
    if rotated is not None:
        inner = apply_affine(rotated.inner, x_hat)
        if len(features) > 1:
            cos, sin = (part.repeat_interleave(2, dim=0) for part in (features[0::2], features[1::2]))
            inner = cos * inner + sin * apply_affine(perpendicular(rotated.inner), x_hat)
        else:
            inner = inner * features
        x = x + rotated.out @ inner
    hidden = F.gelu(ffn.weight1 @ normalise(x) + ffn.bias1[:, None])
    return x + ffn.weight2 @ hidden + ffn.bias2[:, None]


def _blocks(x: Tokens) -> list[slice]:
    """Slices of the matches: on a CPU, blocks that stay in its cache from one operation to the next; else one slice."""
    t = x.shape[-1]
    if x.device.type != "cpu" or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return [slice(None)]
    return [slice(start, start + BLOCK) for start in range(0, t, BLOCK)]

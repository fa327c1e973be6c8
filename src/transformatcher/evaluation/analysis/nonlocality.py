"""Attention over matches → nonlocality Φ: the mean squared distance, in cells, between a query match and its keys.

Φ = 1/Z Σ_heads Σ_(q,k) A_qk ‖q − k‖², with Z such that every row of A is a distribution (section 5.2). Three forms of
A are computed. *pairwise* is the supplement's: A = softmax(Q̂ Kᵀ) with Q̂_i = α_i Q_i, where α are the weights of the
global query. *query* and *key* are the weights α and β themselves, which are the same for every match q.

The T × T attention matrix is never held in memory. As ‖q − k‖² = ‖q‖² − 2 q·k + ‖k‖², a row needs six sums over the
keys: of the weights, of the weights times k (four axes), and of the weights times ‖k‖². For α and β one sum serves all
rows. For the pairwise form the sums are functions of the scaled query alone, Σ_k exp(q̂·K_k) (1, k, ‖k‖²), and α makes
them cheap: since Σ α = 1, nearly every q̂ is tiny, and a Taylor series of exp, whose coefficients are moments of the
keys, needs only a few terms. The few queries that are not tiny (at most ‖Q‖‖K‖/r of them have |q̂·k| > r) are summed
exactly. So the time is O(T).
"""

import math
from collections import Counter
from itertools import combinations_with_replacement

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from transformatcher.models.rotary import Grid4

TOLERANCE = 1e-12  # relative error of the series
MAX_EXACT = 256  # queries: up to this many are summed exactly instead of with a longer series
MAX_TERMS = 200  # of the series: heads of 4 channels may go to degree 5, heads of 16 to degree 2
CHUNK = 32  # queries that are summed exactly at a time


def pairwise_nonlocality(
    alpha: Float[Tensor, "heads t"],
    queries: Float[Tensor, "heads t d"],
    keys: Float[Tensor, "heads t d"],
    grid: Grid4,
) -> Float[Tensor, " heads"]:
    """Φ of each head in the supplement's pairwise form, in O(T)."""
    cells = centred_cells(grid, alpha)
    scaled = alpha.double()[..., None] * queries.double()
    return torch.stack([_pairwise_head(*head, cells) for head in zip(scaled, keys.double(), strict=True)])


def nonlocality_of_weights(weights: Float[Tensor, "*b t"], grid: Grid4) -> Float[Tensor, "*b"]:
    """Φ where every query match attends to the others with the same ``weights``."""
    cells = centred_cells(grid, weights)
    weights = weights.double()
    squares = cells.square().sum(dim=1)  # of the distance from the grid's centre, which is the mean of all q
    return squares.mean() + (weights @ squares) / weights.sum(dim=-1)


def uniform_nonlocality(grid: Grid4) -> float:
    """Φ of uniform attention: Σ (n² − 1)/6 over the axes."""
    return sum(n * n - 1 for n in grid) / 6


def centred_cells(grid: Grid4, like: Tensor) -> Float[Tensor, "t 4"]:
    """Cells (ys, xs, yt, xt) of every match, counted from the middle of the grid, in float64."""
    axes = [torch.arange(n, dtype=torch.float64, device=like.device) - (n - 1) / 2 for n in grid]
    return torch.cartesian_prod(*axes)


def _pairwise_head(
    scaled: Float[Tensor, "t d"], keys: Float[Tensor, "t d"], cells: Float[Tensor, "t 4"]
) -> Float[Tensor, ""]:
    keys = keys - keys.mean(dim=0)  # a shift of all keys changes no softmax, and keeps q̂·k small
    squares = cells.square().sum(dim=1)
    values = torch.cat([torch.ones_like(squares)[:, None], cells, squares[:, None]], dim=1)  # (t, 6)
    reach = scaled.norm(dim=1) * keys.norm(dim=1).max()  # |q̂·k| is at most this
    degree = _degree(reach, keys.shape[1])
    moments = _monomials(keys, degree) @ values  # (terms, 6)
    sums = _monomials(scaled, degree).T @ (moments * _inverse_factorials(keys.shape[1], degree, like=moments))
    for far in (reach > _radius(degree)).nonzero()[:, 0].split(CHUNK):
        sums[far] = (scaled[far] @ keys.T).softmax(dim=1) @ values
    means = sums / sums[:, :1]
    return (squares - 2 * (cells * means[:, 1:5]).sum(dim=1) + means[:, 5]).mean()


def _degree(reach: Float[Tensor, " t"], channels: int) -> int:
    """The lowest degree at which at most MAX_EXACT queries are out of range, within MAX_TERMS."""
    degree = 1
    while (reach > _radius(degree)).sum() > MAX_EXACT and math.comb(channels + degree + 1, degree + 1) <= MAX_TERMS:
        degree += 1
    return degree


def _radius(degree: int) -> float:
    """Up to which |x| the remainder of exp's series, |x|^(degree + 1)/(degree + 1)!, stays within the tolerance."""
    return (TOLERANCE * math.factorial(degree + 1)) ** (1 / (degree + 1))


def _terms(channels: int, degree: int) -> list[tuple[int, ...]]:
    """(), (0,), (1,), …, (0, 0), (0, 1), …: the channels that each monomial multiplies."""
    return [term for n in range(degree + 1) for term in combinations_with_replacement(range(channels), n)]


def _monomials(x: Float[Tensor, "t d"], degree: int) -> Float[Tensor, "terms t"]:
    columns = x.T.contiguous()
    made: dict[tuple[int, ...], Tensor] = {(): torch.ones_like(columns[0])}
    for term in _terms(len(columns), degree)[1:]:
        made[term] = made[term[:-1]] * columns[term[-1]]
    return torch.stack(list(made.values()))


def _inverse_factorials(channels: int, degree: int, like: Tensor) -> Float[Tensor, "terms 1"]:
    """(q·k)^n/n! = Σ q^m k^m/m! over the multi-indices m of degree n."""
    values = [1 / math.prod(map(math.factorial, Counter(term).values())) for term in _terms(channels, degree)]
    return like.new_tensor(values)[:, None]


# ---------------------------------------------------------------- convolutions, written as attention


def convolution_nonlocality(dims: int, kernel: int) -> float:
    """Φ of a convolution of ``kernel``^``dims`` taps, each a head that attends to one offset: dims (K² − 1)/12."""
    return dims * (kernel**2 - 1) / 12


def bounded_convolution_nonlocality(dims: int, kernel: int, side: int) -> float:
    """The same on a grid of ``side`` cells along each axis: taps that would reach over the border are left out."""
    reach = min(kernel // 2, side - 1)
    offsets = np.arange(-reach, reach + 1)
    pairs = side - np.abs(offsets)  # along one axis: how many cells have a cell at this offset
    return float(dims * (pairs * offsets**2).sum() / pairs.sum())


def convolution_offsets(dims: int, kernel: int) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Squared lengths of a kernel's offsets, rising, and the share of its heads that have each of them."""
    axis = np.zeros((kernel // 2) ** 2 + 1)
    for offset in range(-(kernel // 2), kernel // 2 + 1):
        axis[offset**2] += 1 / kernel
    shares = np.ones(1)
    for _ in range(dims):
        shares = np.convolve(shares, axis)  # squared lengths add up over the axes
    lengths = np.flatnonzero(shares)
    return lengths.astype(float), shares[lengths]

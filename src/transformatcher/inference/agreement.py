"""Matches of several points of one object → where each point should be, judged by all others."""

import torch
from jaxtyping import Float
from torch import Tensor

MIN_POINTS = 5  # asked for in a pair: fewer do not determine an affine map and leave one to spare
RIDGE = 0.3  # pull towards the identity: weight of a prior match, against the sum of the points' weights
OUTLIER = 0.3  # residual, in half sides of a crop, beyond which a match counts for little
ROUNDS = 4  # of reweighting
FLOOR = 0.01  # of the prior, far from the expected position: points of an object that turns need not agree


def expected_from_others(
    src: Float[Tensor, "b n 2"], trg: Float[Tensor, "b n 2"], weight: Float[Tensor, "b n"]
) -> Float[Tensor, "b n 2"]:
    """Map each point by the affine map that fits the matches of all other points best.

    The fit is robust (iteratively reweighted least squares) and pulled towards the identity, so both sides should be
    coordinates in a box around the object.

    Args:
        src, trg: points and their matches.
        weight: of each match in the fit; 0 for points that must not count.

    Returns:
        Where the other points expect each point to be on the target.
    """
    src, trg, weight = src.double(), trg.double(), weight.double()
    n = weight.shape[1]
    ones = torch.ones_like(src[..., :1])
    basis = torch.cat([src, ones], dim=-1)  # (b, n, 3)
    others = weight[:, None] * (1 - torch.eye(n, dtype=weight.dtype, device=weight.device))  # (b, fit, point)
    ridge = RIDGE * torch.eye(3, dtype=weight.dtype, device=weight.device)
    identity = torch.eye(3, 2, dtype=weight.dtype, device=weight.device)
    robust = torch.ones_like(others)
    for _ in range(ROUNDS):
        w = others * robust
        gram = torch.einsum("bfp,bpi,bpj->bfij", w, basis, basis) + ridge
        moment = torch.einsum("bfp,bpi,bpc->bfic", w, basis, trg) + ridge @ identity
        affine = torch.linalg.solve(gram, moment)  # (b, fit, 3, 2)
        residual = torch.einsum("bpi,bfic->bfpc", basis, affine) - trg[:, None]
        robust = (1 + residual.square().sum(dim=-1) / OUTLIER**2) ** -2
    return torch.einsum("bfi,bfic->bfc", basis, affine)


def agreement_prior(
    cells: Float[Tensor, "h w 2"],
    src: Float[Tensor, "b n 2"],
    trg: Float[Tensor, "b n 2"],
    weight: Float[Tensor, "b n"],
) -> Float[Tensor, "b n h w"]:
    """The logarithm of a prior over target cells: near where the other points of the pair expect each point.

    Its width is twice the median distance between expected and found positions of the other points: where an affine
    map describes the pair well, the prior is narrow and corrects single points; where it does not, it says nothing.
    Pairs with fewer than ``MIN_POINTS`` points of positive weight get no prior (zeros).

    Args:
        cells: positions of the target cells.
        src, trg, weight: as for :func:`expected_from_others`.
    """
    expected = expected_from_others(src, trg, weight)
    distance = (expected - trg.double()).norm(dim=-1)  # (b, n)
    counted = (weight > 0)[:, None] & ~torch.eye(weight.shape[1], dtype=torch.bool, device=weight.device)
    spread = torch.where(counted, distance[:, None], torch.nan).nanmedian(dim=2).values  # (b, n), of the others
    half_cell = 1 / (max(cells.shape[:2]) - 1)  # narrower, the prior could lie between all cells
    sigma = (2 * spread).nan_to_num(1.0).clamp(min=half_cell)[..., None, None]
    squared = (cells.double() - expected[:, :, None, None]).square().sum(dim=-1)  # (b, n, h, w)
    prior = torch.log(torch.exp(-squared / (2 * sigma**2)) + FLOOR)
    enough = ((weight > 0).sum(dim=1) >= MIN_POINTS)[:, None, None, None]
    return torch.where(enough, prior, torch.zeros_like(prior))

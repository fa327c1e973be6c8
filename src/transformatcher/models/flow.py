"""Refined 4-D map → dense flow field: upsample, smooth, normalise, take the expectation (section 4.3)."""

from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformatcher.coords import grid_norm
from transformatcher.models.fused import fold as fast
from transformatcher.models.resize4d import resize4d
from transformatcher.models.sampler import bilinear_sample
from transformatcher.schema import Flow, Size

GaussianOn = Literal["logits", "probabilities", "none"]


def gaussian_at_peak(scores: Float[Tensor, "b hs ws ht wt"], sigma: float) -> Float[Tensor, "b hs ws ht wt"]:
    """exp(-d²/2σ²), d being the distance in cells from each target cell to the best one of that source cell."""
    ht, wt = scores.shape[3:]
    best = scores.flatten(3).argmax(dim=3)  # (b, hs, ws)
    ys = torch.arange(ht, device=scores.device, dtype=scores.dtype) - (best // wt)[..., None]  # (b, hs, ws, ht)
    xs = torch.arange(wt, device=scores.device, dtype=scores.dtype) - (best % wt)[..., None]  # (b, hs, ws, wt)
    along_y, along_x = (torch.exp(-(d**2) / (2 * sigma**2)) for d in (ys, xs))
    return along_y[..., :, None] * along_x[..., None, :]


def match_distribution(
    scores: Float[Tensor, "b hs ws ht wt"], *, sigma: float, temperature: float, gaussian: GaussianOn
) -> Float[Tensor, "b hs ws ht wt"]:
    """Scores → for each source cell, a probability over the target cells (the paper's C^norm).

    ``gaussian`` says what the kernel at the peak multiplies. ``logits`` is the paper's formula; where logits are
    negative it raises the far cells instead of the peak. ``probabilities`` always favours the peak's neighbourhood.
    """
    logits = scores / temperature
    if gaussian == "logits":
        logits = gaussian_at_peak(scores, sigma) * logits
    probabilities = logits.flatten(3).softmax(dim=3).reshape(scores.shape)
    if gaussian == "probabilities":
        probabilities = gaussian_at_peak(scores, sigma) * probabilities
        probabilities = probabilities / probabilities.sum(dim=(3, 4), keepdim=True)
    return probabilities


class KernelSoftArgmax(nn.Module):
    """The read-out of the paper: 4-D upsampling, kernel soft-argmax, expectation.

    Args:
        upsample: factor for each of the four axes.
        sigma: of the Gaussian at the peak, in cells of the upsampled grid.
        temperature: divides the scores before the softmax.
        gaussian: see :func:`match_distribution`.
    """

    def __init__(
        self, upsample: int = 2, sigma: float = 10.0, temperature: float = 1.0, gaussian: GaussianOn = "logits"
    ) -> None:
        super().__init__()
        self.upsample = upsample
        self.sigma = sigma
        self.temperature = temperature
        self.gaussian: GaussianOn = gaussian
        self.path: fast.PathName = "auto"  # fast: a fused kernel where Triton runs; plain: this file

    def forward(self, refined: Float[Tensor, "b hs ws ht wt"]) -> Flow:
        """Expectation of the target position, for each cell of the upsampled source grid."""
        # A row of the fine target grid must fit into one program's registers.
        if fast.kernel_wanted(self.path, refined) and max(refined.shape[3:]) * self.upsample <= 128:
            return fast.read_out(
                refined, self.upsample, sigma=self.sigma, temperature=self.temperature, gaussian=self.gaussian
            )
        p = self.distribution(refined)
        positions = grid_norm((p.shape[3], p.shape[4]), like=p)
        expected = torch.einsum("bijkl,klc->bijc", p, positions)
        return Flow(trg_norm=expected, peak=p.amax(dim=(3, 4)))

    def distribution(self, refined: Float[Tensor, "b hs ws ht wt"]) -> Float[Tensor, "b hs2 ws2 ht2 wt2"]:
        """The probability of every target cell, for each cell of the upsampled source grid."""
        hs, ws, ht, wt = (self.upsample * n for n in refined.shape[1:])
        scores = resize4d(refined, (hs, ws), (ht, wt))
        return match_distribution(scores, sigma=self.sigma, temperature=self.temperature, gaussian=self.gaussian)


def cycle_error(back: Flow, src_norm: Float[Tensor, "b n 2"], trg_norm: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n"]:
    """How far from itself a point arrives, in [-1, 1]², when its match is carried ``back`` to the source."""
    return (bilinear_sample(back.trg_norm, trg_norm) - src_norm).norm(dim=-1)


def cycle_consistent_cells(
    forth: Flow, back: Flow, grid: Size
) -> tuple[Float[Tensor, "b n 2"], Float[Tensor, "b n 2"], Bool[Tensor, "b n"]]:
    """Cells of a ``grid`` over the source, where they land, and which come back to within one cell of themselves."""
    src_norm = grid_norm(grid, like=forth.trg_norm).flatten(0, 1).expand(len(forth.trg_norm), -1, -1)
    trg_norm = bilinear_sample(forth.trg_norm, src_norm)
    return src_norm, trg_norm, cycle_error(back, src_norm, trg_norm) < 2 / (max(grid) - 1)


def swap_source_target(corr: Float[Tensor, "b hs ws ht wt"]) -> Float[Tensor, "b ht wt hs ws"]:
    """The same scores, read from target to source."""
    return rearrange(corr, "b hs ws ht wt -> b ht wt hs ws")

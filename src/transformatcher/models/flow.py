"""Refined 4-D map → dense flow field: upsample, smooth, normalise, take the expectation (section 4.3)."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.coords import cells_around, grid_norm
from transformatcher.models.backend import HasBackend
from transformatcher.models.fused import dispatch, stages
from transformatcher.models.resize4d import resize2d, resize4d
from transformatcher.models.sampler import bilinear_sample
from transformatcher.schema import Flow, KernelOn


def gaussian_at_peak(scores: Float[Tensor, "b hs ws ht wt"], sigma: float) -> Float[Tensor, "b hs ws ht wt"]:
    """exp(-d²/2σ²), where d is the distance, in cells, of each target cell from the best one for its source cell."""
    ht, wt = scores.shape[3:]
    best = scores.flatten(3).argmax(dim=3)  # (b, hs, ws)
    ys = torch.arange(ht, device=scores.device, dtype=scores.dtype) - (best // wt)[..., None]  # (b, hs, ws, ht)
    xs = torch.arange(wt, device=scores.device, dtype=scores.dtype) - (best % wt)[..., None]  # (b, hs, ws, wt)
    along_y, along_x = (torch.exp(-(d**2) / (2 * sigma**2)) for d in (ys, xs))
    return along_y[..., :, None] * along_x[..., None, :]


def match_distribution(
    scores: Float[Tensor, "b hs ws ht wt"], *, kernel_sigma: float, temperature: float, kernel_on: KernelOn
) -> Float[Tensor, "b hs ws ht wt"]:
    """Scores → for each source cell, a probability distribution over the target cells (the paper's C^norm).

    ``kernel_on`` tells what the Gaussian at the peak multiplies. ``logits`` is the paper's formula; if the logits are
    negative, it raises distant cells instead of the peak. ``probabilities`` always favours the cells near the peak.
    ``none``: there is no Gaussian.
    """
    logits = scores / temperature
    if kernel_on == "logits":
        logits = gaussian_at_peak(scores, kernel_sigma) * logits
    probabilities = logits.flatten(3).softmax(dim=3).reshape(scores.shape)
    if kernel_on == "probabilities":
        probabilities = gaussian_at_peak(scores, kernel_sigma) * probabilities
        probabilities = probabilities / probabilities.sum(dim=(3, 4), keepdim=True)
    return probabilities


class KernelSoftArgmax(nn.Module, HasBackend):
    """The read-out of the paper: 4-D upsampling, kernel soft-argmax, expectation (Eq. 10).

    Args:
        upsample: factor for each of the four axes.
        kernel_sigma: of the Gaussian at the peak, in cells of the upsampled grid.
        temperature: the scores are divided by it before the softmax.
        kernel_on: what the Gaussian multiplies, see :func:`match_distribution`.
    """

    def __init__(
        self, upsample: int = 2, kernel_sigma: float = 10.0, temperature: float = 1.0, kernel_on: KernelOn = "logits"
    ) -> None:
        super().__init__()
        self.upsample = upsample
        self.kernel_sigma = kernel_sigma
        self.temperature = temperature
        self.kernel_on: KernelOn = kernel_on

    def forward(self, refined: Float[Tensor, "b hs ws ht wt"]) -> Flow:
        """Refined map → for each cell of the upsampled source grid, expected target position and peak probability."""
        # The upsampled target grid of one source cell must fit into the registers of one Triton program.
        if dispatch.use_triton(self.backend, refined) and max(refined.shape[3:]) * self.upsample <= 128:
            return stages.read_out(
                refined,
                self.upsample,
                kernel_sigma=self.kernel_sigma,
                temperature=self.temperature,
                kernel_on=self.kernel_on,
            )
        p = self.distribution(refined)
        positions = grid_norm((p.shape[3], p.shape[4]), like=p)
        expected = torch.einsum("bijkl,klc->bijc", p, positions)
        return Flow(trg_norm=expected, peak=p.amax(dim=(3, 4)))

    def scores_at(
        self, refined: Float[Tensor, "b hs ws ht wt"], src_norm: Float[Tensor, "b n 2"]
    ) -> Float[Tensor, "b n ht2 wt2"]:
        """Scores of points over the upsampled target grid, interpolated between source cells."""
        b, n = src_norm.shape[:2]
        ht, wt = refined.shape[3:]
        scores = bilinear_sample(refined.flatten(3), src_norm).reshape(b, n, ht, wt)
        return resize2d(scores, (self.upsample * ht, self.upsample * wt))

    def flow_at(
        self, refined: Float[Tensor, "b hs ws ht wt"], src_norm: Float[Tensor, "b n 2"]
    ) -> Float[Tensor, "b n 2"]:
        """The flow, interpolated at points: the same as from the whole flow, read at the four cells around each."""
        hs, ws = (self.upsample * n for n in refined.shape[1:3])
        if 4 * src_norm.shape[1] >= hs * ws:
            return bilinear_sample(self(refined).trg_norm, src_norm)
        corners, weights = cells_around(src_norm, (hs, ws))  # (b, n, 4, 2), (b, n, 4)
        scores = self.scores_at(refined, corners.flatten(1, 2))
        p = match_distribution(
            scores[:, :, None],
            kernel_sigma=self.kernel_sigma,
            temperature=self.temperature,
            kernel_on=self.kernel_on,
        )[:, :, 0]
        expected = torch.einsum("bmkl,klc->bmc", p, grid_norm((p.shape[2], p.shape[3]), like=p))
        return torch.einsum("bnq,bnqc->bnc", weights, expected.reshape(corners.shape))

    def distribution(self, refined: Float[Tensor, "b hs ws ht wt"]) -> Float[Tensor, "b hs2 ws2 ht2 wt2"]:
        """The probability of every target cell, for each cell of the upsampled source grid."""
        hs, ws, ht, wt = (self.upsample * n for n in refined.shape[1:])
        scores = resize4d(refined, (hs, ws), (ht, wt))
        return match_distribution(
            scores, kernel_sigma=self.kernel_sigma, temperature=self.temperature, kernel_on=self.kernel_on
        )


def cycle_error(back: Flow, src_norm: Float[Tensor, "b n 2"], trg_norm: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n"]:
    """Distance, in [-1, 1]², between a source point and its match mapped back to the source by the flow ``back``."""
    return (bilinear_sample(back.trg_norm, trg_norm) - src_norm).norm(dim=-1)


def swap_source_target(corr: Float[Tensor, "b hs ws ht wt"]) -> Float[Tensor, "b ht wt hs ws"]:
    """The same scores with source and target axes exchanged."""
    return rearrange(corr, "b hs ws ht wt -> b ht wt hs ws")

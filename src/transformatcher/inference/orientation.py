"""Features of a source, the mirrored source and a target → does the target show the object facing the other way?"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from transformatcher.coords import grid_norm
from transformatcher.models.correlation import finest_grid
from transformatcher.models.resize4d import resize2d
from transformatcher.models.sampler import bilinear_sample
from transformatcher.models.transformatcher import Features, TransforMatcher

SHARPNESS = 70.0  # cosines differ by hundredths where logits differ by units
MIN_EVIDENCE = 0.2  # an object seen from the front looks alike in the mirror
MIN_HALF = 0.1  # of the layout's half side in [-1, 1]²: one point has no extent
CENTRES, MAX_CENTRE = 17, 0.8  # of the layout on the target, along each side and in [-1, 1]²
HALF_SIDES = (0.3, 0.45, 0.6, 0.8, 1.05)  # of the layout on the target, in [-1, 1]²
SIZES = [(w, h) for w in HALF_SIDES for h in HALF_SIDES if 0.5 <= w / h <= 2]


@torch.inference_mode()
def faces_other_way(
    model: TransforMatcher,
    src: Features,
    src_mirrored: Features,
    trg: Features,
    src_norm: Float[Tensor, "b n 2"],
    given: Bool[Tensor, "b n"],
) -> Bool[Tensor, " b"]:
    """Whether points of the mirrored source fit the target better than those of the source as it is.

    The network is not run again for this: the features of points of the source are compared with those of all cells of
    the target, and it counts how well the layout of the points is found on it.

    Args:
        model: whose features are compared.
        src, src_mirrored, trg: features of the three images of b pairs.
        src_norm: points of the source's object, in [-1, 1]².
        given: which of them count; the others pad the batch.
    """
    units = [F.normalize(f.float(), dim=1) for f in trg]
    plain, mirrored = (
        layout_evidence(point_similarity(model, features, units, points), points, given)
        for features, points in ((src, src_norm), (src_mirrored, src_norm * src_norm.new_tensor([-1.0, 1.0])))
    )
    return mirrored > plain + MIN_EVIDENCE


def layer_weights(model: TransforMatcher) -> Float[Tensor, " l"] | None:
    """The weights of the layers in the model's own mean correlation, if it has learned any."""
    weights = getattr(model.refiner, "mix", None)
    return weights if isinstance(weights, Tensor) else None


def point_similarity(
    model: TransforMatcher, src: Features, trg_units: Features, src_norm: Float[Tensor, "b n 2"]
) -> Float[Tensor, "b n ht wt"]:
    """The weighted mean cosine similarity, over the layers, of points of the source with all cells of the target.

    ``trg_units`` are features of length one.
    """
    weights = layer_weights(model)
    if weights is None or len(weights) != len(src):  # the correlation has one channel if its layers are fused
        weights = src_norm.new_full((len(src),), 1 / len(src))
    grid = finest_grid(trg_units)
    total = src_norm.new_zeros(*src_norm.shape[:2], *grid)
    for layer, (f_src, f_trg) in enumerate(zip(src, trg_units, strict=True)):
        points = F.normalize(bilinear_sample(f_src.float().permute(0, 2, 3, 1), src_norm), dim=2)  # (b, n, c)
        cosines = torch.einsum("bnc,bchw->bnhw", points, f_trg)
        total += weights[layer] * resize2d(cosines, grid)
    return total


def layout_evidence(
    similarity: Float[Tensor, "b n h w"], src_norm: Float[Tensor, "b n 2"], given: Bool[Tensor, "b n"]
) -> Float[Tensor, " b"]:
    """How well the target shows the given points in the layout that they have on the source.

    The layout is slid over the target as a template, in several sizes, and never mirrored. The result is the logarithm
    of the sum of its likelihoods, up to a constant: exp(``SHARPNESS`` · mean similarity of the points).
    """
    mask = given.to(src_norm)[..., None]
    offset = (src_norm - (src_norm * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)) * mask
    offset = offset / offset.abs().amax(dim=(1, 2), keepdim=True).clamp(min=MIN_HALF)
    centres = grid_norm((CENTRES, CENTRES), like=src_norm).flatten(0, 1) * MAX_CENTRE  # (k, 2)
    maps, weight = similarity.flatten(0, 1)[:, None], given.to(similarity)
    evidence = []
    for width, height in SIZES:
        at = (offset * offset.new_tensor([width, height]))[:, :, None] + centres  # (b, n, k, 2)
        values = F.grid_sample(maps, at.flatten(0, 1)[:, None], padding_mode="border", align_corners=True)
        values = values.reshape(*given.shape, -1)  # (b, n, k)
        evidence.append(torch.einsum("bn,bnk->bk", weight, values) / weight.sum(dim=1, keepdim=True).clamp(min=1))
    return (SHARPNESS * torch.cat(evidence, dim=1)).logsumexp(dim=1)
